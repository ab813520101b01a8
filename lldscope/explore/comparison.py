"""The same signals of several runs side by side, at matching points.

Values are trailing means over the last ten measured steps. Without a spacing, the points are the
start, the best reward and the end of each run. With a spacing, they are positions on a common axis:
steps, tokens trained on, or steps since the run's own likelihood began to fall.

`diff` finds the step from which one run differs from another by more than the other's noise. The
noise of a signal is its movement from step to step or around its running median, whichever is
larger. The difference is tested over the last 1, 2, 4 and 8 steps. The limit calls a share of ALPHA
of pairs different, by a signal, that differ by Gaussian noise alone. The named step is the most
likely beginning of the difference that exceeded the limit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import UsageError
from ..core.schema import SIGNALS, UNITS, signals_in
from ..diagnosis import detectors as d
from ..diagnosis.assess import Assessment
from ..diagnosis.evidence import SMOOTH, floats
from ..diagnosis.registry import Rule
from ..monitor.health import check
from ..runs import Run
from .settings import differing, flat

COMPARE_SCHEMA = 1
MOST_RUNS = 20
MOST_POINTS = 1000
COMPARED = tuple(signals_in("compare"))


def compare(
    runs: Sequence[Run],
    align: str = "step",
    every: float | None = None,
    signals: Sequence[str] | None = None,
    arl: float | None = None,
    rules: Sequence[Rule] | None = None,
) -> dict[str, Any]:
    """Runs as plain data: verdicts, phases, alarms, and each signal at matched points.

    `every` is the spacing of the points in the unit of `align`. `signals` are by default the
    signals in COMPARED that a run has measured. A value is None before the run began, after it
    ended, or before it measured the signal. `differences` are differences from the first run.
    `estimators` say how a number differs from lldscope's own measurement; None if it does not.
    Raises UsageError for too many runs or points, and for a name that is no signal.
    """
    if len(runs) > MOST_RUNS:
        raise UsageError(f"{len(runs)} runs are too many to compare; {MOST_RUNS} are the most.")
    if unknown := [name for name in signals or () if name not in UNITS]:
        raise UsageError(f"There is no signal {unknown[0]}; `lldscope schema` names them.")
    assessments = [run.assess(arl, rules) for run in runs]
    at = [_positions(a, align) for a in assessments]
    points: list[Any] = ["start", "best", "end"] if every is None else _grid(at, every)
    rows = [
        _landmarks(a) if every is None else [row_at(x, p) for p in points]
        for a, x in zip(assessments, at, strict=True)
    ]
    estimators = [run.estimators() for run in runs]
    rows_by_signal = []
    for name in COMPARED if signals is None else signals:
        columns = [means_at(a, name, r) for a, r in zip(assessments, rows, strict=True)]
        values = [list(of_point) for of_point in zip(*columns, strict=True)]
        if signals is None and all(v is None for column in columns for v in column):
            continue
        rows_by_signal.append({
            "signal": name, "unit": UNITS[name], "values": values,
            "differences": [
                [None if v is None or of[0] is None else v - of[0] for v in of] for of in values
            ],
            "estimators": [of.get(name) for of in estimators],
        })
    often = Counter(run.name for run in runs)
    labels = [run.name if often[run.name] == 1 else run.place for run in runs]
    return {
        "schema": COMPARE_SCHEMA,
        "align": align,
        "every": every,
        "points": points,
        "runs": [_about(*one, rules) for one in zip(labels, runs, assessments, strict=True)],
        "signals": rows_by_signal,
    }


def _about(
    label: str, run: Run, assessment: Assessment, rules: Sequence[Rule] | None
) -> dict[str, Any]:
    state = check(run, assessment.arl, rules)
    names = ("id", "path", "verdict", "evidence", "phase", "last_step", "life")
    return {
        "label": label,
        "verdict_word": state.sign.word,
        **{name: getattr(state, name) for name in names},
        "phases": [asdict(span) for span in state.phases],
        "onset": assessment.account.likelihood_fell,
        "alerts": [
            {"rule": a.rule, "severity": a.severity, "state": a.state, "step": a.first_step}
            for a in state.alerts
        ],
    }


def _positions(assessment: Assessment, align: str) -> d.Series:
    """Positions of the rows on the common axis; NaN where the run has none."""
    if align == "tokens":
        return assessment.evidence.column("tokens_seen")
    step = assessment.evidence.step.astype(float)
    if align == "onset":
        fall = assessment.account.likelihood_fell
        return step - (np.nan if fall is None else fall)
    return step


def _grid(at: Sequence[d.Series], every: float) -> list[float]:
    """Multiples of the spacing from the first to the last row of any run."""
    finite = np.concatenate([x[np.isfinite(x)] for x in at] or [np.empty(0)])
    if not len(finite):
        return []
    first, last = np.ceil(finite.min() / every), np.floor(finite.max() / every)
    if last - first >= MOST_POINTS:
        raise UsageError(f"That makes {last - first + 1:,.0f} points; take a larger --every.")
    return [float(i * every) for i in np.arange(first, last + 1)]


def _landmarks(assessment: Assessment) -> list[int | None]:
    """Rows of the start (of the first mean of ten steps), the best reward and the end."""
    e = assessment.evidence
    if not len(e.step):
        return [None, None, None]
    finite = np.isfinite(e.reward)
    best = int(np.nanargmax(e.reward)) if finite.any() else None
    return [min(SMOOTH, len(e.step)) - 1, best, len(e.step) - 1]


def row_at(at: d.Series, point: float) -> int | None:
    """The last row at or before the point; None if the point is outside of the run."""
    if not np.isfinite(at).any() or point > np.nanmax(at):
        return None
    before = np.flatnonzero(at <= point)
    return int(before[-1]) if len(before) else None


def means_at(assessment: Assessment, name: str, rows: Sequence[int | None]) -> list[float | None]:
    """Mean of the last measured values up to each row."""
    values = assessment.evidence.column(name)
    finite = np.flatnonzero(np.isfinite(values))
    means: list[float | None] = []
    for row in rows:
        last = finite[: 0 if row is None else int(np.searchsorted(finite, row, "right"))]
        means.append(float(values[last[-SMOOTH:]].mean()) if len(last) else None)
    return means


# -- where one run differs from another ------------------------------------------------------------

DIFF_SCHEMA = 1
ALPHA = 0.01
WINDOWS = (1, 2, 4, 8)  # steps
LEAST = 8  # steps that both have measured
AROUND = 11  # steps of the running median
NOT_COMPARED = frozenset(signals_in("apart"))


@dataclass(frozen=True)
class Divergence:
    """A signal in two runs. From `step` on the second run differs by more than the noise of the
    first. `first` and `second` are the means of both from `step` to the step where this is certain;
    `sigmas` is the difference of the means in standard deviations of noise. All are None without
    such a step; `sigmas` also if the first run has no noise. `differs` is the first step with
    unequal values."""

    signal: str
    unit: str
    differs: int | None
    step: int | None
    first: float | None
    second: float | None
    noise: float
    sigmas: float | None


def sentence(first: str, second: str, steps: Sequence[tuple[str, int | None]]) -> str:
    """The differences of two runs of these names, in a sentence; `steps`: the step of each
    divergence, by signal."""
    pairs = [(name, step) for name, step in steps if step is not None]
    if not steps:
        return "No signal was measured at eight steps of both."
    if not pairs:
        return f"{second} stays within the noise of {first} in all {len(steps)} signals."
    name, step = pairs[0]
    return (
        f"{second} differs from {first} by more than its noise from step {step:,} on, first in "
        f"{name}; {len(pairs)} of {len(steps)} signals differ."
    )


def divergences(a: pd.DataFrame, b: pd.DataFrame) -> list[Divergence]:
    """Each signal that both runs have measured. Signals that differ come first, in the order of
    their steps."""
    both = a.merge(b, on="step", suffixes=("", "_b")).sort_values("step", ignore_index=True)
    results = []
    for column in SIGNALS.columns:
        if column.name in NOT_COMPARED or not {column.name} <= {*a} & {*b}:
            continue
        x, y = floats(both, column.name), floats(both, f"{column.name}_b")
        finite = np.isfinite(x) & np.isfinite(y)
        if np.count_nonzero(finite) >= LEAST:
            step = both["step"].to_numpy()[finite]
            results.append(_compared(column.name, column.unit, step, x[finite], y[finite]))
    return sorted(results, key=lambda one: (one.step is None, one.step, -(one.sigmas or 0)))


def _compared(name: str, unit: str, step: d.Series, x: d.Series, y: d.Series) -> Divergence:
    noise = _noise(x)
    unequal = np.flatnonzero(~np.isclose(x, y, rtol=1e-9, atol=0.0))
    differs = int(step[unequal[0]]) if len(unequal) else None
    scale = max(math.sqrt(2) * noise, 1e-9 * float(np.abs(x).max()), 1e-300)
    z = (y - x) / scale
    row = _first(z)
    if row is None:
        return Divergence(name, unit, differs, None, None, None, noise, None)
    start = _beginning(z, row)
    after = slice(start, row + 1)
    means = float(x[after].mean()), float(y[after].mean())
    sigmas = float(abs(z[after].mean())) if noise > 0 else None
    return Divergence(name, unit, differs, int(step[start]), *means, noise, sigmas)


def _noise(x: d.Series) -> float:
    """The standard deviation of a signal around its own course, robust against its jumps."""
    steps = float(np.median(np.abs(np.diff(x)))) / math.sqrt(2)
    half = AROUND // 2
    series = np.pad(x, half, mode="edge")
    medians = np.median(np.lib.stride_tricks.sliding_window_view(series, AROUND), axis=1)
    return max(steps, float(np.median(np.abs(x - medians)))) / d.MEDIAN_OF_NORMAL


def _first(z: d.Series) -> int | None:
    """The first row at which a mean of the last steps is beyond the limit."""
    limit = NormalDist().inv_cdf(1 - ALPHA / (2 * len(z) * len(WINDOWS)))
    over = np.zeros(len(z), dtype=bool)
    for window in WINDOWS:
        over |= np.abs(d.trailing_mean(z, window, window)) * math.sqrt(window) > limit
    return int(np.flatnonzero(over)[0]) if over.any() else None


def _beginning(z: d.Series, row: int) -> int:
    """The row from which the difference, up to this row, exceeds the noise most."""
    back = np.cumsum(z[row::-1][: WINDOWS[-1]])
    return row - int(np.argmax(np.abs(back) / np.sqrt(np.arange(1, len(back) + 1))))


def diff(a: Run, b: Run) -> dict[str, Any]:
    """Two runs as plain data: the settings that differ, and the step from which each signal
    differs."""
    configs = [flat(run.info.get("config")) for run in (a, b)]
    return {
        "schema": DIFF_SCHEMA,
        "runs": [{"run": run.name, "id": run.info.get("id"), "path": run.place} for run in (a, b)],
        "settings": [{"setting": k, "values": v} for k, v in differing(configs)],
        "signals": [asdict(one) for one in divergences(a.signals(), b.signals())],
    }
