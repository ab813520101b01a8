"""Entries for a trainer's own log at each recorded step: Δ and related signals, phase, verdict, and
new alarms."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from ...core.safe_text import in_one_line
from ...diagnosis.rule import Severity
from ...monitor.alerts import AnyAlert
from ...monitor.health import RunState, check
from ...recording.recorder import FailOpen
from ...run import Run
from ...runs import open_run

log = logging.getLogger("lldscope")

PREFIX = "lldscope/"
SIGNALS = (
    "delta_correct", "delta_incorrect", "displaced_share", "lld_share", "retention_delta",
    "step_kl", "good_first_action_share", "engine_gap", "engine_k3", "engine_ess",
)
PHASES = {"stagnation": 1, "decay": 2, "collapse": 3}
VERDICTS = {"warning": 1, "critical": 2}


class StepLog:
    """Reads the run of a recorder in the process that writes the trainer's log.

    An entry has the means of SIGNALS over its steps, `delta_correct_action_0` and so on,
    `decay_test` (evidence of decay over its limit: the test fires at 1), `phase` (as PHASES, else
    0) and `verdict` (as VERDICTS, else 0), equal to those of `lldscope check`.
    """

    @classmethod
    def of(cls, recorder: Any, fail_open: FailOpen, enabled: bool) -> StepLog | None:
        """None if logging is off, or if DuckDB is missing, as on a node that only records."""
        if enabled and find_spec("duckdb") is None:
            fail_open.missing("the trainer's own log", "the package duckdb is not installed")
            return None
        return cls(recorder) if enabled else None

    def __init__(self, recorder: Any) -> None:
        self._path = recorder.path
        self._run: Run | None = None
        self._firing: dict[str, Severity] | None = None

    def entry(self, steps: Sequence[int]) -> dict[str, float]:
        """The entry for these sealed steps; new alarms are passed on. Empty before the first
        row."""
        if self._run is None:
            self._run = open_run(self._path)
        else:
            self._run.refresh()
        run, columns = self._run, self._run.columns()
        if not len(columns["step"]):
            return {}
        rows = np.isin(columns["step"], steps)
        values = {name: _mean(columns[name][rows]) for name in SIGNALS}
        for index, delta in _by_action(run.action_columns(), steps):
            values[f"delta_correct_action_{index}"] = delta
        state, test = check(run), run.assess().last.decay
        values["decay_test"] = float(test.value[-1] / test.threshold[-1])
        values["phase"] = PHASES.get(state.phase or "", 0)
        values["verdict"] = VERDICTS.get(state.verdict, 0)
        self._pass_on(state)
        return {PREFIX + name: v for name, v in values.items() if math.isfinite(v)}

    def close(self) -> None:
        if self._run is not None:
            self._run.close()

    def _pass_on(self, state: RunState) -> None:
        """Pass on alarms that fire now and did not, or were milder, in the previous entry. Alarms
        in the first entry of a resumed run are not new."""
        firing = {a.rule: a.severity for a in state.firing if a.severity > Severity.INFO}
        before, self._firing = self._firing, firing
        for alarm in state.firing:
            if before is None or alarm.rule not in firing:
                continue
            if alarm.rule not in before or alarm.severity > before[alarm.rule]:
                alert(alarm)


def _by_action(actions: dict[str, Any], steps: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Δ of the correct responses of these steps, by action."""
    if "delta" not in actions:
        return
    rows = np.isin(actions["step"], steps) & actions["correct"] & (actions["n_delta"] > 0)
    index, delta, n = (actions[name][rows] for name in ("action_index", "delta", "n_delta"))
    for action in np.unique(index):
        here = index == action
        yield int(action), float(np.average(delta[here], weights=n[here]))


def _mean(values: Any) -> float:
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else math.nan


def alert(alarm: AnyAlert) -> None:
    """Raise the alarm through W&B or Trackio if this process has a run open there; always print
    it."""
    title = in_one_line(f"{alarm.rule} ({alarm.severity})")
    text = in_one_line(f"{alarm.message}. {alarm.advice}")
    log.warning("lldscope: %s: %s", title, text)
    level = "ERROR" if alarm.severity == Severity.CRITICAL else "WARN"
    wandb, trackio = sys.modules.get("wandb"), sys.modules.get("trackio")
    if wandb is not None and wandb.run is not None:
        wandb.alert(title=title, text=text, level=level)
    if trackio is not None and trackio.context_vars.current_run.get() is not None:
        trackio.alert(title=title, text=text, level=trackio.AlertLevel[level])
