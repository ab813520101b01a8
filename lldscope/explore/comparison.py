"""The same signals of several runs side by side, at points that correspond to each other.

Values are trailing means over the last ten measured steps. Without a spacing, the points are each
run's own start, best reward and end; with one, positions on a common axis: steps, tokens trained
on, or steps since the run's own likelihood began to fall.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.schema import SIGNALS, signals_in
from ..diagnosis import detectors as d
from ..diagnosis.assess import Assessment
from ..diagnosis.changepoints import Boundary, refine
from ..diagnosis.evidence import SMOOTH
from ..diagnosis.registry import Rule
from ..monitor.health import check
from ..runs import Run

COMPARE_SCHEMA = 1
MOST_RUNS = 20
MOST_POINTS = 1000
COMPARED = tuple(signals_in("compare"))
_UNITS = {c.name: c.unit for c in SIGNALS.columns}


def compare(
    runs: Sequence[Run],
    align: str = "step",
    every: float | None = None,
    signals: Sequence[str] = COMPARED,
    arl: float | None = None,
    rules: Sequence[Rule] | None = None,
) -> dict[str, Any]:
    """Runs as plain data: verdicts, phases, alarms, and each signal at matched points.

    `every` is the spacing of the points in the unit of `align`. A value is None where the run was
    not there, or had not measured the signal yet. `differences` are to the first run. Raises
    UsageError for too many runs or points, and for a name that is no signal.
    """
    if len(runs) > MOST_RUNS:
        raise UsageError(f"{len(runs)} runs are too many to compare; {MOST_RUNS} are the most.")
    if unknown := [name for name in signals if name not in _UNITS]:
        raise UsageError(f"There is no signal {unknown[0]}; `lldscope schema` names them.")
    assessments = [run.assess(arl, rules) for run in runs]
    onsets = [onset(a, refine(a)) for a in assessments]
    at = [_positions(a, align, onset) for a, onset in zip(assessments, onsets, strict=True)]
    points: list[Any] = ["start", "best", "end"] if every is None else _grid(at, every)
    rows = [
        _landmarks(a) if every is None else [row_at(x, p) for p in points]
        for a, x in zip(assessments, at, strict=True)
    ]
    rows_by_signal = []
    for name in signals:
        columns = [means_at(a, name, r) for a, r in zip(assessments, rows, strict=True)]
        values = [list(of_point) for of_point in zip(*columns, strict=True)]
        rows_by_signal.append({
            "signal": name, "unit": _UNITS[name], "values": values,
            "differences": [[_minus(v, of[0]) for v in of] for of in values],
        })
    return {
        "schema": COMPARE_SCHEMA,
        "align": align,
        "every": every,
        "points": points,
        "runs": [
            _about(*one, rules)
            for one in zip(_labels(runs), runs, assessments, onsets, strict=True)
        ],
        "signals": rows_by_signal,
    }


def _about(
    label: str, run: Run, assessment: Assessment, onset: int | None, rules: Sequence[Rule] | None
) -> dict[str, Any]:
    state = check(run, assessment.arl, rules)
    names = ("id", "path", "verdict", "evidence", "phase", "last_step", "life")
    return {
        "label": label,
        "verdict_word": state.sign.word,
        **{name: getattr(state, name) for name in names},
        "phases": [asdict(span) for span in state.phases],
        "onset": onset,
        "alerts": [
            {"rule": a.rule, "severity": a.severity, "state": a.state, "step": a.first_step}
            for a in state.alerts
        ],
    }


def _labels(runs: Sequence[Run]) -> list[str]:
    """Names, or places where two runs have the same one."""
    often = Counter(run.name for run in runs)
    return [run.name if often[run.name] == 1 else run.place for run in runs]


def onset(assessment: Assessment, boundaries: Sequence[Boundary]) -> int | None:
    """Where the likelihood began to fall: with hindsight (`refine`), or else as seen live."""
    onsets = [b.step for b in boundaries]
    onsets += [s.start_step for s in assessment.spans() if s.phase in ("decay", "collapse")]
    return onsets[0] if onsets else None


def _positions(assessment: Assessment, align: str, onset: int | None) -> d.Series:
    """Positions of the rows on the common axis; NaN where the run has none."""
    if align == "tokens":
        return assessment.evidence.column("tokens_seen")
    step = assessment.evidence.step.astype(float)
    if align == "onset":
        return step - (np.nan if onset is None else onset)
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
    """Rows of the start, the best reward and the end; the means at the start need ten steps."""
    e = assessment.evidence
    if not len(e.step):
        return [None, None, None]
    finite = np.isfinite(e.reward)
    best = int(np.nanargmax(e.reward)) if finite.any() else None
    return [min(SMOOTH, len(e.step)) - 1, best, len(e.step) - 1]


def row_at(at: d.Series, point: float) -> int | None:
    """The last row at or before the point; None outside of the run."""
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


def _minus(value: float | None, first: float | None) -> float | None:
    return None if value is None or first is None else value - first
