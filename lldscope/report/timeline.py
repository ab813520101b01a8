"""The timeline of a report: phases as seen live, where they began with hindsight, and alarms."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from ..core import palette
from ..core.safe_text import escape_control
from .drawing import Axis, steps, svg, text

WIDTH, LEFT = 1180, 90
ROW, LANE = 34, 17  # heights: of a run told in full, of one of several
Parts = list[str]


def of_run(facts: Mapping[str, Any]) -> str:
    """Three lanes: phases as seen live, their beginnings with hindsight, and the alarms."""
    x = steps(facts, LEFT, WIDTH - 16)
    parts, bottom = _lanes(facts, x, 0)
    spans = ", ".join(f"{s['phase']} {s['start_step']}–{s['end_step']}" for s in facts["phases"])
    return _finished(parts, x, bottom, f"Timeline over steps. Live phases: {spans}")


def of_arms(facts: Mapping[str, Any]) -> str:
    """Both arms over the same steps: three lanes for a single run, a thin one for each of more."""
    x = Axis(*extent(facts), LEFT, WIDTH - 16)
    parts: Parts = []
    top = 0.0
    for arm in facts["arms"]:
        parts.append(
            text(
                0,
                top + 16,
                escape_control(f"{arm['letter']}: {arm['name']}"),
                "start",
                "var(--ink)",
            )
        )
        runs = [run for run in arm["runs"] if run["phases"]]
        if len(arm["runs"]) == 1:
            for run in runs:
                more, top = _lanes(run, x, top + 20)
                parts += more
        else:
            for i, run in enumerate(runs):
                y = top + 24 + LANE * i
                name = escape_control(run["run"]["name"])
                parts.append(f"<g><title>{escape(name)}</title>{text(0, y + 11, name[:13])}</g>")
                parts += _live(run, x, y, LANE - 3)
                fired = [a["step"] for a in run["alarms"] if a["rule"] == "lld-decay"]
                parts += [_alarm(x(step), y, step) for step in fired if step is not None]
            top += 30 + LANE * len(runs)
    return _finished(parts, x, top, "Phases of both arms over the same steps")


def extent(facts: Mapping[str, Any]) -> tuple[int, int]:
    """First and last step of any run of two arms."""
    runs = [run["run"] for arm in facts["arms"] for run in arm["runs"]]
    known = [run for run in runs if run["first_step"] is not None]
    return min(run["first_step"] for run in known), max(run["last_step"] for run in known)


def _finished(parts: Parts, x: Axis, bottom: float, label: str) -> str:
    for tick in x.ticks(12):
        if tick == int(tick):
            parts.append(text(x(tick), bottom + 14, f"{tick:,.0f}", "middle"))
    return svg(parts, label, round(bottom + 20), WIDTH)


def _lanes(facts: Mapping[str, Any], x: Axis, top: float) -> tuple[Parts, float]:
    """The three lanes of a run from `top` down, and where they end."""
    words = ("live", "hindsight", "alarms")
    parts = [text(0, top + ROW * i + 26, word) for i, word in enumerate(words)]
    parts += _live(facts, x, top + 8, 26)
    parts += [_boundary(mark, x, top + ROW + 21) for mark in facts["boundaries"]]
    lanes: list[float] = []
    for alarm in sorted((a for a in facts["alarms"] if a["step"] is not None), key=_at):
        sign = palette.SEVERITIES[alarm["severity"]]
        told = f"{sign.shape} {escape_control(alarm['rule'])} {alarm['step']}"
        at, long = x(alarm["step"]), 7.6 * len(told)
        turned = at + long > x.end
        begin = at - long if turned else at
        lane = next((i for i, end in enumerate(lanes) if end < begin), len(lanes))
        lanes[lane : lane + 1] = [begin + long + 8]
        y = top + 2 * ROW + 26 + 20 * lane
        parts.append(text(at, y, told, "end" if turned else "start", "var(--ink)"))
    return parts, top + 2 * ROW + 30 + 20 * max(len(lanes), 1)


def _live(facts: Mapping[str, Any], x: Axis, y: float, height: float) -> Parts:
    """Phases as they were seen live, with their words where these fit."""
    parts = []
    for span in facts["phases"]:
        sign = palette.PHASES[span["phase"]]
        a, b = x(span["start_step"]), min(x(span["end_step"] + 1), x.end)
        words = f"{sign.word}, steps {span['start_step']}–{span['end_step']}"
        parts.append(f'<rect x="{a:g}" y="{y:g}" width="{max(b - a, 1.5):g}" height="{height:g}" '
                     f'rx="2" fill="{sign.color}"><title>{words}</title></rect>')  # fmt: skip
        fits = next(
            (w for w in (f"{sign.shape} {sign.word}", sign.shape) if b - a > 9 * len(w)), ""
        )
        parts.append(text((a + b) / 2, y + height / 2 + 5, fits, "middle", sign.ink))
    return parts


def _boundary(mark: Mapping[str, Any], x: Axis, y: float) -> str:
    sign = palette.PHASES[mark["phase"]]
    words = f"{sign.word} from step {mark['step']}, 95 %: {mark['low']}–{mark['high']}"
    place = f"{sign.shape} {mark['step']}"
    a, at, b = x(mark["low"]), x(mark["step"]), x(mark["high"])
    return (
        f"<g><title>{words}</title>"
        f'<path d="M{a:g} {y}H{b:g}M{a:g} {y - 6}v12M{b:g} {y - 6}v12" stroke="{sign.color}" '
        f'stroke-width="2"/><path d="M{at:g} {y - 7}l6 7l-6 7l-6 -7z" fill="{sign.color}"/>'
        f"{text(b + 9, y + 4, place)}</g>"
    )


def _alarm(at: float, y: float, step: int) -> str:
    """The decay alarm in a thin lane: a diamond."""
    return (
        f'<path d="M{at:g} {y}l6 7l-6 7l-6 -7z" fill="var(--card)" stroke="var(--ink)">'
        f"<title>lld-decay fired at step {step}</title></path>"
    )


def _at(alarm: Mapping[str, Any]) -> int:
    return int(alarm["step"])
