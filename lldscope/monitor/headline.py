"""The answer first: what is wrong with a run and what to do, in one sentence each."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from ..core.numbers import percent
from ..core.safe_text import in_one_line
from ..diagnosis.causes import LAG
from ..diagnosis.conditions import LEAST
from ..diagnosis.evidence import SMOOTH, Restarts
from ..diagnosis.outcome import DECLINED, Rise
from ..diagnosis.registry import LOOK_ALIKES, RULES, STALLED
from ..diagnosis.rule import Alert
from ..importers.reading import listing
from ..storage.events import checkpoint_number, last_checkpoint
from .alerts import AnyAlert
from .liveness import Liveness

Events = Sequence[Mapping[str, Any]]
NAMED = 5  # names in a sentence

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
    best, NaN where that is not known; `has_fallen`: whether the rest is lost beyond noise;
    `restarts`: the steps from which on it trained differently; `unpaid`: components of the reward
    that are always 0; `logged`: the names of the metrics where none of them is judged.
    """

    verdict: str
    alerts: Sequence[AnyAlert]
    causes: Collection[str]
    events: Events
    life: Liveness
    judged: bool = True  # whether a reward or a likelihood was measured, if anything was
    damaged: Collection[str] = ()
    rise: Rise | None = None
    share: float = math.nan
    has_fallen: bool = False
    restarts: Restarts = MappingProxyType({})
    unpaid: Sequence[str] = ()
    logged: Sequence[str] = ()


def headline(t: Trouble) -> Headline:
    """Cause and action: of the cause that the log supports if its alarm fires, or else of the worst
    alarm."""
    firing = [a for a in t.alerts if a.state == "firing" and a.severity != "info"]
    if not firing:
        return _quiet(t)
    matches = [a for a in firing if a.rule in t.causes and a.rule in LOOK_ALIKES]
    dead = next((a for a in firing if a.rule == STALLED.id), None)
    rows = [a for a in firing if a is not dead]
    stop = "" if dead is None else _stop(t, dead)
    if dead is not None and not (matches or (rows and t.verdict == "critical")):
        return Headline(stop, _sentence(dead.advice), dead.rule, dead.step)
    # Of equally bad ones the first, but any before one that says less than another.
    vague = {"reward-decline"}  # it only says that something is
    if any(a.rule == "grad-sustained" for a in rows):
        vague.add("grad-explosion")  # it goes on, and is not of a few steps
    others = [a for a in rows if a.severity == rows[0].severity and a.rule not in vague]
    alarm = min(matches, key=_start) if matches else (others or rows)[0]
    step = alarm.start
    words = DECLARATION.get(alarm.rule)
    cause = f"{words.cause if words is not None else f'Rule {alarm.rule}'} ({alarm.since})"
    decay = next((a for a in t.alerts if a.rule == "lld-decay"), None)
    if alarm.rule == "lld-collapse" and decay is not None and step is not None:
        firings = [fired for fired, _ in decay.episodes if fired is not None]
        by = max((fired for fired in firings if fired <= step), default=firings[0])
        cause = f"Collapsed at step {step}; correct responses were losing likelihood by step {by}"
    is_known = alarm.rule in ALONGSIDE or alarm.rule in t.causes
    if not is_known and t.share < DECLINED and _fall(t.alerts) is not None:
        cause += f"; the reward is at {percent(max(t.share, 0.0))} of its best"
    advice = alarm.advice.split(". ")[0].rstrip(".")
    action = words.action if words is not None else _sentence(advice)
    restart = None
    if (earlier := _before_the_fall(t, alarm)) is not None:
        began, sign = earlier[0], DECLARATION[earlier[1].rule]
        # "If it goes on" has come true: the reward fell.
        action = f"{sign.action.partition(' if ')[0]} ({_sentence(sign.cause)}, step {began})"
    elif (restart := _restart(t, alarm)) is not None:
        action = f"look at what changed at step {restart} ({RESTARTS[t.restarts[restart]]})"
    elif _is_consequence(t, alarm):
        action = "look at what began before the reward fell; this began after"
    learns = t.rise is not None and t.rise.clear and _fall(t.alerts) is None
    if learns and alarm.severity == "warning":
        cause += "; the reward has risen all the same"
    elif words is not None and words.back:
        action += f", and {_back(t, restart)}"
    if stop:
        cause, action = f"{stop.rstrip('.')}. {cause}", f"{STALLED.action}; {action}"
    return Headline(cause, f"{action}.", alarm.rule, step)


def _stop(t: Trouble, dead: AnyAlert) -> str:
    why = in_one_line(t.life.reason or "") or "no reason was recorded"
    word = "Failed" if t.life.life == "failed" else STALLED.cause
    return f"{word}{'' if dead.step is None else f' after step {dead.step}'}: {why}"


OUTCOME = ("reward-crash", "reward-decline")
"""Rules that say that the outcome is lost, and not why."""

ALONGSIDE = {*OUTCOME, "step-change", "eval-gap", "eval-loss", "lld-decay", "lld-collapse"}
"""Rules of the fall itself, and those that see later than the reward what began before it."""

RESTARTS = {"data": "new data", "lr": "another learning rate", "resume": "the run was resumed"}


def _start(alarm: AnyAlert) -> int:
    """Where the trouble first began, or the alarm to fire where that cannot be seen."""
    return (alarm.first_step or 0) if alarm.onset is None else alarm.onset


def _fall(alerts: Sequence[AnyAlert]) -> int | None:
    """The step at which the loss of the outcome that goes on was first seen."""
    firing = [a for a in alerts if a.rule in OUTCOME and a.state == "firing"]
    return min((a.episodes[-1][0] or 0 for a in firing), default=None)


