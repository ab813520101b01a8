"""The inputs of a chart: the run as the chart sees it, and what the reader has chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..core.charts import ACTIONS_SHOWN, DELTA_OF_ACTION, EVIDENCE
from ..diagnosis.phases import PhaseSpan
from ..monitor.alerts import AnyAlert
from ..monitor.health import RunState
from ..runs import Run, title
from .series import floats

TRIMMED = "delta_correct_trim"


@dataclass(frozen=True)
class View:
    """What the reader has chosen: x axis, trailing mean in steps, the zoomed range of x, where
    runs of a group are one line the group of each run, and which charts have a logarithmic y axis.

    The range is in steps, tokens or seconds: the unit of an axis changes as a run grows.
    """

    by: str = "step"
    window: int = 10
    zoom: tuple[float, float] | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    log: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A run as a chart sees it: a table of signals and what is marked on it."""

    name: str  # its place under the root
    table: pd.DataFrame
    spans: Sequence[PhaseSpan]
    alerts: Sequence[AnyAlert]
    events: list[dict[str, Any]]
    arl: float
    title: str = ""

    @property
    def called(self) -> str:
        """What people call the run."""
        return self.title or self.name


def subject_of(name: str, run: Run, state: RunState) -> Subject:
    """What charts show of a run, given what `check` says of it."""
    evidence = run.assess().evidence
    table = run.signals().assign(**{EVIDENCE: evidence.decay.evidence})
    if not np.isfinite(floats(table, TRIMMED)).any():  # no single responses are recorded
        table[TRIMMED] = table["delta_correct"]
    table = _with_actions(table, run.action_signals())
    label = title(run.info, name)
    fields = (state.phases, state.alerts, run.events(), state.arl, label)
    return Subject(name, table, *fields)


def _with_actions(table: pd.DataFrame, actions: pd.DataFrame) -> pd.DataFrame:
    """The signals with a column of Δ of correct responses for each of the first actions."""
    correct = actions[actions["correct"].astype(bool)]
    for index in range(ACTIONS_SHOWN):
        of_action = correct[correct["action_index"] == index].set_index("step")["delta"]
        table[DELTA_OF_ACTION.format(index)] = table["step"].map(of_action)
    return table
