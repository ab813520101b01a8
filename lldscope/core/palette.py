"""Colours, shapes and words of states, for terminal, dashboard and report.

The hues are those of Okabe and Ito (jfly.uni-koeln.de/color), which people with the common kinds of
colour blindness can tell apart, with their lightness adjusted so that each is legible on light and
dark backgrounds. Colour is never used alone: a shape or a word goes with it, so logs lose nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

BLUE, VERMILLION, GREEN = "#2487c8", "#dd6310", "#119c78"
PURPLE, AMBER, SKY, GREY = "#c2569a", "#bd8200", "#4fa9dc", "#7f8a96"


@dataclass(frozen=True)
class Sign:
    """How a state is shown: colour, text colour on it, shape, label, and style on a terminal."""

    color: str
    ink: str
    shape: str
    word: str
    style: str = ""


PHASES: dict[str | None, Sign] = {
    "warmup": Sign("#9aa4af", "#111418", "…", "warm-up"),
    "healthy": Sign("#b4bcc5", "#111418", "○", "no LLD"),
    "stagnation": Sign("#e6ab1f", "#111418", "I", "stagnation"),
    "decay": Sign(VERMILLION, "#111418", "II", "decay"),
    "collapse": Sign("#a32e74", "#ffffff", "III", "collapse"),
    "recovered": Sign(SKY, "#111418", "↺", "recovered"),
    None: Sign(GREY, "#111418", "?", "no phase"),
}

VERDICTS: dict[str, Sign] = {
    "healthy": Sign(GREEN, "#111418", "●", "healthy", "green"),
    "warning": Sign(VERMILLION, "#111418", "▲", "warning", "yellow"),
    "critical": Sign("#a32e74", "#ffffff", "◆", "critical", "bold red"),
    "stalled": Sign(GREY, "#111418", "❚❚", "stalled", "bold magenta"),
    "insufficient": Sign("#9aa4af", "#111418", "○", "too little to judge", "dim"),
    "unreadable": Sign(GREY, "#111418", "✕", "unreadable", "red"),
}
# Replaces "healthy" where the log allows too few checks, or the reward has fallen.
NO_ALARM = Sign("#9aa4af", "#111418", "○", "no alarm", "dim")

# Grade of the evidence → its words.
EVIDENCE: dict[str, str] = {
    "delta": "Δ measured",
    "level": "likelihood levels, no Δ",
    "symptoms": "no Δ",
}

# What a log says of a cause.
ANSWERS: dict[str, Sign] = {
    "supported": Sign(VERMILLION, "#111418", "◆", "supported"),
    "consequence": Sign(AMBER, "#111418", "↳", "a consequence"),
    "ruled_out": Sign(GREEN, "#111418", "✓", "ruled out"),
    "not_shown": Sign(GREY, "#111418", "–", "not shown"),
    "not_observable": Sign(GREY, "#111418", "?", "not observable"),
}

SEVERITIES: dict[str, Sign] = {
    "info": Sign(SKY, "#111418", "i", "info", "cyan"),
    "warning": Sign(VERMILLION, "#111418", "▲", "warning", "yellow"),
    "critical": Sign(PURPLE, "#0a0c0f", "◆", "critical", "bold red"),
}

# One pair per compared run: eight colours and five dashes repeat only after forty runs.
RUN_COLORS = (BLUE, VERMILLION, GREEN, PURPLE, AMBER, "#96703c", "#8a6fd1", GREY)
RUN_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")

ACTION_COLORS = (BLUE, GREEN, AMBER, PURPLE)
ACTION_DASHES = ("solid", "dash", "dot", "dashdot")

NEUTRAL = "#8b949e"  # chart text and grid of a saved image, where the page's CSS does not apply

# Name of a CSS variable → its value on a light and on a dark background.
_THEMES = {
    "ground": ("#f5f6f8", "#0f1317"),
    "card": ("#ffffff", "#171c22"),
    "sunken": ("#eef0f3", "#1f252c"),
    "ink": ("#1b2129", "#e7ebef"),
    "ink-2": ("#57616d", "#a5afba"),
    "ink-3": ("#646e7a", "#8b96a2"),
    "line": ("#dfe3e8", "#2a323b"),
    "grid": ("#e9ecf0", "#242b33"),
    "zero": ("#aeb7c1", "#56616d"),
    "accent": ("#1a6fab", "#6cb8ee"),
    "pressed": ("#1a6fab", "#1a6fab"),  # under white text
    "live": (GREEN, GREEN),
    "shadow": ("0 1px 2px rgb(20 30 45 / 6%), 0 4px 16px rgb(20 30 45 / 4%)", "none"),
}
LIGHT = {name: light for name, (light, _) in _THEMES.items()}
DARK = {name: dark for name, (_, dark) in _THEMES.items()}


def variables(values: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in values.items())
