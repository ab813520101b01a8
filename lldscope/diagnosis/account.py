"""What went wrong in a run: when each trouble began, when it was seen, and what led to the loss of
the outcome.

*Seen* is the step at which the alarm fired, as it did live; of several times the last, unless a
milder alarm of the same thing fired without a gap since before. *Began* is, with hindsight, the
break of the best broken line through the steps around (`changepoints`), with its 95 % interval. The
line begins where the signal was best, because otherwise the end of its improvement could be the
best break; and nothing begins after it was seen.

Causes and the fall are dated alike. What acts on the policy from outside, such as a dead tool, or a
limit that is lowered from one step to the next, may begin with the fall that it causes; what the
policy itself does must begin before the fall, or it is a consequence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from . import detectors as d
from .causes import LAG
from .changepoints import (
    SEGMENT_STEPS,
    STEPS_AFTER,
    STEPS_BEFORE,
    Boundary,
    Curve,
    fit_either,
    refine,
)
from .evidence import SMOOTH, Log, Restarts
from .outcome import reward_series
from .phases import PhaseSpan
from .registry import LOOK_ALIKES, RULES
from .rule import Alert, CauseRank, Severity, Span

# Rule → the signal whose break dates it, and the direction of the break.
BREAKS = {
    "entropy-surge": ("entropy", 1), "grad-explosion": ("grad_norm", 1), "kl-explosion": ("kl", 1),
    "reward-crash": ("reward", -1), "reward-decline": ("reward", -1),
    "length-collapse": ("response_tokens", -1), "length-growth": ("response_tokens", 1),
    "truncation": ("truncated_share", 1), "tool-abandoned": ("valid_searches", -1),
    "tool-outage": ("tool_fail_share", 1),
}
LOGARITHMIC = ("entropy", "grad_norm", "response_tokens", "kl")
PHASES = {"lld-decay": "decay", "lld-collapse": "collapse"}
# Rule → the graver one of the same thing, beside which it says nothing new.
GRAVER = {"reward-decline": "reward-crash"}

HELD_OUT = ("eval-gap", "eval-loss")
OUTCOME = ("reward-crash", "reward-decline")
"""Rules that say that the outcome is lost, and not why."""

ALONGSIDE = {*OUTCOME, "step-change", "eval-gap", "eval-loss", "lld-decay", "lld-collapse"}
"""Rules of the fall itself, and those that see later than the reward what began before it."""

FROM_OUTSIDE = {rule.id for rule in RULES if rule.rank == CauseRank.PRIMARY} | {"step-change"}
OF_THE_POLICY = {rule.id for rule in RULES if rule.inside} | {"step-size"}
BACK = {rule.id for rule in RULES if rule.back}


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
    e: Log, alerts: Sequence[Alert], boundaries: Sequence[Boundary]
) -> list[Event]:
    """What went wrong, warnings and worse, in the order in which it began."""
    rules = {a.rule for a in alerts}
    collapse = next((a.start for a in alerts if a.rule == "lld-collapse"), None)
    events = []
    for alarm in alerts:
        before = collapse if alarm.rule == "lld-decay" else None
        step, end = _episode(alarm, before)
        if alarm.severity == "info" or GRAVER.get(alarm.rule) in rules:
            continue
        pair = [alarm, *(a for a in alerts if GRAVER.get(a.rule) == alarm.rule)]
        event = Event(alarm.rule, alarm.severity, alarm.cause, _first_sight(step, pair), end)
        events.append(_dated(event, e, boundaries))
    return sorted(events, key=lambda event: (event.start, -event.severity.rank, event.alarm_step))


def _episode(alarm: Alert, before: int | None) -> Span:
    """When the alarm last fired and was resolved; of a decay, before the collapse it led to."""
    episodes = [e for e in alarm.episodes if before is None or e[0] <= before]
    return (episodes or alarm.episodes)[-1]


def _first_sight(last: int, pair: Sequence[Alert]) -> int:
    """Since when one or the other of a pair of alarms has fired without a gap until `last`."""
    episodes = [episode for a in pair for episode in a.episodes]
    for step, end in sorted(episodes, key=lambda episode: -episode[0]):
        if step < last and (end is None or end >= last):
            last = step
    return last


def _dated(event: Event, e: Log, boundaries: Sequence[Boundary]) -> Event:
    """With the step at which it began, where hindsight can tell."""
    phase = PHASES.get(event.rule)
    earlier = [b for b in boundaries if b.phase == phase and b.step <= event.alarm_step]
    if phase is not None and earlier:
        b = earlier[-1]
        return replace(event, onset_step=b.step, low=b.low, high=b.high)
    return _broken_line(event, e, *BREAKS[event.rule]) if event.rule in BREAKS else event


def _broken_line(event: Event, e: Log, signal: str, turn: int) -> Event:
    """With the step at which the curve bent; positive signals are fitted by their logarithm."""
    values = reward_series(e) if signal == "reward" else e.column(signal)
    start = _best_before(e, values, turn, event.alarm_step)
    rows = e.between(start, event.alarm_step + STEPS_AFTER)
    key = (events_of, event.rule, event.alarm_step, rows.stop)
    if key not in e.fits:
        steps, y = e.step[rows], values[rows]
        if signal in LOGARITHMIC:
            y = np.log(np.where(y > 0, y, np.nan))
        curve = Curve(signal, steps[np.isfinite(y)].astype(float), y[np.isfinite(y)], turn)
        is_long = len(curve.steps) >= 3 * SEGMENT_STEPS
        e.fits[key] = fit_either(curve, event.alarm_step) if is_long else None
    if (breaks := e.fits[key]) is None:
        return event
    _, (step, low, high) = breaks
    return replace(event, onset_step=step, low=low, high=high)


def _best_before(e: Log, values: d.Series, turn: int, alarm_step: int) -> int:
    """The first step of the best trailing mean of the STEPS_BEFORE steps before the alarm: the
    highest of a signal that fell, the lowest of one that rose."""
    window, earliest = e.cadence.rows(SMOOTH), alarm_step - STEPS_BEFORE
    rows = e.between(earliest, alarm_step - 1)
    first = max(rows.start - window + 1, 0)
    mean = d.trailing_mean(values[first : rows.stop], window, window)[rows.start - first :]
    if np.isnan(mean).all():
        return earliest
    best = rows.start + int(np.nanargmin(turn * mean))
    return int(max(e.step[best - window + 1], earliest))


class Fall(NamedTuple):
    """When a loss of the outcome began: by the best estimate, and at the latest."""

    first: int
    latest: int


class Onset(NamedTuple):
    """The rule whose alarm names the trouble, the step at which it fired, and the last step before
    the trouble began."""

    rule: str
    fired: int
    sound: int


@dataclass(frozen=True)
class Explanation:
    """What to say first of the alarms that fire. `alarm` is the worst of them, or the cause of it.

    Its trouble began at `step`, or was seen there if it `is_dated` nowhere. If the outcome is lost,
    `cause` is what led to that and where it began; or else `restart` is where the run trained
    differently from then on, or `with_it` what the policy did at the same time. `is_late`: the
    trouble began after the outcome was lost. `decay`: of a collapse, the step by which correct
    responses were losing likelihood. `sound`: the last step before what spoils the steps since.
    """

    alarm: Alert
    step: int
    is_dated: bool
    is_cause: bool = False
    is_late: bool = False
    cause: tuple[int, Alert] | None = None
    restart: int | None = None
    with_it: tuple[int, Alert] | None = None
    decay: int | None = None
    sound: int | None = None


@dataclass(frozen=True)
class Account:
    """The alarms of a run and its `events`, and what led to the loss of its outcome: the one place
    that says when something began. `causes` are the look-alikes that the log supports, `restarts`
    the steps from which on it trained differently, `boundaries` those of its `phases` in
    hindsight."""

    alerts: Sequence[Alert]
    events: Sequence[Event] = ()
    causes: Collection[str] = ()
    restarts: Restarts = field(default_factory=lambda: MappingProxyType({}))
    boundaries: Sequence[Boundary] = ()
    phases: Sequence[PhaseSpan] = ()

    @classmethod
    def of(
        cls, log: Log, alerts: Sequence[Alert], timeline: Sequence[tuple[PhaseSpan, bool]],
        causes: Collection[str],
    ) -> Account:
        """The account of all rows; with hindsight, so it takes longer than the alarms."""
        boundaries, phases = refine(log, timeline), [span for span, _ in timeline]
        events = events_of(log, alerts, boundaries)
        return cls(alerts, events, causes, log.restarts, boundaries, phases)

    @property
    def first_sign(self) -> int | None:
        """The first step at which a warning or worse fired, or its trouble began."""
        serious = [a.first_step for a in self.alerts if a.severity != "info"]
        return min([*serious, *(event.start for event in self.events)], default=None)

    @property
    def likelihood_fell(self) -> int | None:
        """Where the likelihood of correct responses began to fall: with hindsight, or else as seen
        live."""
        live = [s.start_step for s in self.phases if s.phase in ("decay", "collapse")]
        return next(iter([*(b.step for b in self.boundaries), *live]), None)

    @cached_property
    def explanation(self) -> Explanation | None:
        """What to say first; None where nothing fires that is worse than information."""
        firing = [a for a in self.alerts if a.state == "firing" and a.severity != "info"]
        if not firing:
            return None
        alarm = self._leading([a for a in firing if a.severity == firing[0].severity])
        step, sound = self.start(alarm), self.sound_step()
        cause = restart = with_it = decay = None
        if alarm.rule in OUTCOME:
            cause = next(iter(self.led_to_loss()), None)
            restart = None if cause else self.restart()
            with_it = None if cause or restart is not None else self.came_with_it()
        if restart is not None and sound is not None:
            sound = min(sound, restart - 1)
        decays = [a for a in self.alerts if a.rule == "lld-decay"]
        if alarm.rule == "lld-collapse" and decays:
            step = alarm.start  # as the phases have it, which were seen live
            fired = [first for first, _ in decays[0].episodes]
            decay = max((first for first in fired if first <= step), default=fired[0])
        is_late = alarm.rule not in ALONGSIDE and not self.precedes_loss(alarm, step)
        event = self.event(alarm)
        return Explanation(
            alarm, step, event is not None and event.onset_step is not None,
            alarm.rule in self.causes, is_late, cause, restart, with_it, decay, sound,
        )

    def _leading(self, worst: Sequence[Alert]) -> Alert:
        """Among equally bad alarms the first cause that the log supports and that began before the
        fall, or else the first alarm; an alarm that says less than another comes last."""
        causes = [a for a in worst if a.rule in self.causes and a.rule in LOOK_ALIKES]
        causes = [a for a in causes if self.precedes_loss(a, self.start(a))]
        if causes:
            return min(causes, key=self.start)
        # A decline only says that something is.
        return next((a for a in worst if a.rule != "reward-decline"), worst[0])

    def onset(self) -> Onset | None:
        """The trouble of the run: that of the alarm to begin with, or of the held-out score if that
        fell first; None where no warning has fired."""
        alarms = [a for a in self.alerts if a.severity != "info"]
        first = self.explanation and self.explanation.alarm.rule
        named = [a for a in alarms if a.rule in (first, *HELD_OUT)] or alarms[:1]
        signs = [Onset(a.rule, a.start, self.last_sound_step(a)) for a in named]
        return min(signs, key=lambda sign: sign.sound, default=None)

    def event(self, alarm: Alert) -> Event | None:
        """The event that an alarm is of."""
        rules = alarm.rule, GRAVER.get(alarm.rule)
        return next((event for event in self.events if event.rule in rules), None)

    def start(self, alarm: Alert) -> int:
        """Where the trouble of an alarm began, or else was seen."""
        event = self.event(alarm)
        return alarm.start if event is None or event.onset_step is None else event.onset_step

    def fall(self) -> Fall | None:
        """The loss of the outcome that goes on."""
        alarms = [a for a in self.alerts if a.rule in OUTCOME and a.state == "firing"]
        if not alarms:
            return None
        event = self.event(alarms[0])
        if event is None or event.onset_step is None or event.high is None:
            step = min(a.start for a in alarms)  # trailing means see it late
            return Fall(step - SMOOTH, step)
        return Fall(event.onset_step, event.high)

    def led_to_loss(self, supported: bool = True) -> list[tuple[int, Alert]]:
        """What may have led to the loss of the outcome that goes on, and where it began, the most
        certain first. `supported`: of the look-alikes only those that the log supports. What has
        been resolved since counts as well: in time the values of a broken run are usual ones."""
        if (fall := self.fall()) is None:
            return []
        signs = []
        for a in self.alerts:
            is_cause = a.rule in self.causes or (a.rule == "lld-decay" and "lld" in self.causes)
            may_be = is_cause or a.rule == "step-change" or a.rule in OF_THE_POLICY - {*LOOK_ALIKES}
            if not (may_be or (not supported and a.rule in LOOK_ALIKES)) or a.severity == "info":
                continue
            for fired, resolved in a.episodes:
                began = self.start(a) if fired == a.start else fired
                lasted = resolved is None or resolved >= fall.latest
                if lasted and self.precedes_loss(a, began):
                    signs.append((not is_cause, a.rule not in FROM_OUTSIDE, began, a))
        return [(began, a) for *_, began, a in sorted(signs, key=lambda sign: sign[:3])]

    def precedes_loss(self, alarm: Alert, began: int) -> bool:
        """The trouble of an alarm can have led to the loss of the outcome, by when it began; of a
        look-alike that came within one step as if it were from outside."""
        if (fall := self.fall()) is None:
            return True
        event = self.event(alarm)
        low, high = (began, began) if event is None else (event.low or began, event.high or began)
        at_once = alarm.rule in LOOK_ALIKES and event is not None and high - low <= 1
        is_from_outside = alarm.rule in FROM_OUTSIDE or at_once
        return high < fall.first or (is_from_outside and began <= fall.latest)

    def came_with_it(self) -> tuple[int, Alert] | None:
        """What the policy did first about when the loss began."""
        if (fall := self.fall()) is None:
            return None
        alarms = [a for a in self.alerts if a.rule in OF_THE_POLICY and a.severity != "info"]
        signs = [(start, a) for a in alarms if fall.first - SMOOTH < (start := self.start(a))]
        during = [sign for sign in signs if sign[0] <= max(fall.latest, fall.first + SMOOTH)]
        return min(during, key=lambda sign: sign[0], default=None)

    def restart(self) -> int | None:
        """The restart at which the outcome was lost."""
        if (fall := self.fall()) is None:
            return None
        return max((s for s in self.restarts if fall.first - LAG <= s <= fall.latest), default=None)

    def sound_step(self) -> int | None:
        """The last step before all that fires and spoils the steps since; None if nothing does."""
        firing = [a for a in self.alerts if a.state == "firing" and a.severity != "info"]
        return min((self.last_sound_step(a) for a in firing if a.rule in BACK), default=None)

    def last_sound_step(self, alarm: Alert) -> int:
        """The last step before the trouble of an alarm; of a collapse, before the decay; of a lost
        outcome, before what may have led to it. Trailing means see a fault late, so where its
        beginning is not known exactly, only steps from SMOOTH before the alarm on count."""
        led_to = ("lld-decay", "lld-collapse") if alarm.rule == "lld-collapse" else (alarm.rule,)
        alarms = [a for a in self.alerts if a.rule in led_to]
        signs = [a for _, a in self.led_to_loss(supported=False)] if alarm.rule in OUTCOME else []
        return min(self._before(a) for a in (*alarms, *signs))

    def _before(self, alarm: Alert) -> int:
        event = self.event(alarm)
        if event is None or event.low is None or event.high is None:
            return alarm.step - SMOOTH
        is_exact = event.high - event.low <= 1 and len(alarm.episodes) == 1
        return event.low - 1 if is_exact else min(alarm.step - SMOOTH, event.low - 1)
