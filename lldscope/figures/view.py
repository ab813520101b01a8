"""What a chart is asked for: the run as it sees it, and what the reader has chosen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..core.charts import ACTIONS_SHOWN, DELTA_OF_ACTION, EVIDENCE
from ..diagnosis.assess import PhaseSpan
from ..monitor.alerts import AnyAlert
from ..monitor.health import RunState
from ..runs import Run, title
from .series import floats

TRIMMED = "delta_correct_trim"
# Signal → the word for it while an alarm of one of the rules fires.
_OFF_COURSE = {
    "reward": ("falling", "reward-crash", "reward-decline"),
    TRIMMED: ("below 0", "lld-decay"),
    "entropy": ("high", "entropy-surge"),
    "grad_norm": ("high", "grad-explosion", "grad-sustained"),
    "tool_fail_share": ("high", "tool-outage"),
    "valid_searches": ("low", "tool-abandoned"),
    "response_tokens": ("low", "length-collapse"),
}


@dataclass(frozen=True)
class View:
    """What the reader has chosen: x axis, trailing mean in steps, the zoomed range of x, where
    runs of a group are one line the group of each run, and which charts have a logarithmic y axis
    or one that leaves out the outermost 1 %.

    The range is in steps, tokens or seconds: the unit of an axis changes as a run grows.
    """

    by: str = "step"
    window: int = 10
    zoom: tuple[float, float] | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    clip: tuple[str, ...] = ()

    @property
    def key(self) -> list[Any]:
        """The view as plain values, to compare and to send."""
        groups = [dict(self.groups)] if self.groups else []
        axes = [[*self.log], [*self.clip]] if self.log or self.clip else []
        return [self.by, self.window, list(self.zoom or ()), *groups, *axes]


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
    trend: str = ""  # of the reward, in a word
    onsets: Mapping[str, int] = field(default_factory=dict)  # by rule, where hindsight dated them

    @property
    def called(self) -> str:
        """What people call the run."""
        return self.title or self.name

    def course(self, column: str) -> str:
        """How a signal went beyond its noise, as the diagnosis has it: the trend of the reward, the
        alarm that fires on the signal, and since when. Empty where it says nothing."""
        word, *rules = _OFF_COURSE.get(column, ("",))
        if column == "reward":
            word = self.trend
        if word in ("improving", "flat"):
            return word
        alarms = [a for a in self.alerts if a.rule in rules and a.state == "firing"]
        onsets = [o for a in alarms if (o := self.onsets.get(a.rule, a.onset)) is not None]
        firings = [a.first_step for a in alarms if a.first_step is not None]
        if word and onsets:
            return f"{word} since step {min(onsets):,}"
        if word and firings:
            return f"{word} (alarm at step {min(firings):,})"
        return word if column == "reward" else ""


def held_out_metric(metrics: Sequence[str]) -> str | None:
    """The metric of evaluations that is shown without being asked for: exact match or accuracy,
    `em_greedy` first, as this trainer calls it; or else the first. None without any."""
    scores = [m for m in metrics if re.search("(^|[/_])(em|exact|acc|score)", m)]
    return next(iter(sorted(scores, key=lambda m: m != "em_greedy") or metrics), None)


def subject_of(name: str, run: Run, state: RunState) -> Subject:
    """What charts show of a run, given what `check` says of it."""
    evidence = run.assess().evidence
    table = run.signals().assign(**{EVIDENCE: evidence.e_value})
    if not np.isfinite(floats(table, TRIMMED)).any():  # no single responses are recorded
        table[TRIMMED] = table["delta_correct"]
    table = _with_actions(table, run.action_signals())
    label = title(run.info, name)
    fields = (state.phases, state.alerts, run.events(), state.arl, label, state.trend)
    return Subject(name, table, *fields)


def _with_actions(table: pd.DataFrame, actions: pd.DataFrame) -> pd.DataFrame:
    """The signals with a column of Δ of correct responses for each of the first actions."""
    correct = actions[actions["correct"].astype(bool)]
    for index in range(ACTIONS_SHOWN):
        of_action = correct[correct["action_index"] == index].set_index("step")["delta"]
        table[DELTA_OF_ACTION.format(index)] = table["step"].map(of_action)
    return table
