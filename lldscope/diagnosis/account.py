"""What went wrong in a run: when each trouble began, when it was seen, and what led to the loss of
the outcome.

*Seen* is the step at which the alarm first fired live after the trouble began. If the beginning is
unknown, it is the last time that the alarm began to fire; or an earlier step, since which a milder
alarm of the same trouble has fired without a gap.

*Began* is, in hindsight, the break of the best broken line through the steps around
(`changepoints`), with its 95 % interval. The line begins where the signal was best: otherwise the
best break could be the end of the improvement. Nothing begins after it was seen.

Causes and the fall are dated alike. A cause outside the policy (a dead tool, a lowered limit) may
begin at the same step as the fall. A change of the policy itself must begin before the fall;
otherwise it is a consequence.
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
from .evidence import SMOOTH, TEST_STEPS, Log, Restarts
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
# Rule → the graver rule of the same trouble, beside which it says nothing new.
GRAVER = {"reward-decline": "reward-crash"}

HELD_OUT = ("eval-gap", "eval-loss")
OUTCOME = ("reward-crash", "reward-decline")
"""Rules of a lost outcome, which do not tell the cause."""

PLUNGE = 20.0  # × the deviation of Δ before; a dead tool lowers Δ by up to 18 ×
PLUNGE_STEPS = 5  # before the loss of the outcome

ALONGSIDE = {*OUTCOME, "step-change", "eval-gap", "eval-loss", "lld-decay", "lld-collapse"}
"""Rules of the fall itself, and rules that react later than the reward to a cause that began before
it."""

FROM_OUTSIDE = {rule.id for rule in RULES if rule.rank == CauseRank.PRIMARY} | {"step-change"}
OF_THE_POLICY = {rule.id for rule in RULES if rule.inside} | {"step-size"}
BACK = {rule.id for rule in RULES if rule.back}


@dataclass(frozen=True)
class Event:
    """One trouble, named by an alarm. It began at `onset_step` (None if unknown; `low` to `high` is
    the 95 % interval, if hindsight estimated one), was seen at `alarm_step`, and ended at
    `end_step` (None while it lasts)."""

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
        """The step at which it began, or else was seen."""
        return self.alarm_step if self.onset_step is None else self.onset_step


def events_of(
    e: Log, alerts: Sequence[Alert], boundaries: Sequence[Boundary]
) -> list[Event]:
    """Warnings and worse, in the order in which they began."""
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
        event = _dated(event, e, boundaries)
        firings = [start for a in pair for start, _ in a.episodes if start >= event.start]
        sight = min(firings, default=event.alarm_step)
        high = None if event.high is None else min(event.high, sight)
        events.append(replace(event, alarm_step=sight, high=high))
    return sorted(events, key=lambda event: (event.start, -event.severity.rank, event.alarm_step))


def _episode(alarm: Alert, before: int | None) -> Span:
    """The steps at which the alarm last fired and was resolved. Of a decay that led to a collapse,
    only episodes before the collapse count."""
    episodes = [e for e in alarm.episodes if before is None or e[0] <= before]
    return (episodes or alarm.episodes)[-1]


def _first_sight(last: int, pair: Sequence[Alert]) -> int:
    """The step since which at least one of a pair of alarms has fired without a gap until
    `last`."""
    episodes = [episode for a in pair for episode in a.episodes]
    for step, end in sorted(episodes, key=lambda episode: -episode[0]):
        if step < last and (end is None or end >= last):
            last = step
    return last


def _dated(event: Event, e: Log, boundaries: Sequence[Boundary]) -> Event:
    """The event with the step at which it began, if hindsight can date it."""
    phase = PHASES.get(event.rule)
    earlier = [b for b in boundaries if b.phase == phase and b.step <= event.alarm_step]
    if phase is not None and earlier:
        b = earlier[-1]
        return replace(event, onset_step=b.step, low=b.low, high=b.high)
    return _broken_line(event, e, *BREAKS[event.rule]) if event.rule in BREAKS else event


def _broken_line(event: Event, e: Log, signal: str, turn: int) -> Event:
    """The event with the step at which the curve bent. Positive signals are fitted by their
    logarithm."""
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
    """The first step of the best trailing mean among the STEPS_BEFORE steps before the alarm: the
    highest mean of a signal that fell, the lowest of one that rose."""
    window, earliest = e.cadence.rows(SMOOTH), alarm_step - STEPS_BEFORE
    rows = e.between(earliest, alarm_step - 1)
    first = max(rows.start - window + 1, 0)
    mean = d.trailing_mean(values[first : rows.stop], window, window)[rows.start - first :]
    if np.isnan(mean).all():
        return earliest
    best = rows.start + int(np.nanargmin(turn * mean))
    return int(max(e.step[best - window + 1], earliest))


def _plunge(e: Log, fall: Fall | None) -> Plunge | None:
    """Of the steps around the loss of the outcome, the one in which correct responses lost most
    likelihood, if that is far more than the deviation of Δ before (median absolute deviation)."""
    if fall is None:
        return None
    delta, rows = e.column("delta_correct"), e.between(fall.first - PLUNGE_STEPS, fall.latest)
    before = delta[: rows.start][np.isfinite(delta[: rows.start])]
    if len(before) < SMOOTH or np.isnan(delta[rows]).all():
        return None
    usual, row = float(np.median(before)), rows.start + int(np.nanargmin(delta[rows]))
    deviation = float(np.median(np.abs(before - usual))) / d.MEDIAN_OF_NORMAL
    is_plunge = usual - delta[row] >= PLUNGE * deviation > 0.0
    return Plunge(int(e.step[row]), float(delta[row]), usual) if is_plunge else None


class Fall(NamedTuple):
    """A loss of the outcome: the best estimate of its first step, and the latest possible one."""

    first: int
    latest: int


class Plunge(NamedTuple):
    """A step in which correct responses lost likelihood: their mean Δ and the usual one, in nats
    per response."""

    step: int
    delta: float
    usual: float


class Onset(NamedTuple):
    """The alarm that names the trouble, the step at which it fired, and the last step before the
    trouble."""

    rule: str
    fired: int
    sound: int


@dataclass(frozen=True)
class Explanation:
    """The headline of the firing alarms.

    `alarm` is the worst alarm, or the alarm of its cause. The trouble began at `step`; if
    `is_dated` is False, it was only seen there. If the outcome is lost, `cause` names what led to
    the loss, with its step; without a cause, `restart` is the restart after which the run trained
    differently, or `with_it` is a change of the policy at the same time. `is_late`: the trouble
    began after the outcome was lost. `decay`: for a collapse, the step by which correct responses
    were losing likelihood. `plunge`: the step in which they lost most, if nothing else led to the
    loss. `sound`: the last step before the steps that are spoiled.
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
    plunge: Plunge | None = None
    sound: int | None = None


