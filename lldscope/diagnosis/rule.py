"""Rules, their measurements, and their alarms.

An alarm is `pending` while its condition holds, but not yet for `for_steps` steps; it fires from
then on, and is `resolved` once the condition has not held for `clear_steps` steps. Everything is
causal: the state at a step depends on rows up to that step only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from . import detectors as d
from .evidence import Evidence, Flags, Rows

State = Literal["inactive", "pending", "firing", "resolved"]
Span = tuple[int, int | None]

# How often each rule fired in runs of sample_runs/alarm_bank that held, by held-out exact match.
# `python -m study report` counts this and writes the file.
COUNTS = Path(__file__).with_name("counted.json")


@cache
def tallies() -> dict[str, tuple[int, int]]:
    """Rule → number of runs in which it fired, and number of runs, among those that held and
    recorded its signals."""
    return {rule: (fired, runs) for rule, (fired, runs) in json.loads(COUNTS.read_bytes()).items()}


def fired_wrongly(rule: str) -> str:
    """The count of false alarms of a rule, in words."""
    if rule not in tallies():
        return "not counted yet"
    firings, runs = tallies()[rule]
    return f"fired in {firings} of {runs} runs of the tiny policy whose held-out score held"


class Severity(StrEnum):
    """How bad an alarm is. A string in JSON; compares by badness: INFO < WARNING < CRITICAL."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @cached_property
    def rank(self) -> int:
        """0 for information, 1 for a warning, 2 for a critical alarm."""
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
    """The order in which causes bring each other about. A cause can be a consequence of LLD or of a
    cause with a lower rank; a PRIMARY cause never is."""

    PRIMARY = 1
    SECONDARY = 2
    TERTIARY = 3


@dataclass(frozen=True)
class Declaration:
    """The description of an alarm, independent of any run.

    The alarm can be observed if one of the signals in `needs` is measured and all in `needs_too`.
    `evidence` describes the comparison, `confused_with` its look-alikes; `promise` is a guaranteed
    rate of false alarms, if there is more than a count.

    For the headline: `cause` and `action`; with `back`, the steps since should be discarded. A
    `consequence` gives no action if something else began first.
    """

    id: str
    needs: tuple[str, ...]
    meaning: str
    advice: str
    severity: Severity = Severity.WARNING
    cause: str = ""
    action: str = ""
    back: bool = False
    evidence: str = ""
    confused_with: str = ""
    promise: str = ""
    needs_too: tuple[str, ...] = ()

    @property
    def false_alarms(self) -> str:
        """How often the alarm is false."""
        return self.promise or fired_wrongly(self.id)


@dataclass(frozen=True)
class Measurement:
    """The result of a rule on a run, one entry per row of the signals.

    `holds` is the condition, `value` the measured number that is compared with `limit` (NaN: not
    measured), and `message(row)` a sentence with the numbers of one row. `explains` marks rows on
    which a cause is strong enough to explain a fall of the likelihood (default: `holds`);
    `unit(row)` overrides the rule's unit. `advice(row)` and `words(row)` (cause and action for the
    headline) override the rule's, if they depend on the numbers. `grave` marks rows with the rule's
    full severity; elsewhere the alarm is one degree milder. `back` marks rows on which the loss is
    regained, if the alarm should last beyond its condition.
    """

    holds: Flags
    value: d.Series
    limit: d.Series | float
    message: Callable[[int], str]
    explains: Flags | None = None
    unit: Callable[[int], str] | None = None
    advice: Callable[[int], str] | None = None
    words: Callable[[int], tuple[str, str]] | None = None
    grave: Flags | None = None
    back: Flags | None = None

    @property
    def threshold(self) -> d.Series:
        """The limit at each row."""
        return np.broadcast_to(np.asarray(self.limit, dtype=np.float64), self.value.shape)


