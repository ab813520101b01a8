"""Columns of numbers made ready for a chart: smoothed, cut to the window, thinned, rounded."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lldscope import evidence
from lldscope.detectors import trailing_mean

MOST_POINTS = 2000  # drawn per line; more would cost time and show nothing new

Numbers = NDArray[np.float64]

_TIME_UNITS = ((180.0, 1.0, "s"), (10_800.0, 60.0, "min"), (np.inf, 3600.0, "h"))
_COUNT_UNITS = ((2e4, 1.0, ""), (2e7, 1e3, "thousand"), (np.inf, 1e6, "million"))


@dataclass(frozen=True)
class XAxis:
    """What the x axis counts (`step`, `tokens` or `time`), its title, scale and extent."""

    by: str
    title: str
    divide: float
    extent: tuple[float, float]


@dataclass(frozen=True)
class Thinned:
    """Points to draw, and how many there were before thinning and how many were not finite."""

    x: list[float]
    y: list[float]
    total: int
    not_finite: int


def floats(table: pd.DataFrame, column: str) -> Numbers:
    """A column as floats, NaN where nothing was measured; all NaN if the table lacks it."""
    if column not in table:
        return np.full(len(table), np.nan)
    return evidence.floats(table, column)


def raw_positions(table: pd.DataFrame, by: str) -> Numbers:
    """Steps, tokens seen, or seconds since the first row."""
    if by == "step":
        return floats(table, "step")
    if by == "tokens":
        return floats(table, "tokens_seen")
    seconds = floats(table, "time")
    known = seconds[~np.isnan(seconds)]
    return seconds - (known[0] if len(known) else 0.0)


def x_axis(tables: list[pd.DataFrame], by: str) -> XAxis:
    """One axis for all tables, in the unit that suits the longest."""
    values = np.concatenate([raw_positions(t, by) for t in tables] or [np.empty(0)])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    divide, title = 1.0, "step"
    if by == "time":
        _, divide, unit = next(u for u in _TIME_UNITS if high <= u[0])
        title = f"time since the first row ({unit})"
    elif by == "tokens":
        _, divide, unit = next(u for u in _COUNT_UNITS if high <= u[0])
        title = f"tokens trained on ({unit})" if unit else "tokens trained on"
    low, high = low / divide, high / divide
    return XAxis(by, title, divide, (low, high if high > low else low + 1.0))


def positions(table: pd.DataFrame, axis: XAxis) -> Numbers:
    """Where the rows of a table lie on the axis."""
    return raw_positions(table, axis.by) / axis.divide


def at_steps(table: pd.DataFrame, axis: XAxis, steps: list[float]) -> list[float]:
    """Where steps lie on the axis; between and beyond rows by the nearest ones."""
    x, step = positions(table, axis), floats(table, "step")
    known = np.isfinite(x)
    if not known.any():
        return [axis.extent[0]] * len(steps)
    return [float(v) for v in np.interp(steps, step[known], x[known])]


def smooth(values: Numbers, window: int) -> Numbers:
    """Trailing mean over `window` steps; a step without a measurement stays without."""
    if window <= 1:
        return values
    finite = np.where(np.isfinite(values), values, np.nan)
    return np.where(np.isnan(finite), np.nan, trailing_mean(finite, window, 1))


def thin(x: Numbers, y: Numbers, window: tuple[float, float] | None = None) -> Thinned:
    """Measured points within the window (and one beyond each end), at most MOST_POINTS of them.

    Thinning keeps the lowest and the highest point of each of MOST_POINTS / 2 bins, in order, so
    that no peak is lost.
    """
    measured = ~np.isnan(y) & np.isfinite(x)
    x, y = x[measured], y[measured]
    order = np.argsort(x, kind="stable")  # a clock may have jumped back
    x, y = x[order], y[order]
    if window is not None and len(x):
        first = max(int(np.searchsorted(x, window[0])) - 1, 0)
        last = int(np.searchsorted(x, window[1], side="right")) + 1
        x, y = x[first:last], y[first:last]
    finite = np.isfinite(y)
    lost = int(np.count_nonzero(~finite))
    x, y = x[finite], y[finite]
    keep = _extremes(y) if len(y) > MOST_POINTS else slice(None)
    return Thinned(_short(x[keep], 7), _short(y[keep], 5), len(y), lost)


def _extremes(y: Numbers) -> NDArray[np.int64]:
    """Positions of the minimum and the maximum of each bin, ascending."""
    edges = np.linspace(0, len(y), MOST_POINTS // 2 + 1).astype(np.int64)
    bins = list(pairwise(edges))
    low = [a + int(np.argmin(y[a:b])) for a, b in bins]
    high = [a + int(np.argmax(y[a:b])) for a, b in bins]
    return np.unique(np.array(low + high, dtype=np.int64))


def _short(values: Numbers, digits: int) -> list[float]:
    """The numbers with so many significant digits, which is what a chart can show."""
    size = np.floor(np.log10(np.maximum(np.abs(values), 1e-300)))
    scale = 10.0 ** np.clip(digits - 1 - size, -300, 300)
    rounded = (np.round(values * scale) / scale).tolist()
    return [int(v) if v == int(v) and abs(v) < 1e15 else v for v in rounded]
