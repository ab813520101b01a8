"""A post-mortem as data: `PostMortem.to_dict()` is what `lldscope report --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..diagnosis.account import Event
from ..diagnosis.look_alikes import Finding
from ..diagnosis.phases import PhaseSpan
from ..explore.experiments import Experiment
from ..figures.view import Subject
from ..monitor.alerts import AnyAlert
from ..monitor.health import RunState
from .losses import Losses
from .trainers import SettingChange

# The fields of the state that the report includes.
_OF_THE_STATE = (
    "verdict", "evidence", "phase", "last_step", "life", "over", "reason", "last_row_age_seconds",
    "arl", "headline",
)


@dataclass(frozen=True)
class RunFacts:
    """The run itself; times are Unix times."""

    name: str
    id: str | None
    place: str
    trainer: str | None
    correct_rule: str | None
    first_step: int | None
    last_step: int | None
    n_steps: int
    first_time: float | None
    last_time: float | None
    config: Mapping[str, Any]
    tags: list[str] = field(default_factory=list)
    note: str | None = None


@dataclass(frozen=True)
class Outline:
    """A signal of `n` measured rows in a few numbers: the `first` full trailing mean, the extremes
    and the `last` one; for a setting, the values themselves."""

    unit: str
    n: int
    first: float
    lowest: float
    lowest_step: int
    highest: float
    highest_step: int
    last: float


@dataclass(frozen=True)
class Cost:
    """The `steps`, the `rollouts` and the `hours` (by the clock of the rows) while alarms fired;
    None: not known. The first alarm was `rule`, at `step`."""

    rule: str
    step: int
    steps: int
    rollouts: int | None
    hours: float | None


@dataclass(frozen=True)
class PostMortem:
    """Everything a post-mortem says; None: not measured.

    `state` is that of the run when the report was made, `trend` the course of its reward in a word.
    `fall` is the step at which likelihood began to be lost, in hindsight if possible. `change` is
    the setting to change first. `gaps` are sentences on what the log lacks, and `record` the lines
    of code that would record it.
    """

    schema: int
    lldscope: str
    made: float
    run: RunFacts
    state: RunState
    trend: str
    phases: list[PhaseSpan]
    events: list[Event]
    fall: int | None
    signals: Mapping[str, Outline]
    look_alikes: Mapping[str, Finding]
    alarms: list[AnyAlert]
    subject: Subject  # the input of the charts
    losses: Losses
    experiments: list[Experiment]
    change: SettingChange | None
    record: tuple[str, ...]
    cost: Cost | None = None
    gaps: list[str] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)

    def event(self, rule: str) -> Event | None:
        """The event of a rule."""
        return next((event for event in self.events if event.rule == rule), None)

    def alarm_step(self, alarm: AnyAlert) -> int | None:
        """The step at which an alarm fired: that of its event, if the alarm itself fired there."""
        event = self.event(alarm.rule)
        steps = [step for step, _ in alarm.episodes]
        return event.alarm_step if event and event.alarm_step in steps else steps[-1]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = asdict(self)
        del data["subject"]
        state = data["state"]
        data["state"] = {name: state[name] for name in _OF_THE_STATE}
        return data | {name: state[name] for name in ("damaged", "dropped")}
