"""Pieces of pictures as inline SVG: axes, lines, grids, texts.

Every mark has a `<title>`, which browsers show on hover and screen readers read. Colours of ground
and ink are the page's CSS variables, the others those of `palette`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..core.numbers import number

WIDTH, HEIGHT = 580, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 24, 24


class Axis:
    """Values onto a stretch of pixels."""

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


def svg(parts: Sequence[str], label: str, height: int = HEIGHT, width: int = WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" fill="none">'
        f"{''.join(parts)}</svg>"
    )


def steps(facts: Mapping[str, Any], start: float = LEFT, end: float = WIDTH - RIGHT) -> Axis:
    return Axis(facts["run"]["first_step"], facts["run"]["last_step"], start, end)


def path(steps: Sequence[int], values: Sequence[float], x: Axis, y: Axis) -> str:
    points = [(x(s), y(v)) for s, v in zip(steps, values, strict=True) if v > 0 or not y.log]
    if len(points) == 1:  # a lone point is a short stroke
        return f"M{points[0][0] - 2:g} {points[0][1]:g}h4"
    return "M" + "L".join(f"{a:g} {b:g}" for a, b in points) if points else ""


def text(x: float, y: float, text: str, anchor: str = "start", color: str = "var(--ink-2)") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{color}" text-anchor="{anchor}">{escape(text)}</text>'


def upward(values: Sequence[float], log: bool, zero: bool) -> Axis | None:
    """The axis of what was measured, with some room; `zero`: it shows 0 as well. None without
    values that can be shown: a logarithmic axis has no place for those up to 0."""
    shown = [math.log10(v) for v in values if v > 0] if log else list(values)
    shown += [0.0] if zero else []
    if not shown:
        return None
    room = (max(shown) - min(shown)) * 0.05
    return Axis(min(shown) - room, max(shown) + room, HEIGHT - BOTTOM, TOP, log)


def grid(x: Axis, y: Axis, zero: bool) -> list[str]:
    parts = []
    for tick in y.ticks(4):
        at = y(10**tick if y.log else tick)
        strong = "var(--zero)" if zero and tick == 0 else "var(--grid)"
        parts.append(f'<path d="M{LEFT} {at:g}H{WIDTH - RIGHT}" stroke="{strong}"/>')
        parts.append(text(LEFT - 6, at + 4, number(10**tick if y.log else tick, 4), "end"))
    for tick in x.ticks(8):
        if tick == int(tick):
            parts.append(text(x(tick), HEIGHT - 8, f"{tick:,.0f}", "middle"))
    return parts
