"""Signals over steps for a report: trailing means, thinned to a bounded number of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.charts import UNSMOOTHED
from ..core.schema import SIGNALS, signals_in
from ..diagnosis import detectors as d
from ..diagnosis.assess import Assessment
from ..diagnosis.evidence import SMOOTH, Rows

POINTS = 500  # points of a signal after thinning; extremes stay
OUTLINED = tuple(signals_in("outline"))
_REGISTRY = {c.name: c for c in SIGNALS.columns}
Curve = tuple[Rows, d.Series]  # steps and values of a signal in one run


@dataclass(frozen=True)
class Series:
    """A signal of one run at the steps that measured it: `n` of them before thinning. `mean` are
    trailing means over SMOOTH steps, or the values of what was set; `last` is the last of them."""

    unit: str
    meaning: str
    n: int
    first: float
    last: float
    step: list[int]
    value: list[float]
    mean: list[float]


@dataclass(frozen=True)
class AveragedSeries:
    """A signal over several runs: mean, lowest and highest of the trailing means of those `runs`
    that have measured the step."""

    unit: str
    meaning: str
    n: int
    last: float
    step: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    runs: list[int]


@dataclass(frozen=True)
class Outline:
    """Trailing means of a signal at the start, at its extremes, and at the end."""

    start: float
    end: float
    lowest: float
    lowest_step: int
    highest: float
    highest_step: int


@dataclass(frozen=True)
class StepRange:
    """Consecutive steps at which the same number of `runs` have rows."""

    start_step: int
    end_step: int
    runs: int


def series(
    step: Rows, values: d.Series, name: str, weights: d.Series | None = None
) -> Series | None:
    """A signal, thinned; None if it was never measured. `weights` are those of its mean."""
    rows = np.isfinite(values)
    if not rows.any():
        return None
    x, y = step[rows], values[rows]
    mean = _smooth_signal(y, name, None if weights is None else weights[rows])
    keep = _thinned(y)
    column = _REGISTRY[name]
    return Series(
        column.unit, column.meaning, len(y), float(y[0]), float(mean[-1]), x[keep].tolist(),
        _rounded(y[keep]), _rounded(mean[keep]),
    )  # fmt: skip


def _smooth_signal(values: d.Series, name: str, weights: d.Series | None = None) -> d.Series:
    return values if name in UNSMOOTHED else smooth(values, SMOOTH, weights)


def smooth(values: d.Series, window: int, weights: d.Series | None = None) -> d.Series:
    """Trailing mean over `window` steps, each with its weight; a step without a measurement stays
    without. Where no weight was measured, each step counts once."""
    if window <= 1:
        return values
    finite = np.where(np.isfinite(values), values, np.nan)
    if weights is None or not np.isfinite(weights).any():
        weights = np.ones(len(values))
    weights = np.where(np.isnan(finite), np.nan, weights)
    mean, weight = (d.trailing_mean(v, window, 1) for v in (finite * weights, weights))
    return np.where(np.isnan(finite), np.nan, mean / np.where(weight > 0, weight, np.nan))


def averaged(curves: Sequence[Curve], name: str) -> AveragedSeries | None:
    """A signal averaged over runs, step by step; None if it was never measured.

    Each run counts once, however many responses its step has.
    """
    means = []
    for step, values in curves:
        rows = np.isfinite(values)
        means.append((step[rows], _smooth_signal(values[rows], name)))
    steps = np.unique(np.concatenate([step for step, _ in means]))
    if not len(steps):
        return None
    table = np.full((len(means), len(steps)), np.nan)
    for row, (step, mean) in zip(table, means, strict=True):
        row[np.searchsorted(steps, step)] = mean
    runs = np.isfinite(table).sum(axis=0)
    mean = np.nansum(table, axis=0) / runs
    keep = _thinned(mean)
    low, high = np.nanmin(table, axis=0), np.nanmax(table, axis=0)
    column = _REGISTRY[name]
    return AveragedSeries(
        column.unit, column.meaning, len(steps), float(mean[-1]), steps[keep].tolist(),
        _rounded(mean[keep]), _rounded(low[keep]), _rounded(high[keep]), runs[keep].tolist(),
    )  # fmt: skip


def steps_with_rows(steps: Sequence[Rows]) -> list[StepRange]:
    """Ranges of steps with the number of runs that have rows there, given each run's steps.

    Steps at which no run has a row are in none.
    """
    every_step, runs = np.unique(np.concatenate([np.unique(s) for s in steps]), return_counts=True)
    breaks = np.flatnonzero((np.diff(runs) != 0) | (np.diff(every_step) > 1)) + 1
    return [
        StepRange(int(part[0]), int(part[-1]), int(many[0]))
        for part, many in zip(np.split(every_step, breaks), np.split(runs, breaks), strict=True)
        if len(part)
    ]


def outline(assessment: Assessment) -> Mapping[str, Outline]:
    """The course of the main signals in six numbers each."""
    e = assessment.evidence
    outlines: dict[str, Outline] = {}
    for name in OUTLINED:
        values = e.column(name)
        rows = np.flatnonzero(np.isfinite(values))
        if len(rows):
            mean = d.trailing_mean(values[rows], SMOOTH, min(SMOOTH, len(rows)))
            finite = np.flatnonzero(np.isfinite(mean))
            low, high = (finite[f(mean[finite])] for f in (np.argmin, np.argmax))
            outlines[name] = Outline(
                float(mean[finite[0]]), float(mean[finite[-1]]),
                float(mean[low]), int(e.step[rows[low]]),
                float(mean[high]), int(e.step[rows[high]]),
            )  # fmt: skip
    return outlines


def _rounded(values: d.Series) -> list[float]:
    return [float(f"{v:.5g}") for v in values]


def extremes(y: d.Series, first: int, last: int, most: int) -> tuple[Rows, int]:
    """Which of the points first … last − 1 to draw, at most `most`, and how many a bin has.

    Where there are more, the lowest and the highest of every 2, 4, 8 … points stay, in order, so
    that no peak is lost. Bins are counted from point 0: what is added to a run changes its last bin
    only, until there are twice as many points.
    """
    size = 1
    while _bins(first, last, size) * min(size, 2) > most:
        size *= 2
    if size == 1:
        return np.arange(first, last), size
    begin = first // size * size
    rows = np.full(_bins(first, last, size) * size, np.nan)
    rows[first - begin : last - begin] = y[first:last]
    bins = rows.reshape(-1, size)
    start = begin + size * np.arange(len(bins))
    ends = [np.nanargmin(bins, axis=1), np.nanargmax(bins, axis=1)]
    return np.unique(np.concatenate([start + end for end in ends])), size


def _bins(first: int, last: int, size: int) -> int:
    """Bins of `size` points, counted from point 0, that hold points first … last − 1."""
    return -(-last // size) - first // size


def _thinned(y: d.Series) -> Rows:
    return extremes(y, 0, len(y), POINTS)[0]
