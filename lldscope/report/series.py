"""Signals over steps as a report keeps them: thinned, with their trailing means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..alarms.assess import Assessment
from ..core.schema import SIGNALS
from ..signals import detectors as d
from ..signals.evidence import SMOOTH

POINTS = 500  # of a signal that a report keeps; extremes stay
_UNITS = {c.name: (c.unit, c.meaning) for c in SIGNALS.columns}


def series(step: Any, values: d.Series, name: str) -> dict[str, Any] | None:
    """A signal: measured steps, values and trailing means over SMOOTH steps, thinned; None if it
    was never measured. `n` is how many there were."""
    rows = np.isfinite(values)
    if not rows.any():
        return None
    x, y = step[rows], values[rows]
    mean = d.trailing_mean(y, SMOOTH, 1)
    keep = _kept(y)
    unit, meaning = _UNITS[name]
    return {
        "unit": unit,
        "meaning": meaning,
        "n": len(y),
        "first": float(y[0]),
        "last": float(mean[-1]),
        "step": x[keep].tolist(),
        "value": [float(f"{v:.5g}") for v in y[keep]],
        "mean": [float(f"{v:.5g}") for v in mean[keep]],
    }


def averaged(curves: Sequence[tuple[Any, d.Series]], name: str) -> dict[str, Any] | None:
    """A signal over several runs, each given by steps and values: at every step that a run has
    measured, the mean, lowest and highest of the runs' trailing means, and the number of `runs`.

    Each run counts once, however many responses its step has. None if it was never measured.
    """
    means = []
    for step, values in curves:
        rows = np.isfinite(values)
        means.append((step[rows], d.trailing_mean(values[rows], SMOOTH, 1)))
    steps = np.unique(np.concatenate([step for step, _ in means]))
    if not len(steps):
        return None
    table = np.full((len(means), len(steps)), np.nan)
    for row, (step, mean) in zip(table, means, strict=True):
        row[np.searchsorted(steps, step)] = mean
    runs = np.isfinite(table).sum(axis=0)
    mean = np.nansum(table, axis=0) / runs
    keep = _kept(mean)
    unit, meaning = _UNITS[name]
    told = {"mean": mean, "low": np.nanmin(table, axis=0), "high": np.nanmax(table, axis=0)}
    return {
        "unit": unit,
        "meaning": meaning,
        "n": len(steps),
        "last": float(mean[-1]),
        "step": steps[keep].tolist(),
        **{key: [float(f"{v:.5g}") for v in y[keep]] for key, y in told.items()},
        "runs": runs[keep].tolist(),
    }


def carried(steps: Sequence[Any]) -> list[dict[str, int]]:
    """Stretches of steps with the number of `runs` that have rows there, given each run's steps.

    Steps at which no run has a row are in none.
    """
    known, runs = np.unique(np.concatenate([np.unique(s) for s in steps]), return_counts=True)
    breaks = np.flatnonzero((np.diff(runs) != 0) | (np.diff(known) > 1)) + 1
    return [
        {"start_step": int(part[0]), "end_step": int(part[-1]), "runs": int(many[0])}
        for part, many in zip(np.split(known, breaks), np.split(runs, breaks), strict=True)
        if len(part)
    ]


def outline(assessment: Assessment) -> dict[str, Any]:
    """Of the main signals: trailing mean at the start, at its best, and at the end."""
    e = assessment.evidence
    found: dict[str, Any] = {}
    for name in ("reward", "correct_logp", "delta_correct", "entropy", "grad_norm"):
        values = e.column(name)
        rows = np.flatnonzero(np.isfinite(values))
        if len(rows):
            mean = d.trailing_mean(values[rows], SMOOTH, min(SMOOTH, len(rows)))
            sound = np.flatnonzero(np.isfinite(mean))
            low, high = (sound[f(mean[sound])] for f in (np.argmin, np.argmax))
            found[name] = {
                "start": float(mean[sound[0]]), "end": float(mean[sound[-1]]),
                "lowest": float(mean[low]), "lowest_step": int(e.step[rows[low]]),
                "highest": float(mean[high]), "highest_step": int(e.step[rows[high]]),
            }  # fmt: skip
    return found


def _kept(y: d.Series) -> Any:
    """Rows that a report keeps: all, or the lowest and the highest of each stretch."""
    rows = np.arange(len(y))
    if len(y) <= POINTS:
        return rows
    bins = np.array_split(rows, POINTS // 2)
    return np.unique([b[i] for b in bins for i in (np.argmin(y[b]), np.argmax(y[b]))])
