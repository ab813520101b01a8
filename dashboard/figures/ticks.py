"""Where an axis begins and ends and what is written along it, by the rules of plotly.js, which
draws the same chart later (src/plots/cartesian/autorange.js and axes.js, release 4.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Range = tuple[float, float]

_FREE = 0.05  # of the axis, above and below the lines
_SI = {-9: "n", -6: "μ", -3: "m", 3: "k", 6: "M", 9: "G", 12: "T"}


@dataclass(frozen=True)
class Tick:
    """Where, as the axis counts (the exponent of ten on a logarithmic one), and what it says.

    `size`: of the text, relative to that of others; `power`: written above the text.
    """

    at: float
    text: str
    size: float = 1.0
    power: str = ""


def auto_range(lines: list[list[float]], length: int, log: bool, to_zero: bool = False) -> Range:
    """The range that shows all values of all lines; exponents of ten on a logarithmic axis.

    `length` of the axis in pixels; `to_zero`: from 0 on, if nothing lies below it.
    """
    known = np.concatenate([np.asarray(y, dtype=float) for y in lines] or [np.empty(0)])
    if log:
        known = np.log10(known[known > 0])
    if not len(known):
        return (0.0, 6.0) if log else (-1.0, 4.0)
    low, high = float(known.min()), float(known.max())
    free = _FREE * length
    if to_zero and low >= 0:
        return (0.0, high + high / (length - free) * free if high > 0 else 1.0)
    if low == high:
        return (low - 1, high + 1)
    pixel = (high - low) / (length - 2 * free)
    return (low - pixel * free, high + pixel * free)


def ticks(axis: dict[str, Any], seen: Range, most: float) -> list[Tick]:
    """The labels of an axis of a figure's layout over `seen`; about `most`, if it does not say."""
    if axis.get("tickmode") == "array":
        named = zip(axis["tickvals"], axis["ticktext"], strict=True)
        return [Tick(math.log10(value), text) for value, text in named]
    rough = (seen[1] - seen[0]) / axis.get("nticks", most)
    if axis.get("type") != "log":
        return [Tick(v, text) for v, text in _linear(seen, rough)]
    if rough > 0.7:
        every = math.ceil(rough)
        return [_decade(p) for p in range(math.ceil(seen[0]), math.floor(seen[1]) + 1, every)]
    if seen[1] - seen[0] < 1:
        low, high = 10 ** seen[0], 10 ** seen[1]
        n = 1.5 * (seen[1] - seen[0]) / rough
        found = _linear((low, high), (high - low) / n)
        return [Tick(math.log10(v), text) for v, text in found if v > 0]
    digits = (1, 2, 5) if rough > 0.3 else range(1, 10)
    found_all = [
        _decade(p) if d == 1 else Tick(p + math.log10(d), str(d), 0.75)
        for p in range(math.floor(seen[0]), math.ceil(seen[1]) + 1)
        for d in digits
    ]
    return [t for t in found_all if seen[0] <= t.at <= seen[1]]


def _decade(power: int) -> Tick:
    if power in (0, 1):
        return Tick(power, str(10**power), 1.25)
    return Tick(power, "10", 1.25, str(power).replace("-", "\u2212"))


def _linear(seen: Range, rough: float) -> list[tuple[float, str]]:
    """Multiples of 2, 5 or 10 times a power of ten, and their numbers."""
    base = 10.0 ** math.floor(math.log10(rough))
    every = base * next((m for m in (2, 5) if rough / base < m), 10)
    decimals = 2 - math.floor(math.log10(every) + 0.01)
    largest = math.floor(math.log10(max(abs(seen[0]), abs(seen[1]))) + 0.01)
    power = 3 * round((largest - 1) / 3) if abs(largest) > 3 else 0
    first, last = math.ceil(seen[0] / every - 1e-9), math.floor(seen[1] / every + 1e-9)
    return [(i * every, _number(i * every, power, decimals)) for i in range(first, last + 1)]


def _number(value: float, power: int, decimals: int) -> str:
    if abs(value) < 10.0 ** (-decimals) / 2:
        return "0"
    text = f"{abs(value) / 10.0**power:.{max(0, decimals + power)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    unit = _SI.get(power, f"e{power}") if power else ""
    return ("\u2212" if value < 0 else "") + text + unit
