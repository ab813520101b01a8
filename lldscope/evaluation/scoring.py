"""How well alarms do on runs whose end is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ..signals.normalized_reward import normalized_reward
from .bank import LabelledRun

Z = 1.959964  # standard normal, 97.5 %
NEVER = 2**62  # a step

SMOOTH = 10  # steps of the trailing mean of the reward
FALLEN = 0.75  # of its best so far
FOR = 10  # steps in a row

RECOVERED = "recovered"
ANY = {"any alarm": ("warning", "critical"), "any critical": ("critical",)}
"""Beside the rules: all of some severities taken together."""


def smoothed(reward: ArrayLike) -> NDArray[np.float64]:
    """Mean over the last SMOOTH rows, this one included; NaN before there are that many, and where
    one of them is NaN."""
    values = np.asarray(reward, dtype=np.float64)
    means = np.full(len(values), np.nan)
    if len(values) >= SMOOTH:
        windows = np.lib.stride_tricks.sliding_window_view(values, SMOOTH)
        means[SMOOTH - 1 :] = windows.mean(axis=1)
    return means


def fall_row(reward: ArrayLike, share: float = FALLEN) -> int | None:
    """The row at which a reward falls for all to see: the first of FOR in a row whose SMOOTH-step
    mean is under `share` of the best such mean so far; None if there is none.

    `reward` is one number per step; means over rows with a NaN are left out.
    """
    means = smoothed(reward)
    best = np.fmax.accumulate(means) if len(means) else means
    held = 0
    for row, is_low in enumerate((best > 0) & (means < share * best)):
        held = held + 1 if is_low else 0
        if held == FOR:
            return row - FOR + 1
    return None


@dataclass(frozen=True)
class EvaluatedRun:
    """A run, how many steps it has, for each alarm the steps at which it began to fire, and the
    step at which its reward fell, if it did and the run has no fault."""

    run: LabelledRun
    steps: int
    fired: Mapping[str, Sequence[int]]
    fall: int | None = None

    @property
    def label(self) -> str:
        """What the run is counted under: its fault or its outcome, and `recovered` for one that
        held in the end after its reward had fallen: an alarm in it is not a false one."""
        if self.run.label == "held" and self.fall is not None:
            return RECOVERED
        return self.run.label


@dataclass(frozen=True)
class Score:
    """What one alarm did on the runs of a bank."""

    alarm: str
    fired: dict[str, tuple[int, int]]  # label → runs it fired on, runs
    false_alarms: int  # times it began to fire in a run that held throughout and had no fault
    healthy_steps: int
    leads: list[int]  # steps from its first alarm to the collapse, where it came before
    missed: list[str] = field(default_factory=list)  # collapsed without an alarm before
    # the same for the fall of the reward, as a share of the steps up to it
    before_falls: list[float] = field(default_factory=list)
    missed_falls: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        collapses = len(self.leads) + len(self.missed)
        falls = len(self.before_falls) + len(self.missed_falls)
        low, high = poisson(self.false_alarms)
        per = 1000 / self.healthy_steps if self.healthy_steps else np.nan
        return {
            "rule": self.alarm,
            "fired": {label: list(counts) for label, counts in self.fired.items()},
            "false_alarms": self.false_alarms,
            "false_alarms_per_1000_healthy_steps": self.false_alarms * per,
            "false_alarms_per_1000_healthy_steps_interval": [low * per, high * per],
            "warned": [len(self.leads), collapses],
            "warned_interval": list(wilson(len(self.leads), collapses)),
            "lead_median": _median(self.leads),
            "lead_p10": float(np.quantile(self.leads, 0.1)) if self.leads else None,
            "lead_range": [min(self.leads), max(self.leads)] if self.leads else None,
            "missed": self.missed,
            "warned_of_fall": [len(self.before_falls), falls],
            "warned_of_fall_interval": list(wilson(len(self.before_falls), falls)),
            "fall_lead_share_median": _median(self.before_falls),
            "missed_falls": self.missed_falls,
        }


def evaluate_run(run: LabelledRun, arl: float) -> EvaluatedRun:
    """What the rules say of a run, by the code that is there now."""
    from ..alarms.assess import assess
    from ..runs import open_run

    if run.path.is_dir():  # with the changes that were declared while it ran
        with open_run(run.path) as opened:
            signals, assessment = opened.signals(), opened.assess(arl)
    else:
        signals = run.signals()
        assessment = assess(signals, arl)
    alerts = assessment.alerts
    fired = {a.rule: [start for start, _ in a.episodes] for a in alerts}
    for name, severities in ANY.items():
        if grave := [a for a in alerts if a.severity in severities]:
            fired[name] = sorted(start for a in grave for start, _ in a.episodes)
    return EvaluatedRun(run, len(signals), fired, fall_of(run, signals))


def fall_of(run: LabelledRun, signals: pd.DataFrame) -> int | None:
    """The step at which the reward of a run without a fault fell; None if it did not."""
    if run.fault is not None:
        return None
    reward, success = (
        signals[name].to_numpy(dtype=float, na_value=np.nan) for name in ("reward", "success")
    )
    row = fall_row(normalized_reward(reward, success)[0])
    return None if row is None else int(signals["step"].iloc[row])


def score(judged: Sequence[EvaluatedRun], alarms: Sequence[str]) -> list[Score]:
    """How each alarm did. An alarm counts as a warning of a collapse, or of the fall of a reward,
    if it first fired before."""
    healthy = [j for j in judged if j.label == "held"]
    collapsed = [j for j in judged if j.label == "collapsed"]
    scores = []
    for alarm in alarms:
        fired: dict[str, tuple[int, int]] = {}
        for j in judged:
            k, n = fired.get(j.label, (0, 0))
            fired[j.label] = (k + bool(j.fired.get(alarm)), n + 1)
        leads, missed = [], []
        for j in collapsed:
            first, end = min(j.fired.get(alarm) or [NEVER]), j.run.collapse_step or 0
            if first < end:
                leads.append(end - first)
            else:
                missed.append(j.run.name)
        early, late = [], []
        for j in (j for j in judged if j.fall is not None):
            first, end = min(j.fired.get(alarm) or [NEVER]), j.fall or 0
            if first < end:
                early.append((end - first) / end)
            else:
                late.append(j.run.name)
        scores.append(
            Score(
                alarm,
                fired,
                sum(len(j.fired.get(alarm, ())) for j in healthy),
                sum(j.steps for j in healthy),
                leads,
                missed,
                early,
                late,
            )
        )
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
