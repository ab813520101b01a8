"""What a post-mortem says, as data: `PostMortem.to_dict()` is `lldscope report --format json`.

A run is described twice, and each field says which: `phases` as the live classifier saw them, from
the rows up to each step, and `boundaries` with hindsight, with intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..alarms.assess import PhaseSpan
from ..alarms.attribution import Finding
from ..alarms.changepoints import Boundary
from ..alarms.rule import Severity
from ..monitor.health import Life, Verdict
from ..signals.evidence import Grade
from ..signals.phases import Phase
from .examples import Example
from .losses import Losses
from .onset_order import Link
from .series import Outline, Series

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


@dataclass(frozen=True)
class State:
    """The state of the run when the report was made, from `monitor.health.check`."""

    verdict: Verdict
    evidence: Grade
    phase: Phase | None
    last_step: int | None
    life: Life
    over: bool
    reason: str | None
    last_row_age_seconds: float | None
    arl: float


@dataclass(frozen=True)
class Alarm:
    """An alarm, and how many steps and minutes it came before the collapse and the reward crash."""

    rule: str
    severity: Severity
    state: str
    step: int | None
    value: float | None
    threshold: float | None
    message: str
    meaning: str
    evidence: str
    advice: str
    false_alarms: str
    episodes: tuple[tuple[int | None, int | None], ...]
    steps_before_collapse: int | None = None
    minutes_before_collapse: float | None = None
    steps_before_reward_crash: int | None = None
    minutes_before_reward_crash: float | None = None


@dataclass(frozen=True)
class Evaluation:
    step: int
    data_source: str | None
    metric: str
    value: float | None
    n: int | None


@dataclass(frozen=True)
class Advice:
    """A change to make, and `evidence`: sentences with the numbers of this run."""

    change: str
    how: str
    why: str
    evidence: list[str]


@dataclass(frozen=True)
class PostMortem:
    """Everything a post-mortem says; what was not measured is None.

    `fall` is the step from which on likelihood was lost, with hindsight where possible. `dates` are
    the Unix times at which the steps ended that sentences name.
    """

    schema: int
    lldscope: str
    made: float
    run: RunFacts
    state: State
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
    evals: list[Evaluation]
    damaged: Mapping[str, str]
    dropped: Mapping[str, int]
    alarms: list[Alarm]
    dates: Mapping[str, float]
    losses: Losses
    good_first_action_share: float | None
    examples: list[Example]
    last_checkpoint_before_fall: int | None
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return plain(self)


def plain(facts: Any) -> dict[str, Any]:
    """A dataclass as plain data; a trailing underscore keeps a field from being a keyword."""
    return asdict(facts, dict_factory=lambda pairs: {k.rstrip("_"): v for k, v in pairs})
