"""The answer first: what is wrong with a run and what to do, in one sentence each."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.numbers import percent
from ..core.safe_text import in_one_line
from ..diagnosis.account import ALONGSIDE, BACK, OUTCOME, Account
from ..diagnosis.conditions import LEAST
from ..diagnosis.outcome import DECLINED, Rise
from ..diagnosis.registry import LOOK_ALIKES, STALLED
from ..diagnosis.rule import Alert
from ..importers.reading import listing
from ..storage.events import checkpoint_number, last_checkpoint
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
    """What a headline is made from. `alerts`: those of `account`, and that of the clock; `damaged`:
    the files that cannot be read; `rise`: whether the reward has risen; `share`: what is left of
    its best, NaN where that is not known; `has_fallen`: whether the rest is lost beyond noise;
    `unpaid`: components of the reward that are always 0; `logged`: the names of the metrics where
    none of them is judged; `is_without_effect`: steps get larger and the reward does not rise.
    """

    verdict: str
    alerts: Sequence[AnyAlert]
    account: Account
    events: Events
    life: Liveness
    judged: bool = True  # whether a reward or a likelihood was measured, if anything was
    damaged: Collection[str] = ()
    rise: Rise | None = None
    share: float = math.nan
    has_fallen: bool = False
    unpaid: Sequence[str] = ()
    logged: Sequence[str] = ()
    is_without_effect: bool = False


def headline(t: Trouble) -> Headline:
    """Cause and action of the worst alarm. Among equally bad alarms a cause that the log supports
    comes first."""
    firing = [a for a in t.alerts if a.state == "firing" and a.severity != "info"]
    if not firing:
        return _quiet(t)
    dead = next((a for a in firing if a.rule == STALLED.id), None)
    rows = [a for a in firing if isinstance(a, Alert)]
    stop = "" if dead is None else _stop(t, dead)
    if dead is not None and not (rows and (t.verdict == "critical" or _causes(t, rows))):
        return Headline(stop, _sentence(dead.advice), dead.rule, dead.step)
    alarm = _leading(t, rows)
    onset, step = t.account.onset(alarm), t.account.start(alarm)
    when = f"firing since step {step}" if onset is None else f"began at step {onset}"
    cause = f"{alarm.cause} ({when})"
    decay = next((a for a in t.account.alerts if a.rule == "lld-decay"), None)
    if alarm.rule == "lld-collapse" and decay is not None:
        step = alarm.start  # as the phases have it, which were seen live
        firings = [fired for fired, _ in decay.episodes]
        by = max((fired for fired in firings if fired <= step), default=firings[0])
        cause = f"Collapsed at step {step}; correct responses were losing likelihood by step {by}"
    is_known = alarm.rule in ALONGSIDE or alarm.rule in t.account.causes
    if not is_known and t.share < DECLINED and t.account.fall() is not None:
        cause += f"; the reward is at {percent(max(t.share, 0.0))} of its best"
    also, action, remedy = _action(t, alarm)
    if stop:
        cause, action = f"{stop.rstrip('.')}. {cause}", f"{STALLED.action}; {action}"
    return Headline(f"{cause}{also}", f"{action}.", alarm.rule, step, remedy)


def _causes(t: Trouble, rows: Sequence[Alert]) -> list[Alert]:
    """The alarms of causes that the log supports and that began before the fall."""
    causes = [a for a in rows if a.rule in t.account.causes and a.rule in LOOK_ALIKES]
    return [a for a in causes if t.account.precedes_loss(a, t.account.start(a))]


def _leading(t: Trouble, rows: Sequence[Alert]) -> Alert:
    """The alarm to begin with: the worst. Among equally bad alarms the first cause, or else the
    first alarm; an alarm that says less than another comes last."""
    worst = [a for a in rows if a.severity == rows[0].severity]
    if causes := _causes(t, worst):
        return min(causes, key=t.account.start)
    # A decline only says that something is.
    return next((a for a in worst if a.rule != "reward-decline"), rows[0])


def _action(t: Trouble, alarm: Alert) -> tuple[str, str, str | None]:
    """Words on what came with the alarm, what to do, and the alarm that the action cures."""
    account, also, action, remedy, restart = t.account, "", alarm.action, alarm.rule, None
    if alarm.rule in OUTCOME and (signs := account.led_to_loss()):
        began, sign = signs[0]
        # "If it goes on" has come true: the reward fell.
        action = f"{sign.action.partition(' if ')[0]} ({_sentence(sign.cause)}, step {began})"
        remedy = sign.rule
    elif alarm.rule in OUTCOME and (restart := account.restart()) is not None:
        action = f"look at what changed at step {restart} ({RESTARTS[account.restarts[restart]]})"
    elif alarm.rule in OUTCOME and (with_it := account.came_with_it()) is not None:
        also = f"; with it, {_sentence(with_it[1].cause)} (step {with_it[0]})"
    elif alarm.rule not in ALONGSIDE and not account.precedes_loss(alarm, account.start(alarm)):
        action, remedy = "look for what began before the reward fell", ""
    elif alarm.rule in GROWING and t.is_without_effect:
        also = "; each step moves the policy further, and the reward has not risen"
        action, remedy = "check that the engine samples with the trained weights", ""
    learns = t.rise is not None and t.rise.clear and account.fall() is None
    if learns and alarm.severity == "warning" and alarm.rule not in OF_A_REWARD_THAT_RISES:
        also += "; the reward has risen all the same"
    elif alarm.rule in BACK:
        action += f", and {_back(t, restart)}"
    return also, action, remedy or None


def _stop(t: Trouble, dead: AnyAlert) -> str:
    why = in_one_line(t.life.reason or "") or "no reason was recorded"
    word = "Failed" if t.life.life == "failed" else STALLED.cause
    return f"{word}{'' if dead.step is None else f' after step {dead.step}'}: {why}"


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
    """The checkpoint to go back to. If the outcome was lost at a restart, it is one from before."""
    sound = t.account.sound_step()
    if sound is not None and restart is not None:
        sound = min(sound, restart - 1)
    checkpoint = last_checkpoint(t.events, sound)
    if checkpoint is not None:
        return f"go back to checkpoint {checkpoint_number(checkpoint)}"
    again = "restart" if t.life.over else "stop and restart"
    return f"{again} (no earlier checkpoint is recorded)"


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
