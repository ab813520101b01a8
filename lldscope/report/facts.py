"""What a post-mortem says, as data: `PostMortem.to_dict()` is `lldscope report --format json`.

A run is described twice, and each field says which: `phases` as the live classifier saw them, from
the rows up to each step, and `boundaries` with hindsight, with intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isnan, nan
from typing import Any, Literal

from ..diagnosis.assess import PhaseSpan
from ..diagnosis.changepoints import Boundary
from ..diagnosis.look_alikes import Finding
from ..figures.view import Subject
from ..monitor.alerts import AnyAlert
from ..monitor.health import RunState
from .examples import Example
from .forgotten import Forgotten
from .losses import Losses
from .onset_order import Link
from .series import Outline, Series

# What the report says of the state of the run.
_OF_THE_STATE = (
    "verdict", "evidence", "phase", "last_step", "life", "over", "reason", "last_row_age_seconds",
    "arl",
)

Kind = Literal["empty", "collapsed", "decayed", "short", "failed", "alarmed", "healthy"]


@dataclass(frozen=True)
class RunFacts:
    """The run itself; times are Unix times."""

    name: str
    id: str | None
    place: str
    trainer: str | None
    correct_rule: str | None
    attempts: int
    first_step: int | None
    last_step: int | None
    n_steps: int
    first_time: float | None
    last_time: float | None
    config: Mapping[str, Any]
    tags: list[str] = field(default_factory=list)
    note: str | None = None


@dataclass(frozen=True)
class Advice:
    """A change to make, and `evidence`: sentences with the numbers of this run."""

    change: str
    how: str
    why: str
    evidence: list[str]


@dataclass(frozen=True)
class Cost:
    """What came after the first alarm: from its `step` on, `steps` steps with `rollouts` rollouts
    in `hours`, by the clock of the rows; `money` at the price that was given. None: not known."""

    rule: str
    step: int
    steps: int
    rollouts: int | None
    hours: float | None
    money: float | None


@dataclass(frozen=True)
class PostMortem:
    """Everything a post-mortem says; what was not measured is None.

    `state` is that of the run when the report was made. `fall` is the step from which on likelihood
    was lost, with hindsight where possible. `evals` are the rows of that table. `dates` are the
    Unix times at which the steps ended that sentences name; keys are text, as in JSON.
    """

    schema: int
    lldscope: str
    made: float
    run: RunFacts
    state: RunState
    kind: Kind
    phases: list[PhaseSpan]
    boundaries: list[Boundary]
    fall: int | None
    collapse: int | None
    reward_crash: int | None
    signals: Mapping[str, Series]
    outline: Mapping[str, Outline]
    links: list[Link]
    look_alikes: Mapping[str, Finding]
    events: list[dict[str, Any]]
    subject: Subject  # what charts show of it
    evals: list[dict[str, Any]]
    alarms: list[AnyAlert]
    dates: Mapping[str, float]
    losses: Losses
    forgotten: list[Forgotten]
    good_first_action_share: float | None
    examples: list[Example]
    last_checkpoint_before_fall: int | None
    cost: Cost | None = None
    advice: list[Advice] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)

    @property
    def supported(self) -> list[str]:
        """The causes that the log supports."""
        return [name for name, f in self.look_alikes.items() if f.answer == "supported"]

    def alarm_step(self, rule: str) -> int | None:
        """Where an alarm first fired; None if it never did."""
        return next((alarm.step for alarm in self.alarms if alarm.rule == rule), None)

    def lead(self, alarm: AnyAlert, end: int | None) -> tuple[int | None, float | None]:
        """Steps and minutes from an alarm to the step `end`; None if it came later."""
        if end is None or alarm.step is None or alarm.step > end:
            return None, None
        start, stop = (self.dates.get(str(step), nan) for step in (alarm.step, end))
        minutes = (stop - start) / 60
        return end - alarm.step, None if isnan(minutes) else minutes

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = asdict(self)
        del data["subject"]
        state = data["state"]
        data["state"] = {name: state[name] for name in _OF_THE_STATE}
        data |= {name: state[name] for name in ("damaged", "dropped")}
        for alarm, plain in zip(self.alarms, data["alarms"], strict=True):
            for name, end in (("collapse", self.collapse), ("reward_crash", self.reward_crash)):
                steps, minutes = self.lead(alarm, end)
                plain |= {f"steps_before_{name}": steps, f"minutes_before_{name}": minutes}
        return data
