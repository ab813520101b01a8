"""The inputs of a chart: the run, and the reader's choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..core.charts import ACTIONS_SHOWN, DELTA_OF_ACTION, EVIDENCE
from ..diagnosis.phases import PhaseSpan
from ..monitor.alerts import AnyAlert
from ..monitor.health import RunState
from ..runs import Run, title


@dataclass(frozen=True)
class View:
    """The reader's choices: x axis, trailing mean in steps, zoomed range of x, the group of each
    run (if a group is one line), and the charts with a logarithmic y axis. The range is in steps,
    tokens or seconds, because the unit of an axis changes as a run grows."""

    by: str = "step"
    window: int = 10
    zoom: tuple[float, float] | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    log: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A run as charts see it: a table of signals, and marks."""

    name: str  # its place under the root
    table: pd.DataFrame
    spans: Sequence[PhaseSpan]
    alerts: Sequence[AnyAlert]
    events: list[dict[str, Any]]
    arl: float
    title: str = ""

    @property
    def called(self) -> str:
        """Display name of the run."""
        return self.title or self.name


def subject_of(name: str, run: Run, state: RunState) -> Subject:
    """The input of charts for a run with this state."""
    evidence = pd.Series(run.assess().evidence.decay.evidence)  # up to the last trained step
    table = run.signals().assign(**{EVIDENCE: evidence})
    table["time"] = table["time"].ffill()  # of an evaluation after the last step
    actions = run.action_signals()
    correct = actions[actions["correct"].astype(bool)]
    for index in range(ACTIONS_SHOWN):
        of_action = correct[correct["action_index"] == index].set_index("step")["delta"]
        table[DELTA_OF_ACTION.format(index)] = table["step"].map(of_action)
    fields = (state.phases, state.alerts, run.events(), state.arl, title(run.info, name))
    return Subject(name, table, *fields)
