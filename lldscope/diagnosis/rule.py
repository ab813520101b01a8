"""What a rule is, what it measures, and the alarms that come of it.

An alarm is `pending` while its condition holds, but not yet for `for_steps` steps; it fires from
then on, and is `resolved` once the condition has not held for `clear_steps` steps. Everything is
causal: the state at a step depends on rows up to that step only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Literal

import numpy as np

from . import detectors as d
from .counted import fired_wrongly
from .evidence import Evidence, Flags
from .phases import Phase

State = Literal["inactive", "pending", "firing", "resolved"]
Span = tuple[int, int | None]


class Severity(StrEnum):
    """How bad an alarm is. A string in JSON; compares by badness: INFO < WARNING < CRITICAL."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return list(Severity).index(self)

    def __lt__(self, other: str) -> bool:
        return self.rank < Severity(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= Severity(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > Severity(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= Severity(other).rank


class CauseRank(IntEnum):
    """The order in which causes bring each other about: a cause can be the consequence of one with
    a lower rank, or of LLD, but a PRIMARY cause is never taken for a consequence."""

    PRIMARY = 1
    SECONDARY = 2
    TERTIARY = 3


@dataclass(frozen=True)
class Declaration:
    """The description of an alarm, independent of any run.

    The alarm can be observed if one of the signals in `needs` is measured and all in `needs_too`.
    `evidence` says what is compared with what, `confused_with` what else can look like it. Where
    `false_alarms` is not given, it is what was counted.
    """

    id: str
    severity: Severity
    needs: tuple[str, ...]
    meaning: str
    advice: str
    evidence: str = ""
    confused_with: str = ""
    false_alarms: str = ""
    needs_too: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.false_alarms:
            object.__setattr__(self, "false_alarms", fired_wrongly(self.id))


@dataclass(frozen=True)
class Measurement:
    """What a rule finds in a run, one entry per row of the signals.

    `holds` is the condition, `value` what was compared with `threshold` (NaN: not measured), and
    `message(row)` a sentence with the numbers of one row. `explains` is where a cause is strong
    enough to explain a fall of the likelihood (default: where it holds); `unit(row)` is the unit
    where it is not always the rule's, and `advice(row)` what to do where that depends on what was
    found. `per_step` is what `value` is the trailing mean of, where single steps can be over the
    threshold, too: it dates the beginning, which a mean sees late.
    """

    holds: Flags
    value: d.Series
    threshold: d.Series
    message: Callable[[int], str]
    explains: Flags | None = None
    unit: Callable[[int], str] | None = None
    advice: Callable[[int], str] | None = None
    per_step: d.Series | None = None


@dataclass(frozen=True, kw_only=True)
class Rule(Declaration):
    """An alarm that is computed from the signals.

    `phase`: the rule holds only while the run is in this phase. `inhibited`: it does not hold where
    a fall of the likelihood is attributed to another cause. `cause` is set where the rule names a
    cause other than LLD. `fires_below`: values under the threshold are the bad ones. `guarantee`
    replaces `false_alarms` for one row.
    """

    measure: Callable[[Evidence], Measurement]
    unit: str
    for_steps: int = 1
    clear_steps: int = 20
    phase: Phase | None = None
    inhibited: bool = False
    cause: CauseRank | None = None
    fires_below: bool = False
    guarantee: Callable[[Evidence, int], str] | None = None

    def episodes(self, e: Evidence, holds: Flags) -> list[Span]:
        """Row spans in which the alarm fires where its condition is `holds`."""
        return episodes(holds, e.cadence.rows(self.for_steps), e.cadence.rows(self.clear_steps))


@dataclass(frozen=True)
class Alert:
    """A rule that fires, has fired, or is about to.

    `step` is where it first fired, or, while it is pending, since when it holds; `value` and
    `threshold` are from there. `episodes` are (fired, resolved) steps; resolved is None while the
    alarm still fires. `began` is the first of the steps up to `step` that, without a gap, were
    each over the threshold by itself; None where the rule does not judge single steps.
    """

    rule: str
    severity: Severity
    state: State
    step: int
    value: float
    threshold: float
    message: str
    meaning: str
    evidence: str
    advice: str
    false_alarms: str
    episodes: tuple[Span, ...]
    began: int | None = None


def condition_met(
    rule: Rule, e: Evidence, phases: Sequence[Phase | None], explained: Flags
) -> Flags:
    """Whether the condition of the rule is met, for each row; NaN never meets one."""
    holds = rule.measure(e).holds
    if rule.phase is not None:
        holds = holds & np.array([phase == rule.phase for phase in phases], dtype=bool)
    return holds & ~explained if rule.inhibited else holds


def evaluate_rules(
    e: Evidence, phases: Sequence[Phase | None], rules: Sequence[Rule], explained: Flags
) -> tuple[list[Alert], list[Alert]]:
    """Alarms that have fired up to the last row, and those that are pending there; each list worst
    and then earliest first."""
    fired, pending = [], []
    for rule in rules:
        holds = condition_met(rule, e, phases, explained)
        if not holds.any():
            continue
        spans = rule.episodes(e, holds)
        fires = bool(spans) and spans[-1][1] is None
        if spans:
            state: State = "firing" if fires else "resolved"
            fired.append(_alert(rule, e, spans[0][0], state, spans))
        if holds[-1] and not fires:
            since = len(holds) - int(d.consecutive(holds)[-1])
            pending.append(_alert(rule, e, since, "pending", ()))
    return _sorted(fired), _sorted(pending)


def _sorted(alerts: list[Alert]) -> list[Alert]:
    return sorted(alerts, key=lambda a: (-a.severity.rank, a.step))


def _alert(rule: Rule, e: Evidence, row: int, state: State, spans: Sequence[Span]) -> Alert:
    measured = rule.measure(e)
    return Alert(
        rule=rule.id,
        severity=rule.severity,
        state=state,
        step=int(e.step[row]),
        value=float(measured.value[row]),
        threshold=float(measured.threshold[row]),
        message=measured.message(row),
        meaning=rule.meaning,
        evidence=rule.evidence,
        advice=measured.advice(row) if measured.advice else rule.advice,
        false_alarms=rule.guarantee(e, row) if rule.guarantee else rule.false_alarms,
        episodes=tuple((int(e.step[a]), None if b is None else int(e.step[b])) for a, b in spans),
        began=_began(measured, e, row),
    )


def _began(measured: Measurement, e: Evidence, row: int) -> int | None:
    """The first step of the unbroken stretch up to `row` in which every step was over the limit."""
    if measured.per_step is None:
        return None
    with np.errstate(invalid="ignore"):
        over = measured.per_step > measured.threshold
    stretch = int(d.consecutive(over)[row])
    return int(e.step[row - stretch + 1]) if stretch else None


def episodes(holds: Flags, for_steps: int, clear_steps: int) -> list[Span]:
    """Row spans in which an alarm fires: from `for_steps` of true to `clear_steps` of false."""
    fires = np.flatnonzero(d.consecutive(holds) >= for_steps)
    clears = np.flatnonzero(d.consecutive(~holds) >= clear_steps)
    spans: list[Span] = []
    while len(fires):
        start = int(fires[0])
        clears = clears[clears > start]
        if not len(clears):
            return [*spans, (start, None)]
        spans.append((start, int(clears[0])))
        fires = fires[fires > clears[0]]
    return spans
