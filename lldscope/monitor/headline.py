"""The answer first: what is wrong with a run and what to do, in one sentence each."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.numbers import percent
from ..core.safe_text import in_one_line
from ..diagnosis.conditions import LEAST
from ..diagnosis.evidence import SMOOTH
from ..diagnosis.outcome import DECLINED, Rise
from ..diagnosis.registry import LOOK_ALIKES, RULES, STALLED
from ..diagnosis.rule import Alert
from ..storage.events import checkpoint_number, last_checkpoint
from .alerts import AnyAlert
from .liveness import Liveness

Events = Sequence[Mapping[str, Any]]


DECLARATION = {rule.id: rule for rule in (*RULES, STALLED)}


@dataclass(frozen=True)
class Headline:
    """What is wrong, and what to do (empty where there is nothing to do).

    `rule` is the alarm that says so, `step` where the trouble began, or the alarm to fire where no
    beginning can be seen; the words say which of the two. None where there is no alarm.
    """

    cause: str
    action: str
    rule: str | None = None
    step: int | None = None

    def __str__(self) -> str:
        return f"{self.cause}: {self.action}" if self.action else self.cause


class Trouble(NamedTuple):
    """What a headline is made from. `causes`: the look-alikes that the log supports; `damaged`: the
    files that cannot be read; `rise`: whether the reward has risen; `share`: what is left of its
    best, NaN where that is not known."""

    verdict: str
    alerts: Sequence[AnyAlert]
    causes: Collection[str]
    events: Events
    life: Liveness
    judged: bool = True  # whether a reward or a likelihood was measured
    damaged: Collection[str] = ()
    rise: Rise | None = None
    share: float = math.nan


def headline(t: Trouble) -> Headline:
    """Cause and action: of the cause that the log supports if its alarm fires, or else of the worst
    alarm."""
    firing = [a for a in t.alerts if a.state == "firing" and a.severity != "info"]
    if not firing:
        return _quiet(t)
    matches = [a for a in firing if a.rule in t.causes and a.rule in LOOK_ALIKES]
    # Of equally bad ones the first, but any before the decline, which only says that something is.
    others = [a for a in firing if a.severity == firing[0].severity and a.rule != "reward-decline"]
    alarm = min(matches, key=_start) if matches else (others or firing)[0]
    if alarm.rule == STALLED.id:
        why = in_one_line(t.life.reason or "") or "no reason was recorded"
        word = "Failed" if t.life.life == "failed" else STALLED.cause
        at = "" if alarm.step is None else f" after step {alarm.step}"
        return Headline(f"{word}{at}: {why}", _sentence(alarm.advice), alarm.rule, alarm.step)
    step = alarm.start
    words = DECLARATION.get(alarm.rule)
    cause = f"{words.cause if words is not None else f'Rule {alarm.rule}'} ({alarm.since})"
    decay = next((a for a in t.alerts if a.rule == "lld-decay"), None)
    if alarm.rule == "lld-collapse" and decay is not None and step is not None:
        firings = [fired for fired, _ in decay.episodes if fired is not None]
        by = max((fired for fired in firings if fired <= step), default=firings[0])
        cause = f"Collapsed at step {step}; correct responses were losing likelihood by step {by}"
    advice = alarm.advice.split(". ")[0].rstrip(".")
    action = words.action if words is not None else _sentence(advice)
    if (earlier := _before_the_fall(t, alarm)) is not None:
        sign = DECLARATION[earlier.rule]
        action = f"{sign.action} ({sign.cause[0].lower()}{sign.cause[1:]}, step {earlier.step})"
    elif _is_consequence(t, alarm):
        action = "look at what began before the reward fell; this began after"
    if words is not None and words.back:
        action += f", and {_back(t, alarm)}"
    return Headline(cause, f"{action}.", alarm.rule, step)


OUTCOME = ("reward-crash", "reward-decline")
"""Rules that say that the outcome is lost, and not why."""

ALONGSIDE = {*OUTCOME, "step-change", "eval-gap", "eval-loss", "lld-decay", "lld-collapse"}
"""Rules of the fall itself, and those that see later than the reward what began before it."""


def _start(alarm: AnyAlert) -> int:
    """Where the trouble began, or the alarm to fire where that cannot be seen."""
    return (alarm.step or 0) if alarm.onset is None else alarm.onset


def _before_the_fall(t: Trouble, alarm: AnyAlert) -> AnyAlert | None:
    """The first sign from inside that began before the outcome was lost, if the alarm is of that:
    what began with it or after it is no cause, and never the action."""
    if alarm.rule not in OUTCOME:
        return None
    fall = min(a.step for a in t.alerts if a.rule in OUTCOME and a.step is not None)
    signs = [
        a for a in t.alerts
        if isinstance(a, Alert) and a.rule in INSIDE and _start(a) < fall - SMOOTH
        and (a.episodes[-1][1] is None or a.episodes[-1][1] >= fall)
    ]
    return min(signs, key=_start, default=None)


def _is_consequence(t: Trouble, alarm: AnyAlert) -> bool:
    """It began after the reward had fallen, which goes on, and the log supports it as no cause."""
    if alarm.rule in ALONGSIDE or alarm.rule in t.causes:
        return False
    falls = [a.step for a in t.alerts if a.rule in OUTCOME and a.state == "firing"]
    return any(f is not None and f <= _start(alarm) for f in falls)


INSIDE = {rule.id for rule in RULES if rule.inside} | {"step-size"}


def _quiet(t: Trouble) -> Headline:
    if t.verdict == "critical":
        return Headline("The run has collapsed; no alarm fires any more", "")
    unseen = ""
    if gaps := missing(t.events, only_failures=True):
        what, why = next(iter(gaps.items()))
        unseen = f"; not recorded: {what} ({why})"
    hurt = "a file is damaged" if len(t.damaged) == 1 else f"{len(t.damaged)} files are damaged"
    repair = "run `lldscope doctor` on it; it says what is lost, and what --repair brings back."
    if t.verdict == "insufficient" and t.damaged:
        return Headline(f"Too little of this run can be read to judge it ({hurt})", repair)
    if t.verdict == "insufficient" and not t.judged:
        return Headline(
            "Neither a reward nor a likelihood is recorded, so this run cannot be judged",
            "record one of them; of an imported log, say which metric it is with --map.",
        )
    if t.verdict == "insufficient":
        return Headline(f"Too few steps to judge: {LEAST} with measurements are needed{unseen}", "")
    information = list(dict.fromkeys(a.rule for a in t.alerts if a.state == "firing"))
    fires = "No alarm fires"
    if information:
        fires = f"No warning fires; for information: {', '.join(information)}"
    if t.damaged:
        return Headline(f"{fires}{unseen}; but {hurt}", repair)
    if t.share < DECLINED:
        left = f"the reward is at {percent(max(t.share, 0.0))} of its best"
        usual = "as it has fluctuated before"
        return Headline(f"{fires}{unseen}; but {left}, {usual}", "")
    if t.rise is not None and not t.rise.clear:
        last, first = f"the last {t.rise.last} steps", f"the first {t.rise.first}"
        flat = f"the reward of {last} is not clearly above that of {first}"
        return Headline(f"{fires}{unseen}; but {flat}", "")
    return Headline(f"{fires}{unseen}", "")


def _back(t: Trouble, alert: AnyAlert) -> str:
    """Where to go back to: before the beginning, where that is seen. Otherwise trailing means see a
    fault late, so a checkpoint counts only from SMOOTH steps before the alarm on; of a collapse,
    before the alarm of the decay."""
    checkpoint = last_checkpoint(t.events, last_sound_step(t.alerts, alert))
    if checkpoint is not None:
        return f"go back to checkpoint {checkpoint_number(checkpoint)}"
    again = "restart" if t.life.over else "stop and restart"
    return f"{again} (no earlier checkpoint is recorded)"


def last_sound_step(alerts: Sequence[AnyAlert], alert: AnyAlert) -> int:
    """The last step that counts as before the trouble of an alarm."""
    led_to = ("lld-decay", "lld-collapse") if alert.rule == "lld-collapse" else (alert.rule,)
    first = min(a.step for a in alerts if a.rule in led_to and a.step is not None)
    return first - SMOOTH if alert.onset is None else alert.onset - 1


def missing(events: Events, only_failures: bool = False) -> dict[str, str]:
    """What an adapter said that it does not record, in the last attempt: what → why.
    `only_failures`: only what it should have recorded."""
    gaps = [e for e in events if e.get("kind") == "not_recorded"]
    gaps = [e for e in gaps if e.get("failed") or not only_failures]
    last = max((e.get("attempt") or 0 for e in gaps), default=0)
    return {str(e.get("what")): str(e.get("why")) for e in gaps if (e.get("attempt") or 0) == last}


def _sentence(text: str) -> str:
    """Text that goes on after a colon."""
    return text[:1].lower() + text[1:]
