"""Signals over steps for a report: trailing means, thinned to a bounded number of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..core.charts import UNSMOOTHED
from ..core.schema import SIGNALS, signals_in
from ..diagnosis import detectors as d
from ..diagnosis.assess import Assessment
from ..diagnosis.evidence import SMOOTH, Rows
from ..figures.averages import spread_of
from ..figures.series import extremes, smooth, x_axis

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
    )


def _smooth_signal(values: d.Series, name: str, weights: d.Series | None = None) -> d.Series:
    return values if name in UNSMOOTHED else smooth(values, SMOOTH, weights)


def averaged(curves: Sequence[Curve], name: str) -> AveragedSeries | None:
    """A signal averaged over runs, step by step; None if it was never measured.

    Each run counts once, however many responses its step has.
    """
    rows = [(step, values, np.isfinite(values)) for step, values in curves]
    tables = [pd.DataFrame({"step": step[finite]}) for step, _, finite in rows]
    means = [_smooth_signal(values[finite], name) for _, values, finite in rows]
    of = spread_of(tables, means, x_axis(tables, "step"))
    if not len(of.x):
        return None
    keep, column = _thinned(of.mean), _REGISTRY[name]
    mean, low, high = (_rounded(values[keep]) for values in (of.mean, of.low, of.high))
    return AveragedSeries(
        column.unit, column.meaning, len(of.x), float(of.mean[-1]),
        of.x[keep].astype(int).tolist(), mean, low, high, of.runs[keep].astype(int).tolist(),
    )


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
            )
    return outlines


def _rounded(values: d.Series) -> list[float]:
    return [float(f"{v:.5g}") for v in values]


def _thinned(y: d.Series) -> Rows:
    return extremes(y, 0, len(y), POINTS)[0]
