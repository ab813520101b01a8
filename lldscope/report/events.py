"""When what went wrong began, and when it was seen: one pair of steps for each alarm.

*Seen* is the step at which the alarm fired, as it did live; of several times the last, unless a
milder alarm of the same thing fired without a gap since before. *Began* is the step that the rule
itself dates, or else, with hindsight, the break of the best broken line through the steps around
(`diagnosis.changepoints`), with its 95 % interval. The line begins where the signal was best,
because otherwise the end of its improvement could be the best break; and nothing begins after it
was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..diagnosis import detectors as d
from ..diagnosis.assess import Assessment
from ..diagnosis.changepoints import (
    SEGMENT_STEPS,
    STEPS_AFTER,
    STEPS_BEFORE,
    Boundary,
    Curve,
    fit_either,
)
from ..diagnosis.evidence import SMOOTH, Evidence
from ..diagnosis.registry import STALLED
from ..diagnosis.rule import Severity
from ..monitor.alerts import AnyAlert
from ..monitor.headline import DECLARATION

# Rule → the signal whose break dates it, and the direction of the break.
BREAKS = {
    "entropy-surge": ("entropy", 1), "grad-explosion": ("grad_norm", 1),
    "grad-sustained": ("grad_norm", 1), "reward-crash": ("reward", -1),
    "reward-decline": ("reward", -1),
}
PHASES = {"lld-decay": "decay", "lld-collapse": "collapse"}
# Rule → the graver one of the same thing, beside which it says nothing new.
GRAVER = {"reward-decline": "reward-crash", "grad-sustained": "grad-explosion"}


@dataclass(frozen=True)
class Event:
    """What an alarm says went wrong. It began at `onset_step`, with its 95 % interval from `low` to
    `high` where that was estimated with hindsight, or None where it cannot be said; it was seen at
    `alarm_step`, and was over at `end_step`, None while it lasts."""

    rule: str
    severity: Severity
    what: str
    alarm_step: int
    end_step: int | None
    onset_step: int | None = None
    low: int | None = None
    high: int | None = None

    @property
    def start(self) -> int:
        """Where it began, or at least was seen."""
        return self.alarm_step if self.onset_step is None else self.onset_step


def events_of(
    assessment: Assessment, alerts: Sequence[AnyAlert], boundaries: Sequence[Boundary]
) -> list[Event]:
    """What went wrong, warnings and worse, in the order in which it began."""
    rules = {a.rule for a in alerts}
    collapse = next((a.start for a in alerts if a.rule == "lld-collapse"), None)
    events = []
    for alarm in alerts:
        before = collapse if alarm.rule == "lld-decay" else None
        step, end = _episode(alarm, before)
        serious = alarm.severity != "info" and alarm.rule != STALLED.id
        if step is None or not serious or GRAVER.get(alarm.rule) in rules:
            continue
        declaration = DECLARATION.get(alarm.rule)
        what = declaration.cause if declaration else f"Rule {alarm.rule}"
        pair = [alarm, *(a for a in alerts if GRAVER.get(a.rule) == alarm.rule)]
        step, onset = _first_sight(step, pair)
        event = Event(alarm.rule, alarm.severity, what, step, end, onset)
        if onset is None:
            event = _dated(event, assessment.evidence, boundaries)
        events.append(event)
    return sorted(events, key=lambda event: (event.start, -event.severity.rank, event.alarm_step))


def _episode(alarm: AnyAlert, before: int | None) -> tuple[int | None, int | None]:
    """When the alarm last fired and was resolved; of a decay, before the collapse it led to."""
    episodes = [e for e in alarm.episodes if before is None or (e[0] or 0) <= before]
    return (episodes or alarm.episodes)[-1]


def _first_sight(last: int, pair: Sequence[AnyAlert]) -> tuple[int, int | None]:
    """Since when one or the other of a pair of alarms has fired without a gap until `last`, and
    when that began, where the alarm says so."""
    first, onset = last, pair[0].onset
    firings = [(step, end, a.onset) for a in pair for step, end in a.episodes if step is not None]
    for step, end, start in sorted(firings, key=lambda episode: -episode[0]):
        if step < first and (end is None or end >= first):
            first, onset = step, start
    return first, onset


def _dated(event: Event, e: Evidence, boundaries: Sequence[Boundary]) -> Event:
    """With the step at which it began, where hindsight can tell."""
    phase = PHASES.get(event.rule)
    earlier = [b for b in boundaries if b.phase == phase and b.step <= event.alarm_step]
    if phase is not None and earlier:
        b = earlier[-1]
        return replace(event, onset_step=b.step, low=b.low, high=b.high)
    return _broken_line(event, e, *BREAKS[event.rule]) if event.rule in BREAKS else event


def _broken_line(event: Event, e: Evidence, signal: str, turn: int) -> Event:
    """With the step at which the curve bent; positive signals are fitted by their logarithm."""
    values = e.column(signal)
    log = signal != "reward"
    start = _best_before(e, values, turn, event.alarm_step)
    rows = (e.step >= start) & (e.step <= event.alarm_step + STEPS_AFTER) & np.isfinite(values)
    if log:
        rows &= values > 0
    if np.count_nonzero(rows) < 3 * SEGMENT_STEPS:
        return event
    y = np.log(values[rows]) if log else values[rows]
    breaks = fit_either(Curve(signal, e.step[rows].astype(float), y, turn), event.alarm_step)
    if breaks is None:
        return event
    _, (step, low, high) = breaks
    return replace(event, onset_step=step, low=low, high=high)


def _best_before(e: Evidence, values: d.Series, turn: int, alarm_step: int) -> int:
    """The first step of the best trailing mean of the STEPS_BEFORE steps before the alarm: the
    highest of a signal that fell, the lowest of one that rose."""
    window, earliest = e.cadence.rows(SMOOTH), alarm_step - STEPS_BEFORE
    mean = d.trailing_mean(values, window, window)
    rows = np.flatnonzero((e.step >= earliest) & (e.step < alarm_step) & np.isfinite(mean))
    if not len(rows):
        return earliest
    best = int(rows[np.argmin(turn * mean[rows])])
    return int(max(e.step[best - window + 1], earliest))
