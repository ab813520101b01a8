"""What colours the tokens of a response: Δ, entropy, engine mismatch, or the loss mask.

As a colour, as the side and strength of a bar, and in words; the address says which, `color=`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from dash import html

from .delta_colors import FAINT, STRONG_TOKEN, nats, tint

Token = dict[str, Any]

STRONG_ENTROPY = 2.0  # nats for the full colour
STRONG_MISMATCH = 2 * log(2)  # the bar is heavy from ln 2 on, where `engine_far_share` counts


@dataclass(frozen=True)
class Overlay:
    """One choice: its name, what the colours mean, what of a token is measured, the token's look,
    and samples of it for the legend, each with its words."""

    key: str
    name: str
    meaning: str
    value: Callable[[Token], Any]
    look: Callable[..., dict[str, Any]]
    samples: Sequence[tuple[Any, str]]

    def of(self, token: Token, *names: str) -> dict[str, Any]:
        """Class and style of a token."""
        return self.look(self.value(token), *names)


def _delta(value: float | None, *names: str) -> dict[str, Any]:
    return tint(value, STRONG_TOKEN, *names, faint=FAINT)


def _mismatch(value: float | None, *names: str) -> dict[str, Any]:
    return tint(value, STRONG_MISMATCH, *names, faint=FAINT)


def _entropy(value: float | None, *names: str) -> dict[str, Any]:
    """The bar is above, as that of a gain is, in a colour of its own."""
    look = tint(value, STRONG_ENTROPY, *names, faint=FAINT)
    return look | {"className": look["className"].replace("gained", "uncertain")}


def _mask(trained: bool | None, *names: str) -> dict[str, Any]:
    return {"className": " ".join(name for name in (*names, "trained" if trained else "") if name)}


OVERLAYS = {
    overlay.key: overlay
    for overlay in (
        Overlay(
            "delta", "Δ", "Δ log π of a token, nats:", lambda t: t["delta"], _delta,
            [(-STRONG_TOKEN, "≤ −2 lost"), (-0.5, "−0.5"), (0.5, "+0.5"),
             (STRONG_TOKEN, "≥ +2 gained")],
        ),
        Overlay(
            "entropy", "entropy", "entropy where a token was sampled, nats:",
            lambda t: t["entropy"], _entropy,
            [(0.0, "0, certain"), (0.5, "0.5"), (STRONG_ENTROPY, "≥ 2, open")],
        ),
        Overlay(
            "mismatch", "engine mismatch", "log π of the trainer minus that of the engine, nats:",
            lambda t: t["mismatch"], _mismatch,
            [(-STRONG_MISMATCH, f"≤ {nats(-STRONG_MISMATCH)}, engine likelier"), (-0.3, "−0.3"),
             (0.3, "+0.3"), (STRONG_MISMATCH, f"≥ {nats(STRONG_MISMATCH)}, trainer likelier")],
        ),
        Overlay(
            "mask", "loss mask", "tokens:", lambda t: t["action_index"] is not None, _mask,
            [(True, "in the loss"), (False, "masked out")],
        ),
    )
}


def overlay_of(name: str | None) -> Overlay:
    """The overlay of this key; that of Δ for any other."""
    return OVERLAYS.get(name or "", OVERLAYS["delta"])


def legend(overlay: Overlay) -> html.P:
    """What the colours and bars of tokens mean."""
    parts: list[Any] = [html.Span(overlay.meaning, className="key")]
    parts += [html.Span(words, **overlay.look(v, "tok")) for v, words in overlay.samples]
    parts.append(html.Span("tool text", className="tool-sample"))
    parts.append(html.Span("begins alike", className="same"))
    return html.P(parts, className="scale")