def _signs(
    alerts: Sequence[AnyAlert], causes: Collection[str] | None = None
) -> list[tuple[int, Alert]]:
    """What may have led to the loss of the outcome, and where it began: a cause (by default any
    that there is) or a sudden change that was there by the fall, or a sign from inside from well
    before it, because what began with it or after it is no cause. What has been resolved since
    counts as well: in time the values of a broken run are the usual ones."""
    if (fall := _fall(alerts)) is None:
        return []
    signs = []
    for a in alerts:
        until = fall if a.rule in (EXPLAINS if causes is None else causes) else fall - SMOOTH - 1
        if not isinstance(a, Alert) or a.severity == "info" or a.rule not in EXPLAINS | INSIDE:
            continue
        for fired, resolved in a.episodes:
            began = fired if a.onset is None else a.onset
            if began <= until and (resolved is None or resolved >= fall):
                signs.append((began, a))
    return signs


def _before_the_fall(t: Trouble, alarm: AnyAlert) -> tuple[int, Alert] | None:
    """Of what led to the loss of the outcome, if the alarm is of that, the cause that the log
    supports, or else the first."""
    causes = {*t.causes, "step-change"}
    signs = _signs(t.alerts, causes) if alarm.rule in OUTCOME else []
    signs = [s for s in signs if s[1].rule in INSIDE | causes]

    def certainty(sign: tuple[int, Alert]) -> tuple[bool, bool, int]:
        rule = sign[1].rule
        return rule not in t.causes, rule != "step-change", sign[0]

    return min(signs, key=certainty, default=None)


def _restart(t: Trouble, alarm: AnyAlert) -> int | None:
    """The restart at which the outcome was lost, as far as trailing means can tell."""
    if alarm.rule not in OUTCOME or (fall := _fall(t.alerts)) is None:
        return None
    return max((s for s in t.restarts if fall - SMOOTH - LAG <= s <= fall), default=None)


def _is_consequence(t: Trouble, alarm: AnyAlert) -> bool:
    """It began after the reward had fallen, which goes on, and the log supports it as no cause."""
    if alarm.rule in ALONGSIDE or alarm.rule in t.causes:
        return False
    fall = _fall(t.alerts)
    return fall is not None and fall <= (alarm.start or 0)


INSIDE = {rule.id for rule in RULES if rule.inside} | {"step-size"}
EXPLAINS = {*LOOK_ALIKES, "step-change"}


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
        logged = f"logged: {listing(t.logged, NAMED)}" if t.logged else "nothing else was logged"
        return Headline(
            "No metric has the name of a reward or of a likelihood, so this run cannot be judged "
            f"({logged})",
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
    but = f"; but {'; '.join(doubts)}" if (doubts := _doubts(t)) else ""
    return Headline(f"{fires}{unseen}{but}", "")


def _doubts(t: Trouble) -> list[str]:
    """What the reward does not do although no alarm fires. A best that is the best of noise is not
    spoken of where the reward has not risen."""
    has_risen = t.rise is None or t.rise.clear
    doubts = []
    if t.share < DECLINED and (has_risen or t.has_fallen):
        why = "as it has fluctuated before" if t.has_fallen else "which its noise can explain"
        doubts.append(f"the reward is at {percent(max(t.share, 0.0))} of its best, {why}")
    if t.rise is not None and not has_risen:
        last, first = f"the last {t.rise.last} steps", f"the first {t.rise.first}"
        doubts.append(f"the reward of {last} is not clearly above that of {first}")
    if t.unpaid:
        were, they = ("was", "it pays") if len(t.unpaid) == 1 else ("were", "they pay")
        names = listing(t.unpaid, NAMED)
        doubts.append(f"{names} {were} 0 in every step: {they} for nothing")
    return doubts


def _back(t: Trouble, restart: int | None) -> str:
    """Where to go back to: before a restart at which the outcome was lost, if there is one."""
    sound = sound_step(t.alerts)
    if sound is not None and restart is not None:
        sound = min(sound, restart - 1)
    checkpoint = last_checkpoint(t.events, sound)
    if checkpoint is not None:
        return f"go back to checkpoint {checkpoint_number(checkpoint)}"
    again = "restart" if t.life.over else "stop and restart"
    return f"{again} (no earlier checkpoint is recorded)"


def sound_step(alerts: Sequence[AnyAlert]) -> int | None:
    """The last step before all that fires and spoils the steps since; None if nothing does."""
    firing = [a for a in alerts if a.state == "firing" and a.severity != "info"]
    spoils = [a for a in firing if (rule := DECLARATION.get(a.rule)) is not None and rule.back]
    return min((last_sound_step(alerts, a) for a in spoils), default=None)


def last_sound_step(alerts: Sequence[AnyAlert], alert: AnyAlert) -> int:
    """The last step that counts as before the trouble of an alarm: before the beginning, where that
    is seen. Otherwise trailing means see a fault late, so only steps from SMOOTH before the alarm
    on count; of a collapse, before the alarm of the decay; of a lost outcome, before what led to
    it."""
    led_to = ("lld-decay", "lld-collapse") if alert.rule == "lld-collapse" else (alert.rule,)
    first = min(a.step for a in alerts if a.rule in led_to and a.step is not None)
    signs = _signs(alerts) if alert.rule in OUTCOME else []
    return min([
        first - SMOOTH if alert.onset is None else alert.onset - 1,
        *(began - SMOOTH if a.onset is None else began - 1 for began, a in signs),
    ])


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
