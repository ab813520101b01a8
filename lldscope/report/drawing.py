"""Parts of pictures as inline SVG: axes, lines, grids, labels.

Every mark has a `<title>`, which browsers show on hover and screen readers read. Background and ink
are CSS variables of the page, the other colours those of `palette`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH = 580
LEFT, RIGHT = 56, 12


class Axis:
    """Maps values to a range of pixels."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = False):
        if high <= low:
            low, high = low - 0.5, high + 0.5
        self.low, self.high, self.start, self.end, self.log = low, high, start, end, log

    def __call__(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int) -> list[float]:
        step = 10 ** math.floor(math.log10((self.high - self.low) / count))
        step *= next(m for m in (1, 2, 5, 10) if (self.high - self.low) / (m * step) <= count)
        step = max(1, step) if self.log else step
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [round(i * step, 10) for i in range(first, last + 1)]


def svg(parts: Sequence[str], title: str, height: int, width: int = WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" fill="none">'
        f"{''.join(parts)}</svg>"
    )


def path(steps: Sequence[float], values: Sequence[float], x: Axis, y: Axis) -> str:
    points = [(x(s), y(v)) for s, v in zip(steps, values, strict=True) if v > 0 or not y.log]
    if len(points) == 1:  # a short stroke, or it could not be seen
        return f"M{points[0][0] - 2:g} {points[0][1]:g}h4"
    return "M" + "L".join(f"{a:g} {b:g}" for a, b in points) if points else ""


def label(
    x: float, y: float, text: str, anchor: str = "start", color: str = "var(--ink-2)",
    size: float = 12,
) -> str:
    style = "" if size == 12 else f' style="font-size:{size:g}px"'
    place = f'x="{x:g}" y="{y:g}" fill="{color}" text-anchor="{anchor}"{style}'
    return f"<text {place}>{escape(text)}</text>"


def vertical_range(
    values: Sequence[float], axis: Mapping[str, Any]
) -> tuple[tuple[float, float], bool]:
    """Ends of a figure's vertical axis, and whether they are powers of ten: what the figure says,
    or else all values with a margin, without what cannot be, and with 0 where it belongs."""
    log = axis.get("type") == "log"
    if "range" in axis:
        return axis["range"], log
    points = [math.log10(v) for v in values if v > 0] if log else list(values)
    points += [0.0] if axis.get("zeroline") or axis.get("rangemode") == "tozero" else []
    low, high = min(points), max(points)
    margin = (high - low) * 0.05
    if axis.get("rangemode") in ("nonnegative", "tozero") and not log:
        return (max(low - margin, 0.0), high + margin if high > 0 else 1.0), log
    return (low - margin, high + margin), log


def step_ticks(x: Axis, count: int, y: float) -> list[str]:
    """Labels of whole steps below a picture."""
    return [
        label(x(tick), y, f"{tick:,.0f}", "middle") for tick in x.ticks(count) if tick == int(tick)
    ]
