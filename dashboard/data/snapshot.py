"""A snapshot of a run: everything its pages show, as of one moment."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from lldscope.monitor.health import RunState
from lldscope.runs import Run

from ..figures.charts import ACTIONS_SHOWN, DELTA_OF_ACTION, EVIDENCE
from ..figures.series import floats
from ..figures.view import Subject


@dataclass(frozen=True)
class Snapshot:
    """A run as of one moment. `version` names the rows behind `subject`."""

    version: str
    info: dict[str, Any]
    state: RunState
    subject: Subject


def aged(snapshot: Snapshot) -> Snapshot:
    """The same snapshot, with the age that its last row has now."""
    times = floats(snapshot.subject.table, "time")
    if not len(times) or times[-1] != times[-1]:
        return snapshot
    return replace(
        snapshot, state=replace(snapshot.state, last_row_age_seconds=time.time() - times[-1])
    )


def subject_of(name: str, run: Run, state: RunState) -> Subject:
    """What charts show of a run, given what `check` says of it."""
    table = run.signals().assign(**{EVIDENCE: run.assess().evidence.e_value})
    table = _with_actions(table, run.action_signals())
    return Subject(name, table, state.phases, state.alerts, run.events(), state.arl)


def _with_actions(table: pd.DataFrame, actions: pd.DataFrame) -> pd.DataFrame:
    """The signals with a column of Δ of correct responses for each of the first actions."""
    correct = actions[actions["correct"].astype(bool)]
    for index in range(ACTIONS_SHOWN):
        of_action = correct[correct["action_index"] == index].set_index("step")["delta"]
        table[DELTA_OF_ACTION.format(index)] = table["step"].map(of_action)
    return table
