"""The answer first: what is wrong with a run and what to do, in one sentence each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.numbers import percent, short
from ..diagnosis.account import ALONGSIDE, BACK, Account, Explanation
from ..diagnosis.assess import UNKNOWN, Course
from ..diagnosis.conditions import LEAST
from ..diagnosis.outcome import DECLINED
from ..diagnosis.registry import BY_ID, STALLED
from ..importers.reading import listing
from ..storage.events import last_checkpoint
from .alerts import AnyAlert
from .liveness import Liveness

Events = Sequence[Mapping[str, Any]]
NAMED = 5  # names in a sentence
GROWING = ("grad-explosion", "clip-share", "step-size")
OF_A_REWARD_THAT_RISES = ("score-flat", "reward-component", "eval-gap")
RESTARTS = {"data": "new data", "lr": "another learning rate", "resume": "the run was resumed"}


@dataclass(frozen=True)
class Headline:
    """What is wrong, and what to do (empty where there is nothing to do).

    `rule` is the alarm behind the headline. `step` is where the trouble began, or where the alarm
    fired if no beginning can be seen; the words say which. `remedy` is the alarm that the action
    cures: the cause, if another alarm led to `rule`. Without an alarm all three are None.
    """

    cause: str
    action: str
    rule: str | None = None
    step: int | None = None
    remedy: str | None = None

    def __str__(self) -> str:
        return f"{self.cause}: {self.action}" if self.action else self.cause


class Trouble(NamedTuple):
    """The input of a headline. `alerts` are the alarms of `account` and `stalled`; `course` is that
    of the outcome; `damaged` are unreadable files; `logged` are the names of the metrics if no rule
    can judge any of them."""

    verdict: str
    alerts: Sequence[AnyAlert]
    account: Account
    events: Events
    life: Liveness
    course: Course = UNKNOWN
    judged: bool = True  # False if steps were recorded, but neither reward nor likelihood
    damaged: Collection[str] = ()
    logged: Sequence[str] = ()


def headline(t: Trouble) -> Headline:
    """Cause and action for the trouble, as the account explains it."""
    dead, why = next((a for a in t.alerts if a.rule == STALLED.id), None), t.account.explanation
    stop = "" if dead is None else _stop(t, dead)
    is_explained = why is not None and why.is_cause and not why.is_late
    if dead is not None and not is_explained and not (why and t.verdict == "critical"):
        return Headline(stop, _sentence(dead.advice), dead.rule, dead.step)
    if why is None:
        return _quiet(t)
    when = f"{'began at' if why.is_dated else 'firing since'} step {why.step}"
    cause = f"{why.alarm.cause} ({when})"
    if why.decay is not None:
        cause = f"Collapsed at step {why.step}; correct responses were losing likelihood by step "
        cause += str(why.decay)
    is_known = why.alarm.rule in ALONGSIDE or why.is_cause
    if not is_known and t.course.share < DECLINED and t.account.fall() is not None:
        cause += f"; {_left(t)}"
    also, action, remedy = _action(t, why)
    if stop:
        cause, action = f"{stop.rstrip('.')}. {cause}", f"{STALLED.action}; {action}"
    return Headline(f"{cause}{also}", f"{action}.", why.alarm.rule, why.step, remedy)


def _action(t: Trouble, why: Explanation) -> tuple[str, str, str | None]:
    """Words on what came with the alarm, what to do, and the alarm that the action cures."""
    also, action, remedy, rule = "", why.alarm.action, why.alarm.rule, why.alarm.rule
    if why.cause is not None:
        began, sign = why.cause
        # "If it goes on" has come true: the reward fell.
        action = f"{sign.action.partition(' if ')[0]} ({_sentence(sign.cause)}, step {began})"
        remedy = sign.rule
    elif why.restart is not None:
        kind = RESTARTS[t.account.restarts[why.restart]]
        action = f"look at what changed at step {why.restart} ({kind})"
    elif why.plunge is not None:
        also = (
            f"; in step {why.plunge.step} correct responses lost {short(-why.plunge.delta)} nats "
            f"(usual Δ {why.plunge.usual:+.2f})"
        )
        action, remedy = BY_ID["lld-decay"].action, "lld-decay"
    elif why.with_it is not None:
        also = f"; with it, {_sentence(why.with_it[1].cause)} (step {why.with_it[0]})"
    elif why.is_late:
        action, remedy = "look for what began before the reward fell", ""
    elif rule in GROWING and t.course.is_without_effect:
        also = "; each step moves the policy further, and the reward has not risen"
        action, remedy = "check that the engine samples with the trained weights", ""
    learns = t.course.rise is not None and t.course.rise.clear and t.account.fall() is None
    if learns and why.alarm.severity == "warning" and rule not in OF_A_REWARD_THAT_RISES:
        also += "; the reward has risen all the same"
    elif rule in BACK:
        action += f", and {_back(t, why.sound)}"
    return also, action, remedy or None


def _left(t: Trouble) -> str:
    return f"the reward is at {percent(max(t.course.share, 0.0))} of its best"


def _stop(t: Trouble, dead: AnyAlert) -> str:
    word = "Failed" if t.life.life == "failed" else STALLED.cause
    return f"{word}{'' if dead.step is None else f' after step {dead.step}'}: {t.life.why}"


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
    """Doubts about the reward while no alarm fires. If the reward has not risen, its best may be
    that of noise and is not mentioned."""
    rise, doubts = t.course.rise, []
    has_risen = rise is None or rise.clear
    if t.course.share < DECLINED and (has_risen or t.course.has_fallen):
        before, noise = "as it has fluctuated before", "which its noise can explain"
        doubts.append(f"{_left(t)}, {before if t.course.has_fallen else noise}")
    if rise is not None and not has_risen:
        last, first = f"the last {rise.last} steps", f"the first {rise.first}"
        doubts.append(f"the reward of {last} is not clearly above that of {first}")
    if unpaid := t.course.unpaid:
        were, they = ("was", "it pays") if len(unpaid) == 1 else ("were", "they pay")
        names = listing(unpaid, NAMED)
        doubts.append(f"{names} {were} 0 in every step: {they} for nothing")
    return doubts


def _back(t: Trouble, sound: int | None) -> str:
    """The checkpoint to go back to: one of the `sound` steps."""
    checkpoint = last_checkpoint(t.events, sound)
    if checkpoint is not None:
        return f"go back to checkpoint {checkpoint}"
    again = "restart" if t.life.over else "stop and restart"
    return f"{again} (no earlier checkpoint is recorded)"


def missing(events: Events, only_failures: bool = False) -> dict[str, str]:
    """What an adapter does not record in the last attempt → why. `only_failures`: only what it
    should have recorded."""
    gaps = [e for e in events if e.get("kind") == "not_recorded"]
    gaps = [e for e in gaps if e.get("failed") or not only_failures]
    last = max((e.get("attempt") or 0 for e in gaps), default=0)
    return {str(e.get("what")): str(e.get("why")) for e in gaps if (e.get("attempt") or 0) == last}


def _sentence(text: str) -> str:
    return text[:1].lower() + text[1:]
