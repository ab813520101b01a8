"""One row of numbers per run of the bank; tables and sentences are made of these alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lldscope.evaluation.scoring import fall_row, moving_mean

from .arms import BANK, Planned, planned
from .bank import exported_signals, exported_windows, index, judge
from .outcome import Outcome
from .runs import state

DELTA_FROM = 20  # step from which on Δ is averaged


@dataclass(frozen=True)
class Result:
    """What the tables say of a run. Rewards are means over ten steps, Δ nats per response."""

    plan: Planned
    outcome: Outcome
    collapse_step: int | None
    best: float
    final: float
    delta: float  # mean over steps from DELTA_FROM on
    delta_median: float  # of the same steps
    alarms: dict[str, int]  # rule → the step at which it first fired
    phases: dict[str, int]  # phase → the step at which it first began
    causes: list[str]  # look-alikes that the signals support
    em: dict[int, float]  # step → greedy exact match
    minutes: float | None  # of a core
    line: dict[str, Any]  # of the index
    signals: pd.DataFrame = field(repr=False, compare=False)
    windows: pd.DataFrame = field(repr=False, compare=False)

    @property
    def em_start(self) -> float | None:
        return next(iter(self.em.values()), None)

    @property
    def em_end(self) -> float | None:
        return next(reversed(self.em.values()), None)

    @cached_property
    def fall(self) -> int | None:
        """Step at which the reward fell for all to see (`lldscope.evaluation.scoring`)."""
        row = fall_row(self.signals["reward"].to_numpy(dtype=float, na_value=np.nan))
        return None if row is None else int(self.signals["step"].iloc[row])

    @property
    def collapsed(self) -> bool:
        return self.outcome == "collapsed"

    @property
    def decay(self) -> int | None:
        """Step of the first decay alarm."""
        return self.alarms.get("lld-decay")

    @property
    def fault_step(self) -> int:
        """Step at which the fault was put in; 0 without one."""
        return int(self.line["settings"].get("fault_at") or 0)

    @property
    def lead(self) -> int | None:
        """Steps from the first decay alarm to the fall of the reward, if it came before."""
        if self.fall is None or self.decay is None or self.decay >= self.fall:
            return None
        return self.fall - self.decay


@dataclass(frozen=True)
class Results:
    """What there is, and how much of the plan that is."""

    plan: list[Planned]
    runs: list[Result]
    outdated: list[str]  # in the bank with other settings than the plan's

    def of(self, arm: str) -> list[Result]:
        return [r for r in self.runs if r.plan.arm.name == arm]

    def by_seed(self, arm: str) -> dict[int, Result]:
        return {r.plan.seed: r for r in self.of(arm)}

    def planned(self, arm: str) -> int:
        return sum(p.arm.name == arm for p in self.plan)


def collect(bank: Path = BANK) -> Results:
    """The runs of the bank that were made as the plan says now."""
    lines, plan = index(bank), [p for p in planned() if p.bank == BANK]
    states = {p.name: state(p, lines.get(p.name)) for p in plan}
    runs = [_result(p, lines[p.name], bank) for p in plan if states[p.name] == "done"]
    outdated = [name for name, what in states.items() if what == "outdated"]
    return Results(plan, runs, outdated)


def _result(plan: Planned, line: dict[str, Any], bank: Path) -> Result:
    signals = exported_signals(plan.name, bank)
    means = moving_mean(signals["reward"])
    delta = signals["delta_correct"][signals["step"] >= DELTA_FROM]
    result = judge(signals)
    phases: dict[str, int] = {}
    for span in result.spans():
        if span.phase is not None:
            phases.setdefault(span.phase, span.start_step)
    return Result(
        plan=plan,
        outcome=line["outcome"],
        collapse_step=line["collapse_step"],
        best=float(np.nanmax(means)) if np.isfinite(means).any() else np.nan,
        final=float(means[-1]),
        delta=float(delta.mean()),
        delta_median=float(delta.median()),
        alarms={a.rule: a.step for a in result.alerts},
        phases=phases,
        causes=[name for name, f in result.look_alikes().items() if f.answer == "supported"],
        em={int(step): value for step, value in line["em_greedy"].items()},
        minutes=line["cpu_seconds"] / 60 if line.get("cpu_seconds") else None,
        line=line,
        signals=signals,
        windows=exported_windows(plan.name, bank),
    )
