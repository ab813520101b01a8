"""Counts of false alarms, warnings and lead times of each alarm on the runs of a bank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ..diagnosis.assess import assess
from ..diagnosis.detectors import consecutive, floats, trailing
from ..diagnosis.registry import RULES
from ..diagnosis.rule import Alert, Severity
from .bank import ENDS, LabelledRun

Z = 1.959964  # standard normal, 97.5 %
NEVER = 2**62  # a step after every other

SMOOTH = 10  # steps of the trailing mean of the reward
FALLEN = 0.75  # × its best so far
FALL_STEPS = 10  # steps in a row

RECOVERED = "recovered"
HELD_OUT = frozenset(rule.id for rule in RULES if "eval_score" in rule.needs)
ANY: dict[str, Callable[[Alert], bool]] = {
    "any alarm": lambda alert: alert.severity >= Severity.WARNING,
    "any without evaluations": lambda alert: ANY["any alarm"](alert) and alert.rule not in HELD_OUT,
    "any critical": lambda alert: alert.severity >= Severity.CRITICAL,
}
"""Groups of alarms. HELD_OUT are rules that read the score that may define the label."""


def moving_mean(reward: ArrayLike) -> NDArray[np.float64]:
    """Mean of the last SMOOTH rows; NaN if one of them is NaN or before the first row."""
    return trailing(np.asarray(reward, dtype=np.float64), SMOOTH).mean(axis=1)


def fall_row(reward: ArrayLike, share: float = FALLEN) -> int | None:
    """The row at which a reward falls: the first of FALL_STEPS consecutive rows whose SMOOTH-step
    mean is under `share` of the best such mean so far; None if it never falls. `reward` has one
    number per step; means over rows with a NaN are left out."""
    means = moving_mean(reward)
    best = np.fmax.accumulate(means) if len(means) else means
    low = (best > 0) & (means < share * best)
    rows = np.flatnonzero(consecutive(low) == FALL_STEPS)
    return int(rows[0]) - FALL_STEPS + 1 if len(rows) else None


@dataclass(frozen=True)
class EvaluatedRun:
    """An evaluated run of the bank. `fired`: alarm → the steps at which it began to fire; `fall` is
    the step at which the reward fell without an injected fault."""

    run: LabelledRun
    steps: int
    fired: Mapping[str, Sequence[int]]
    fall: int | None = None

    @property
    def label(self) -> str:
        """The class of the run: its fault or its outcome. A run that held in the end after a fall
        of its reward is `recovered`, because an alarm in it is not false."""
        if self.run.label == "held" and self.run.by_reward and self.fall is not None:
            return RECOVERED
        return self.run.label


def evaluate_run(run: LabelledRun, arl: float) -> EvaluatedRun:
    """Assess a run of the bank with the current rules."""
    from ..runs import open_run

    if run.path.is_dir():  # with the changes that were declared during the run
        with open_run(run.path) as reader:
            assessment, signals = reader.assess(arl), reader.signals()
            signals = signals[: assessment.rows]  # without an evaluation after the last step
    else:
        signals = run.signals()
        assessment = assess(signals, arl, planned_steps=run.planned_steps)
    alerts = assessment.alerts
    firings = {a.rule: [start for start, _ in a.episodes] for a in alerts}
    for name, counts in ANY.items():
        if starts := [start for a in alerts if counts(a) for start in _starts(a)]:
            firings[name] = sorted(starts)
    return EvaluatedRun(run, len(signals), firings, fall_of(run, signals))


def _starts(alert: Alert) -> list[int]:
    """The steps at which the alarm fired with its worst severity, which may be after its first."""
    return [alert.step, *(start for start, _ in alert.episodes if start > alert.step)]


def fall_of(run: LabelledRun, signals: pd.DataFrame) -> int | None:
    """The step at which the reward of a run without a fault fell; None if it did not, or if runs
    are labelled by another score."""
    if run.fault is not None or not run.by_reward:
        return None
    reward = floats(signals, "reward")
    row = fall_row(reward - min(0.0, float(np.nanmin(reward, initial=0.0))))
    return None if row is None else int(signals["step"].iloc[row])


def score(runs: Sequence[EvaluatedRun], alarms: Sequence[str]) -> list[dict[str, Any]]:
    """The performance of each alarm.

    An alarm warned of a run's end (collapsed or degraded), or of the fall of its reward, if it
    first fired before. Runs that held are watched to their last step, others up to their end. So
    false alarms (`false_alarms` in `healthy_steps`) are also counted up to the median end,
    `same_step`. `fired`: label → number of runs in which the alarm fired, and number of runs.
    `lead_…` are steps, `fall_lead_share_median` a share of the steps up to the fall.
    """
    healthy = [run for run in runs if run.label == "held"]
    ends = [(r, r.run.end_step or 0) for r in runs if r.label in ENDS]
    same_step = int(np.median([step for _, step in ends])) if ends else None
    falls = [(run, run.fall) for run in runs if run.fall is not None]
    healthy_steps = sum(run.steps for run in healthy)
    scores = []
    for alarm in alarms:
        counts: dict[str, list[int]] = {}
        for run in runs:
            k, n = counts.get(run.label, (0, 0))
            counts[run.label] = [k + bool(run.fired.get(alarm)), n + 1]
        false_alarms = sum(len(run.fired.get(alarm, ())) for run in healthy)
        low, high = poisson(false_alarms)
        per = 1000 / healthy_steps if healthy_steps else np.nan
        first = {run.run.name: min(run.fired.get(alarm) or [NEVER]) for run in runs}
        early = sum(same_step is not None and first[r.run.name] <= same_step for r in healthy)
        leads = [step - first[r.run.name] for r, step in ends if first[r.run.name] < step]
        shares = [1 - first[r.run.name] / fall for r, fall in falls if first[r.run.name] < fall]
        scores.append({
            "rule": alarm,
            "fired": counts,
            "false_alarms": false_alarms,
            "healthy_steps": healthy_steps,
            "false_alarms_per_1000_healthy_steps": false_alarms * per,
            "false_alarms_per_1000_healthy_steps_interval": [low * per, high * per],
            "same_step": same_step,
            "false_by_same_step": [early, len(healthy)],
            "warned": [len(leads), len(ends)],
            "warned_interval": list(wilson(len(leads), len(ends))),
            "lead_median": _median(leads),
            "lead_p10": float(np.quantile(leads, 0.1)) if leads else None,
            "lead_range": [min(leads), max(leads)] if leads else None,
            "missed": [r.run.name for r, step in ends if first[r.run.name] >= step],
            "warned_of_fall": [len(shares), len(falls)],
            "fall_lead_share_median": _median(shares),
        })
    return scores


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def wilson(k: int, n: int) -> tuple[float, float]:
    """95 % interval of a share of k in n (Wilson 1927), from 0 to 1."""
    if n == 0:
        return 0.0, 1.0
    p, z2 = k / n, Z * Z
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z * sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return (middle - half if k else 0.0), (middle + half if k < n else 1.0)


def poisson(k: int) -> tuple[float, float]:
    """95 % interval of the mean of a count (Byar's approximation to the exact limits)."""
    low = k * (1 - 1 / (9 * k) - Z / (3 * sqrt(k))) ** 3 if k else 0.0
    high = (k + 1) * (1 - 1 / (9 * (k + 1)) + Z / (3 * sqrt(k + 1))) ** 3
    return max(low, 0.0), high
