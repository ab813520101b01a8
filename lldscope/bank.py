"""A bank of labelled runs, and how well alarms do on it.

    BANK/
      index.jsonl              one JSON object a run, see `read_bank`
      signals/RUN.parquet      one row per step, the columns of the view `signals`

A line of the index may name a run directory instead (`path`), so that runs need not be exported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import LldscopeError, RunNotFound
from .schema import SIGNALS

Outcome = Literal["held", "declined", "collapsed"]
Split = Literal["development", "test", "all"]
Z = 1.959964  # standard normal, 97.5 %
NEVER = 2**62  # a step


@dataclass(frozen=True)
class LabelledRun:
    """A run of the bank. `collapse_step` is where its reward collapsed, `fault` what was broken in
    it on purpose, and `path` a run directory or a Parquet file of signals."""

    name: str
    outcome: Outcome
    collapse_step: int | None
    test: bool
    fault: str | None
    path: Path

    @property
    def label(self) -> str:
        """What the run is counted under: its fault, or its outcome."""
        return self.fault or self.outcome

    def signals(self) -> pd.DataFrame:
        """One row per step with the columns of `schema.SIGNALS`; NaN where there is no column."""
        if self.path.is_dir():
            from .runs import open_run

            with open_run(self.path) as run:
                return run.signals()
        if not self.path.is_file():
            raise RunNotFound(f"The bank's run {self.name} should be at {self.path}: it is not.")
        try:
            frame = pq.read_table(self.path).to_pandas()
        except (OSError, pa.ArrowException) as error:
            raise LldscopeError(f"{self.path} is not a Parquet file: {error}") from None
        if "step" not in frame or frame["step"].isna().any():
            raise LldscopeError(f"{self.path} has no step in every row.")
        frame = frame.reindex(columns=list(SIGNALS.names))
        return frame.sort_values("step", ignore_index=True)


def read_bank(bank: Path, split: Split = "all") -> list[LabelledRun]:
    """The runs of a bank, by name.

    Each line of `index.jsonl` has `run` (its name) and `outcome` (held, declined or collapsed);
    `collapse_step` where it collapsed; if wanted `split` ("test" keeps a run out of "development"),
    `fault`, and `path` (a run directory or a Parquet file of signals, from the bank's folder;
    default `signals/RUN.parquet`). Other keys are ignored.
    """
    file = bank / "index.jsonl"
    if not file.is_file():
        raise RunNotFound(f"{file} is missing: a bank has one line of JSON there for each run.")
    runs = []
    for number, text in enumerate(file.read_text("utf-8").splitlines(), 1):
        if text.strip():
            runs.append(_run(text, bank, f"{file} line {number}"))
    names = [run.name for run in runs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise LldscopeError(f"{file} has more than one line for {', '.join(sorted(twice))}.")
    wanted = [run for run in runs if split == "all" or run.test == (split == "test")]
    return sorted(wanted, key=lambda run: run.name)


def _run(text: str, bank: Path, where: str) -> LabelledRun:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise LldscopeError(f"{where} is not JSON: {error}") from None
    if not isinstance(line, dict) or not isinstance(line.get("run"), str):
        raise LldscopeError(f"{where} has no run: the run's name belongs there.")
    step = line.get("collapse_step")
    outcome: Outcome | None = next((o for o in get_args(Outcome) if o == line.get("outcome")), None)
    if outcome is None:
        known = ", ".join(get_args(Outcome))
        raise LldscopeError(f"{where}: outcome is {line.get('outcome')!r}, not one of {known}.")
    if (outcome == "collapsed") != isinstance(step, int):
        raise LldscopeError(f"{where}: a collapsed run, and no other, has a collapse_step.")
    path = bank / (line.get("path") or f"signals/{line['run']}.parquet")
    return LabelledRun(
        line["run"], outcome, step, line.get("split") == "test", line.get("fault"), path
    )


# -- how well alarms did --------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """A run, how many steps it has, and for each alarm the steps at which it began to fire."""

    run: LabelledRun
    steps: int
    fired: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Score:
    """What one alarm did on the runs of a bank."""

    alarm: str
    fired: dict[str, tuple[int, int]]  # label → runs it fired on, runs
    false_alarms: int  # times it began to fire in a run that held and had no fault
    healthy_steps: int
    leads: list[int]  # steps from its first alarm to the collapse, where it came before
    missed: list[str] = field(default_factory=list)  # collapsed without an alarm before

    def to_dict(self) -> dict[str, Any]:
        collapses = len(self.leads) + len(self.missed)
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
            "lead_median": float(np.median(self.leads)) if self.leads else None,
            "lead_p10": float(np.quantile(self.leads, 0.1)) if self.leads else None,
            "lead_range": [min(self.leads), max(self.leads)] if self.leads else None,
            "missed": self.missed,
        }


def judge(run: LabelledRun, arl: float) -> Judged:
    """What the rules say of a run, by the code that is there now."""
    from .assess import assess
    from .runs import open_run

    if run.path.is_dir():  # with the changes that were declared while it ran
        with open_run(run.path) as opened:
            assessment = opened.assess(arl)
    else:
        assessment = assess(run.signals(), arl)
    fired = {a.rule: [start for start, _ in a.episodes] for a in assessment.alerts}
    return Judged(run, len(assessment.evidence.step), fired)


def score(judged: Sequence[Judged], alarms: Sequence[str]) -> list[Score]:
    """How each alarm did. An alarm counts as a warning of a collapse if it first fired before."""
    healthy = [j for j in judged if j.run.label == "held"]
    collapsed = [j for j in judged if j.run.label == "collapsed"]
    scores = []
    for alarm in alarms:
        fired: dict[str, tuple[int, int]] = {}
        for j in judged:
            k, n = fired.get(j.run.label, (0, 0))
            fired[j.run.label] = (k + bool(j.fired.get(alarm)), n + 1)
        leads, missed = [], []
        for j in collapsed:
            first, end = min(j.fired.get(alarm) or [NEVER]), j.run.collapse_step or 0
            if first < end:
                leads.append(end - first)
            else:
                missed.append(j.run.name)
        scores.append(
            Score(
                alarm,
                fired,
                sum(len(j.fired.get(alarm, ())) for j in healthy),
                sum(j.steps for j in healthy),
                leads,
                missed,
            )
        )
    return scores


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
