"""Δ as colour, as the side and strength of a bar, and as text."""

from __future__ import annotations

import math
from typing import Any

from lldscope.core import palette
from lldscope.core.numbers import signed

STRONG_TOKEN = 2.0  # nats that a token must lose or gain for the full colour
FAINT = 0.05  # nats below which a token stays plain
COLORS = {"--lost": palette.VERMILLION, "--gained": palette.BLUE}  # of a page's frame


def tint(delta: float | None, strong: float, *names: str, faint: float = 0.0) -> dict[str, Any]:
    """Classes (`names`, then lost or gained, then heavy) and style of a token or action: a bar
    below if it lost likelihood, above if it gained."""
    classes = [name for name in names if name]
    if delta is None or math.isnan(delta) or abs(delta) < faint or delta == 0:
        return {"className": " ".join(classes)}
    share = min(1.0, abs(delta) / strong)
    classes += ["lost" if delta < 0 else "gained", *(["heavy"] if share >= 0.5 else [])]
    return {"className": " ".join(classes), "style": {"--w": f"{round(12 + 58 * share)}%"}}


def nats(value: float | None, not_finite: str | None = None) -> str:
    """A Δ as text; `not_finite` is the recorded value where it is not finite."""
    if not_finite is not None:
        return not_finite
    if value is None:
        return "–"
    return "0" if value == 0 else signed(value)