@dataclass(frozen=True)
class Account:
    """The alarms of a run and its `events`, and the cause of the loss of its outcome. All dates of
    troubles come from here. `causes` are the look-alikes that the log supports, `restarts` the
    steps at which the training changed, `boundaries` the boundaries of `phases` in hindsight."""

    alerts: Sequence[Alert]
    events: Sequence[Event] = ()
    causes: Collection[str] = ()
    restarts: Restarts = field(default_factory=lambda: MappingProxyType({}))
    boundaries: Sequence[Boundary] = ()
    phases: Sequence[PhaseSpan] = ()
    plunge: Plunge | None = None

    @classmethod
    def of(
        cls, log: Log, alerts: Sequence[Alert], timeline: Sequence[tuple[PhaseSpan, bool]],
        causes: Collection[str],
    ) -> Account:
        """The account of all rows. Hindsight makes it slower than the alarms alone."""
        boundaries, phases = refine(log, timeline), [span for span, _ in timeline]
        events = events_of(log, alerts, boundaries)
        account = cls(alerts, events, causes, log.restarts, boundaries, phases)
        return replace(account, plunge=_plunge(log, account.fall()))

    @property
    def first_sign(self) -> int | None:
        """The first step at which a warning or worse fired, or at which its trouble began."""
        serious = [a.first_step for a in self.alerts if a.severity != "info"]
        return min([*serious, *(event.start for event in self.events)], default=None)

    @property
    def likelihood_fell(self) -> int | None:
        """The step at which the likelihood of correct responses began to fall: in hindsight, or
        else live."""
        live = [s.start_step for s in self.phases if s.phase in ("decay", "collapse")]
        return next(iter([*(b.step for b in self.boundaries), *live]), None)

    @cached_property
    def explanation(self) -> Explanation | None:
        """The headline; None if no warning or worse fires."""
        firing = [a for a in self.alerts if a.state == "firing" and a.severity != "info"]
        if not firing:
            return None
        alarm = self._leading([a for a in firing if a.severity == firing[0].severity])
        step, sound = self.start(alarm), self.sound_step()
        cause = restart = with_it = decay = plunge = None
        if alarm.rule in OUTCOME and (fall := self.fall()):
            cause = next(iter(self.led_to_loss()), None)
            restart = None if cause else self.restart(fall)
            if cause is None and restart is None:
                with_it, plunge = self.came_with_it(fall), self.plunge
        if sound is not None:
            spoiled = restart if plunge is None else plunge.step
            sound = sound if spoiled is None else min(sound, spoiled - 1)
        decays = [a for a in self.alerts if a.rule == "lld-decay"]
        if alarm.rule == "lld-collapse" and decays:
            step = alarm.start  # as the phases have it, which were seen live
            fired = [first for first, _ in decays[0].episodes]
            decay = max((first for first in fired if first <= step), default=fired[0])
        is_late = alarm.rule not in ALONGSIDE and not self.precedes_loss(alarm, step)
        event = self.event(alarm)
        return Explanation(
            alarm, step, event is not None and event.onset_step is not None,
            alarm.rule in self.causes, is_late, cause, restart, with_it, decay, plunge, sound,
        )

    def _leading(self, worst: Sequence[Alert]) -> Alert:
        """Among the worst alarms: the first supported cause that began before the fall, or else the
        first alarm. Less specific alarms come last."""
        causes = [a for a in worst if a.rule in self.causes and a.rule in LOOK_ALIKES]
        causes = [a for a in causes if self.precedes_loss(a, self.start(a))]
        if causes:
            return min(causes, key=self.start)
        # A decline only says that something is.
        return next((a for a in worst if a.rule != "reward-decline"), worst[0])

    def onset(self) -> Onset | None:
        """The trouble to look at first: that of the headline or the first alarm, or of the held-out
        score if it fell earlier. None if no warning has fired."""
        alarms = [a for a in self.alerts if a.severity != "info"]
        first = self.explanation and self.explanation.alarm.rule
        named = [a for a in alarms if a.rule in (first, *HELD_OUT)] or alarms[:1]
        signs = [Onset(a.rule, a.start, self.last_sound_step(a)) for a in named]
        return min(signs, key=lambda sign: sign.sound, default=None)

    def event(self, alarm: Alert) -> Event | None:
        """The event of an alarm."""
        rules = alarm.rule, GRAVER.get(alarm.rule)
        return next((event for event in self.events if event.rule in rules), None)

    def start(self, alarm: Alert) -> int:
        """The step at which the trouble of an alarm began, or else was seen."""
        event = self.event(alarm)
        return alarm.start if event is None or event.onset_step is None else event.onset_step

    def fall(self) -> Fall | None:
        """The loss of the outcome that still lasts."""
        alarms = [a for a in self.alerts if a.rule in OUTCOME and a.state == "firing"]
        if not alarms:
            return None
        event = self.event(alarms[0])
        if event is None or event.onset_step is None or event.high is None:
            step = min(a.start for a in alarms)  # trailing means see it late
            return Fall(step - SMOOTH, step)
        return Fall(event.onset_step, event.high)

    def led_to_loss(self) -> list[tuple[int, Alert]]:
        """Possible causes of the current loss of the outcome, with the step at which each began,
        most certain first. A look-alike counts only if the log supports it. Resolved alarms count
        too: in a broken run, broken values become the usual ones after a while."""
        if (fall := self.fall()) is None:
            return []
        signs = []
        for a in self.alerts:
            is_cause = a.rule in self.causes or (a.rule in PHASES and "lld" in self.causes)
            may_be = is_cause or a.rule == "step-change" or a.rule in OF_THE_POLICY - {*LOOK_ALIKES}
            if not may_be or a.severity == "info":
                continue
            for fired, resolved in a.episodes:
                began = self.start(a) if fired == a.start else fired
                lasted = resolved is None or resolved >= fall.latest
                if lasted and self.precedes_loss(a, began):
                    signs.append((not is_cause, a.rule not in FROM_OUTSIDE, began, a))
        return [(began, a) for *_, began, a in sorted(signs, key=lambda sign: sign[:3])]

    def precedes_loss(self, alarm: Alert, began: int) -> bool:
        """Whether the trouble of an alarm began early enough to have caused the loss of the
        outcome. A look-alike that appeared within one step counts as a cause outside the policy."""
        if (fall := self.fall()) is None:
            return True
        event = self.event(alarm)
        low, high = (began, began) if event is None else (event.low or began, event.high or began)
        at_once = alarm.rule in LOOK_ALIKES and event is not None and high - low <= 1
        is_from_outside = alarm.rule in FROM_OUTSIDE or at_once
        return high < fall.first or (is_from_outside and began <= fall.latest)

    def came_with_it(self, fall: Fall) -> tuple[int, Alert] | None:
        """The first change of the policy at about the step at which the loss began."""
        alarms = [a for a in self.alerts if a.rule in OF_THE_POLICY and a.severity != "info"]
        signs = [(start, a) for a in alarms if fall.first - SMOOTH < (start := self.start(a))]
        during = [sign for sign in signs if sign[0] <= max(fall.latest, fall.first + SMOOTH)]
        return min(during, key=lambda sign: sign[0], default=None)

    def restart(self, fall: Fall) -> int | None:
        """The restart at which the outcome was lost."""
        return max((s for s in self.restarts if fall.first - LAG <= s <= fall.latest), default=None)

    def sound_step(self) -> int | None:
        """The last step before any firing alarm that spoils the steps since; None if no such alarm
        fires."""
        firing = [a for a in self.alerts if a.state == "firing" and a.severity != "info"]
        return min((self.last_sound_step(a) for a in firing if a.rule in BACK), default=None)

    def last_sound_step(self, alarm: Alert) -> int:
        """The last step before the trouble of an alarm. For a collapse: before the decay. For a
        lost outcome: before its possible cause. Trailing means see a fault late, so if the
        beginning is not known exactly, only steps from SMOOTH before the alarm count."""
        led_to = ("lld-decay", "lld-collapse") if alarm.rule == "lld-collapse" else (alarm.rule,)
        alarms = [a for a in self.alerts if a.rule in led_to]
        signs = [a for _, a in self.led_to_loss()] if alarm.rule in OUTCOME else []
        return min(self._before(a) for a in (*alarms, *signs))

    def _before(self, alarm: Alert) -> int:
        event = self.event(alarm)
        if event is None or event.low is None or event.high is None:
            return alarm.step - SMOOTH
        if event.high - event.low <= 1 and len(alarm.episodes) == 1:
            return event.low - 1
        # Noise that grows in the fall widens the interval towards the start of the run.
        return min(alarm.step - SMOOTH, max(event.low, event.start - TEST_STEPS) - 1)
