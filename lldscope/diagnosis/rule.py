"""What a rule is, what it measures, and the alarms that come of it.

An alarm is `pending` while its condition holds, but not yet for `for_steps` steps; it fires from
then on, and is `resolved` once the condition has not held for `clear_steps` steps. Everything is
causal: the state at a step depends on rows up to that step only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from . import detectors as d
from .evidence import Evidence, Flags, Rows

State = Literal["inactive", "pending", "firing", "resolved"]
Span = tuple[int, int | None]

# How often each rule fired wrongly: in runs of sample_runs/alarm_bank that held, by their held-out
# exact match. `python -m study report` counts them and writes the file.
COUNTS = Path(__file__).with_name("counted.json")


@cache
def tallies() -> dict[str, tuple[int, int]]:
    """Rule → runs in which it fired, of those that held and recorded its signals."""
    return {rule: (fired, runs) for rule, (fired, runs) in json.loads(COUNTS.read_bytes()).items()}


def fired_wrongly(rule: str) -> str:
    """What was counted of a rule, in words."""
    if rule not in tallies():
        return "not counted yet"
    firings, runs = tallies()[rule]
    return f"fired in {firings} of {runs} runs of the tiny policy whose held-out score held"


class Severity(StrEnum):
    """How bad an alarm is. A string in JSON; compares by badness: INFO < WARNING < CRITICAL."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
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
    """The order in which causes bring each other about: a cause can be the consequence of one with
    a lower rank, or of LLD, but a PRIMARY cause is never taken for a consequence."""

    PRIMARY = 1
    SECONDARY = 2
    TERTIARY = 3


@dataclass(frozen=True)
class Declaration:
    """The description of an alarm, independent of any run.

    The alarm can be observed if one of the signals in `needs` is measured and all in `needs_too`.
    `evidence` says what is compared with what, `confused_with` what else can look like it;
    `promise` is how often it is false, where that was not only counted.

    For a headline: `cause` is what is wrong, `action` what to do, and with `back` the steps since
    should be thrown away. A `consequence` never says what to do where something else began first.
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
        """How often it is false."""
        return self.promise or fired_wrongly(self.id)


@dataclass(frozen=True)
class Measurement:
    """What a rule finds in a run, one entry per row of the signals.

    `holds` is the condition, `value` what was compared with `limit` (NaN: not measured), and
    `message(row)` a sentence with the numbers of one row. `explains` is where a cause is strong
    enough to explain a fall of the likelihood (default: where it holds); `unit(row)` is the unit
    where it is not always the rule's. Where they depend on what was found, `advice(row)` is what to
    do, and `words(row)` are cause and action for the headline. `grave` is where the alarm is as
    severe as its rule says, where that is not everywhere: elsewhere it is one degree less so.
    `back` is where what was lost is regained, where more than the end of the condition is asked for
    the end of the alarm.
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
    """An alarm that is computed from the signals.

    `phase`: the rule holds only while the run is in this phase. `inhibited`: it does not hold where
    a fall of the likelihood is attributed to another cause. `rank` is set where the rule names a
    cause other than LLD. `fires_below`: values under the threshold are the bad ones. `guarantee`
    replaces `promise` for one row. `inside`: a sign of the policy and not of the outcome, so
    it is information while the reward clearly rises.
    """

    measure: Callable[[Evidence], Measurement]
    unit: str
    for_steps: int = 1
    clear_steps: int = 20
    phase: str | None = None
    inhibited: bool = False
    rank: CauseRank | None = None
    fires_below: bool = False
    guarantee: Callable[[Evidence, int], str] | None = None
    inside: bool = False

    def firing(self, e: Evidence, holds: Flags) -> Rows:
        """For each row the row from which on the alarm fires there, -1 where it does not: from
        where `holds` has been true for long enough to where it no longer is, and what was lost is
        back."""
        waits = e.cadence.rows(self.for_steps), e.cadence.rows(self.clear_steps)
        return firing(holds, *waits, self.measure(e).back)


@dataclass(frozen=True)
class Episode:
    """Something is there from row `begin` on; it has been for long enough at row `fired`, and is
    over at row `end`, which is None while it lasts. `span` are the steps of the last two."""

    begin: int
    fired: int
    end: int | None
    span: Span

    def at(self, row: int) -> bool:
        """Whether it fires at a row."""
        return self.fired <= row and self.lasts(row)

    def lasts(self, row: int) -> bool:
        """Whether it is not over at a row."""
        return self.end is None or row < self.end


@dataclass(frozen=True)
class Alert:
    """A rule that fires, has fired, or is about to.

    `severity` is the worst it has had; `step` is where it first fired with that severity, or, while
    it is pending, since when it holds; `value` and `threshold` are from there. `episodes` are
    (fired, resolved) steps, of whatever severity, so that none of them changes as the run goes on;
    resolved is None while the alarm still fires. `cause` and `action` are for the headline.
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
        """The step at which it first fired, of whatever severity. Not of a pending alarm."""
        return self.episodes[0][0]

    @property
    def start(self) -> int:
        """The step at which it last fired. Not of a pending alarm."""
        return self.episodes[-1][0]

    @property
    def since(self) -> str:
        """The same in words."""
        return f"{'firing since' if self.state == 'firing' else 'fired at'} step {self.start}"


def firing(holds: Flags, for_steps: int, clear_steps: int, back: Flags | None = None) -> Rows:
    """For each row the number of the row from which on an alarm fires there, -1 where it does not:
    from `for_steps` of true to `clear_steps` of false that are `back`."""
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
        t, since = end, since if end == len(out) and not len(later) else -1
    state.value = since
    return out


def episodes(e: Evidence, holds: Flags, since: Rows) -> list[Episode]:
    """All episodes so far of what `holds`, and fires `since` a row. The list grows."""
    on, before = d.consecutive(holds), np.nan_to_num(d.shifted(since, 1), nan=-1)
    state = d.cell()
    of: list[Episode] = [] if state.value is None else state.value
    for row in np.flatnonzero(since != before).tolist():
        now, step = e.start + row, int(e.step[row])
        if since[row] >= 0:
            of.append(Episode(now - int(on[row]) + 1, now, None, (step, None)))
        else:
            of[-1] = replace(of[-1], end=now, span=(of[-1].span[0], step))
    state.value = of
    return of


def stretches(e: Evidence, flags: Flags, ends: int) -> list[Episode]:
    """All stretches so far in which something is there, until it has not been for `ends` steps."""
    return episodes(e, flags, firing(flags, 1, e.cadence.rows(ends)))