@dataclass(frozen=True, kw_only=True)
class Rule(Declaration):
    """An alarm computed from the signals.

    `phase`: the rule holds in this phase only. `inhibited`: the rule does not hold while another
    cause explains a fall of the likelihood. `rank`: the `CauseRank` if the rule names a cause other
    than LLD, else 0; such a rule is met above its threshold, or below it (`fires_below`).
    `guarantee` replaces `promise` for one row. `inside`: a sign of the policy, not of the outcome;
    it is information while the reward clearly rises.
    """

    measure: Callable[[Evidence], Measurement]
    unit: str
    for_steps: int = 1
    clear_steps: int = 20
    phase: str | None = None
    inhibited: bool = False
    rank: int = 0
    fires_below: bool = False
    guarantee: Callable[[Evidence, int], str] | None = None
    inside: bool = False

    def __hash__(self) -> int:  # a hash of all fields takes as long as a statistic
        return hash(self.id)

    def firing(self, e: Evidence, holds: Flags) -> Rows:
        """For each row: the row since which the alarm has been firing, or -1. It fires once `holds`
        has been true for long enough, until `holds` has ended and the loss is regained."""
        waits = e.cadence.rows(self.for_steps), e.cadence.rows(self.clear_steps)
        return firing(holds, *waits, self.measure(e).back)


@dataclass(frozen=True)
class Episode:
    """A condition that holds from row `begin` on, has held long enough at row `fired`, and is over
    at row `end` (None while it lasts). `span` are the steps of `fired` and `end`."""

    begin: int
    fired: int
    end: int | None
    span: Span

    def at(self, row: int) -> bool:
        """Whether the alarm fires at a row."""
        return self.fired <= row and self.lasts(row)

    def lasts(self, row: int) -> bool:
        """Whether the episode is not over at a row."""
        return self.end is None or row < self.end


@dataclass(frozen=True)
class Alert:
    """A rule that fires, has fired, or is pending.

    `severity` is the worst so far; `step` is where the alarm first fired with that severity
    (pending: since when the condition holds); `value` and `threshold` are from there. `episodes`
    are (fired, resolved) steps at any severity, so later rows never change them; resolved is None
    while the alarm fires. `cause` and `action` are for the headline.
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
    cause: str = ""
    action: str = ""

    @property
    def first_step(self) -> int:
        """The step at which the alarm first fired, at any severity. Not for pending alarms."""
        return self.episodes[0][0]

    @property
    def start(self) -> int:
        """The step at which the alarm last fired. Not for pending alarms."""
        return self.episodes[-1][0]

    @property
    def since(self) -> str:
        """`start` and the time since, in words."""
        return f"{'firing since' if self.state == 'firing' else 'fired at'} step {self.start}"


def firing(holds: Flags, for_steps: int, clear_steps: int, back: Flags | None = None) -> Rows:
    """For each row: the row since which an alarm has been firing, or -1. It fires after `for_steps`
    true rows and ends after `clear_steps` false rows that are `back`."""
    over = ~holds if back is None else ~holds & back
    fires = np.flatnonzero(d.consecutive(holds) >= for_steps)
    clears = np.flatnonzero(d.consecutive(over) >= clear_steps)
    number, state = d.numbered(holds), d.cell()
    out, t, since = np.full(len(holds), -1), 0, -1 if state.value is None else state.value
    while t < len(out):
        if since < 0:
            later = fires[np.searchsorted(fires, t) :]
            if not len(later):
                break
            t = int(later[0])
            since = int(number[t])
        later = clears[np.searchsorted(clears, t) :]
        end = int(later[0]) if len(later) else len(out)
        out[t:end] = since
        t, since = end, -1 if len(later) else since
    state.value = since
    return out


def episodes(e: Evidence, holds: Flags, since: Rows) -> list[Episode]:
    """All episodes of `holds` so far; they fire `since` a row. The list grows."""
    on, state = d.consecutive(holds), d.cell()
    of: list[Episode]
    of, before = ([], -1) if state.value is None else state.value
    for row in np.flatnonzero(since != np.concatenate([[before], since])[:-1]).tolist():
        now, step = e.start + row, int(e.step[row])
        if since[row] >= 0:
            of.append(Episode(now - int(on[row]) + 1, now, None, (step, None)))
        else:
            of[-1] = replace(of[-1], end=now, span=(of[-1].span[0], step))
    state.value = of, int(since[-1]) if len(since) else before
    return of


def stretches(e: Evidence, flags: Flags, ends: int) -> list[Episode]:
    """All stretches so far in which a condition holds; a stretch ends after `ends` steps without
    it."""
    return episodes(e, flags, firing(flags, 1, e.cadence.rows(ends)))
