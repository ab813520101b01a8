"""Columns of numbers made ready for a chart or sparkline: smoothed, cut, thinned, rounded."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..diagnosis import evidence
from ..diagnosis.detectors import trailing_mean
from ..monitor.summary import extremes

MOST_POINTS = 2000  # drawn per line; more would cost time and show nothing new

Numbers = NDArray[np.float64]

_TIME_UNITS = ((180.0, 1.0, "s"), (10_800.0, 60.0, "min"), (np.inf, 3600.0, "h"))
_COUNT_UNITS = ((2e4, 1.0, ""), (2e7, 1e3, "thousand"), (np.inf, 1e6, "million"))


@dataclass(frozen=True)
class XAxis:
    """The unit of the x axis (see `raw_positions`), its title, scale and extent."""

    by: str
    title: str
    divide: float
    extent: tuple[float, float]

    def shown(self, zoom: tuple[float, float] | None) -> tuple[float, float] | None:
        """A range of steps, tokens or seconds in the unit of the axis."""
        return None if zoom is None else (zoom[0] / self.divide, zoom[1] / self.divide)


@dataclass(frozen=True)
class Thinned:
    """Points to draw, the number of points before thinning, and the number of non-finite ones."""

    x: list[float]
    y: list[float]
    total: int
    not_finite: int


def trace(points: Thinned, name: str, color: str, width: float, dash: str) -> dict[str, Any]:
    """A line of a Plotly figure."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": points.x,
        "y": points.y,
        "yaxis": "y",
        "opacity": 1.0,
        "line": {"color": color, "width": width, "dash": dash},
        "hovertemplate": "%{y:,.4~r}",
        "hoverinfo": "all",
    }


def floats(table: pd.DataFrame, column: str) -> Numbers:
    """A column as floats, NaN where nothing was measured; all NaN if the table lacks it."""
    if column not in table:
        return np.full(len(table), np.nan)
    return evidence.floats(table, column)


def raw_positions(table: pd.DataFrame, by: str) -> Numbers:
    """Steps, tokens seen, seconds since the first row, or steps since the onset of decay (a column
    of the table)."""
    if by != "time":
        return floats(table, "tokens_seen" if by == "tokens" else by)
    seconds = floats(table, "time")
    clock = seconds[~np.isnan(seconds)]
    return seconds - (clock[0] if len(clock) else 0.0)


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
    elif by == "onset":
        title = "steps since decay began, as judged live"
    low, high = low / divide, high / divide
    return XAxis(by, title, divide, (low, high if high > low else low + 1.0))


def positions(table: pd.DataFrame, axis: XAxis) -> Numbers:
    """Positions of a table's rows on the axis."""
    return raw_positions(table, axis.by) / axis.divide


def at_steps(table: pd.DataFrame, axis: XAxis, steps: list[float]) -> list[float]:
    """Positions of steps on the axis; other steps use the nearest rows."""
    x, step = positions(table, axis), floats(table, "step")
    finite = np.isfinite(x)
    if not finite.any():
        return [axis.extent[0]] * len(steps)
    return [float(v) for v in np.interp(steps, step[finite], x[finite])]


def thin(
    x: Numbers, y: Numbers, window: tuple[float, float] | None = None, most: int = MOST_POINTS
) -> Thinned:
    """Measured points within the window (and one beyond each end), at most `most` of them."""
    mask = ~np.isnan(y) & np.isfinite(x)
    x, y = x[mask], y[mask]
    if not (x[1:] >= x[:-1]).all():
        order = np.argsort(x, kind="stable")  # a clock may have jumped back
        x, y = x[order], y[order]
    if window is not None:
        first = max(int(np.searchsorted(x, window[0])) - 1, 0)
        last = int(np.searchsorted(x, window[1], side="right")) + 1
        x, y = x[first:last], y[first:last]
    finite = np.isfinite(y)
    x, y, n_invalid = x[finite], y[finite], int(np.count_nonzero(~finite))
    rows = extremes(y, most)
    return Thinned(_short(x[rows], 7), _short(y[rows], 5), len(y), n_invalid)


def smooth(values: Numbers, window: int, weights: Numbers | None = None) -> Numbers:
    """Weighted trailing mean over `window` steps; steps without a measurement stay empty. Without
    any weight, each step counts once."""
    if window <= 1:
        return values
    finite = np.where(np.isfinite(values), values, np.nan)
    if weights is None or not np.isfinite(weights).any():
        weights = np.ones(len(values))
    weights = np.where(np.isnan(finite), np.nan, weights)
    mean, weight = (trailing_mean(v, window, 1) for v in (finite * weights, weights))
    return np.where(np.isnan(finite), np.nan, mean / np.where(weight > 0, weight, np.nan))


def _short(values: Numbers, digits: int) -> list[float]:
    """The numbers rounded to so many significant digits: a chart shows no more."""
    size = np.floor(np.log10(np.maximum(np.abs(values), 1e-300)))
    scale = 10.0 ** np.clip(digits - 1 - size, -300, 300)
    rounded = (np.round(values * scale) / scale).tolist()
    return [int(v) if v == int(v) and abs(v) < 1e15 else v for v in rounded]


def make_sparkline(
    points: Sequence[tuple[float, float]], color: str, width: int = 120, height: int = 28
) -> str:
    """A small picture of a line as a data URI; empty if it has fewer than two points."""
    if len(points) < 2:
        return ""
    xs, ys = np.array(points, dtype=float).T
    spread = float(np.ptp(ys)) or 1.0
    px = 2 + (width - 4) * (xs - xs[0]) / (float(xs[-1] - xs[0]) or 1.0)
    py = height - 3 - (height - 6) * (ys - ys.min()) / spread
    path = " ".join(f"{a:.0f},{b:.1f}" for a, b in zip(px, py, strict=True))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
        f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5" '
        f'stroke-linejoin="round"/><circle cx="{px[-1]:.1f}" cy="{py[-1]:.1f}" r="2" '
        f'fill="{color}"/></svg>'
    )
    return "data:image/svg+xml;base64," + b64encode(svg.encode()).decode()
