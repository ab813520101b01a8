"""The answer first: what is wrong with a run and what to do, in one sentence each."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..core.safe_text import in_one_line
from ..diagnosis.evidence import SMOOTH
from ..diagnosis.phases import LEAST
from ..diagnosis.registry import LOOK_ALIKES, STALLED
from ..diagnosis.reward_noise import Rise
from ..diagnosis.rule import Alert
from .alerts import AnyAlert
from .liveness import Liveness

Events = Sequence[Mapping[str, Any]]


class _Words(NamedTuple):
    """Cause and action of an alarm; `back`: what was trained since should be thrown away; `more`:
    what follows on the step in the sentence of the cause."""

    cause: str
    action: str
    back: bool = False
    more: str = ""


_WORDS = {
    "tool-outage": _Words("Retriever or tool dead", "fix it", True),
    "truncation": _Words("Responses are cut by a length limit", "raise the limit"),
    "nonfinite": _Words("NaN or infinite numbers", "look for overflow and empty masks", True),
    "engine-mismatch": _Words(
        "Sampling engine and trainer disagree", "check weight sync and precision", True
    ),
    "mask-lint": _Words("Tool text counts as the policy's own", "fix the loss mask", True),
    "group-collision": _Words("Groups mix prompts", "fix the ids of the groups", True),
    "lr-jump": _Words("The learning rate jumped", "lower it", True),
    "reward-parsing": _Words(
        "The reward fell and the policy did not change", "check how answers are scored"
    ),
    "lld-decay": _Words(
        "Correct responses lose likelihood", "switch LLDS on or lower the learning rate"
    ),
    "lld-collapse": _Words(
        "Collapse",
        "use LLDS or a lower learning rate",
        True,
        ", after correct responses lost likelihood",
    ),
    "entropy-surge": _Words("Entropy rose sharply", "look at Δ and at responses"),
    "entropy-floor": _Words(
        "Entropy falls towards nothing", "raise the temperature or the upper clip"
    ),
    "eval-gap": _Words("The held-out score fell, the reward did not", "read held-out answers"),
    "repetition": _Words("Responses repeat themselves", "read some of them"),
    "grad-explosion": _Words("Gradients rose sharply", "look at the data of these steps"),
    "grad-sustained": _Words("Gradients stay large", "lower the learning rate", True),
    "reward-decline": _Words(
        "The reward is clearly under its best", "look at what began before it"
    ),
    "reward-crash": _Words("The reward crashed", "look for the cause under look-alikes", True),
    "kl-explosion": _Words("The policy leaves the reference fast", "read responses of these steps"),
    "length-collapse": _Words("Responses became very short", "read some of them", True),
    "tool-abandoned": _Words("The policy stopped searching", "read some responses"),
    "zero-signal": _Words(
        "Groups teach nothing: their rewards are equal", "change the difficulty or the reward"
    ),
}


@dataclass(frozen=True)
class Headline:
    """What is wrong, and what to do (empty where there is nothing to do).

    `rule` is the alarm that says so, `step` where the trouble began, or the alarm to fire where no
    beginning can be seen; None where it is none.
    """

    cause: str
    action: str
    rule: str | None = None
    step: int | None = None

    def __str__(self) -> str:
        return f"{self.cause}: {self.action}" if self.action else self.cause


class Trouble(NamedTuple):
    """What a headline is made from. `causes`: the look-alikes that the log supports; `damaged`: the
    files that cannot be read; `rise`: whether the reward has risen."""

    verdict: str
    phase: str | None
    alerts: Sequence[AnyAlert]
    causes: Collection[str]
    events: Events
    life: Liveness
    judged: bool = True  # whether a reward or a likelihood was measured
    damaged: Collection[str] = ()
    rise: Rise | None = None


def headline(t: Trouble) -> Headline:
    """Cause and action: of the cause that the log supports if its alarm fires, or else of the worst
    alarm."""
    firing = [a for a in t.alerts if a.state == "firing" and a.severity != "info"]
    if not firing:
        return _quiet(t)
    named = [a for a in firing if a.rule in t.causes and a.rule in LOOK_ALIKES]
    # Of equally bad ones the first, but any before the decline, which only says that something is.
    others = [a for a in firing if a.severity == firing[0].severity and a.rule != "reward-decline"]
    told = min(named, key=lambda a: a.step or 0) if named else (others or firing)[0]
    if told.rule == STALLED.id:
        why = in_one_line(t.life.reason or "") or "no reason was recorded"
        word = "Failed" if t.life.life == "failed" else "No more steps"
        at = "" if told.step is None else f" after step {told.step}"
        return Headline(f"{word}{at}: {why}", _sentence(told.advice), told.rule, told.step)
    began = _began(told)
    step = told.episodes[-1][0] if began is None else began
    words = _WORDS.get(told.rule) or _Words(f"{told.rule} fires", _first_sentence(told.advice))
    action = words.action
    if told.rule == "reward-crash" and (large := _large_steps(t.alerts, told)) is not None:
        # No look-alike is supported, or it would be named here.
        action = f"halve the learning rate (steps are large since step {large})"
    if words.back:
        action += f" and {_back(t, told)}"
    return Headline(f"{words.cause} since step {step}{words.more}", f"{action}.", told.rule, step)


def _quiet(t: Trouble) -> Headline:
    if t.verdict == "critical":
        return Headline("The run has collapsed; no alarm fires any more", "")
    unseen = ""
    if lost := missing(t.events, failed=True):
        what, why = next(iter(lost.items()))
        unseen = f"; not recorded: {what} ({why})"
    hurt = "a file is damaged" if len(t.damaged) == 1 else f"{len(t.damaged)} files are damaged"
    repair = "run `lldscope doctor` on it; it says what is lost, and what --repair brings back."
    if t.verdict == "insufficient" and t.damaged:
        return Headline(f"Too little of this run can be read to judge it ({hurt})", repair)
    if t.verdict == "insufficient" and not t.judged:
        return Headline(
            "Neither a reward nor a likelihood is recorded, so nothing can be said of this run",
            "record one of them; of an imported log, say which metric it is with --map.",
        )
    if t.verdict == "insufficient":
        return Headline(f"Too few steps to judge: {LEAST} with measurements are needed{unseen}", "")
    told = list(dict.fromkeys(a.rule for a in t.alerts if a.state == "firing"))  # information
    fires = f"No warning fires; for information: {', '.join(told)}" if told else "No alarm fires"
    if t.damaged:
        return Headline(f"{fires}{unseen}; but {hurt}", repair)
    if t.rise is not None and not t.rise.clear:
        last, first = f"the last {t.rise.last} steps", f"the first {t.rise.first}"
        flat = f"the reward of {last} is not clearly above that of {first}"
        return Headline(f"{fires}{unseen}; but {flat}", "")
    return Headline(f"{fires}{unseen}", "")


def _large_steps(alerts: Sequence[AnyAlert], told: AnyAlert) -> int | None:
    """From where on steps moved the policy far, if that was said before an alarm."""
    large = [a.step for a in alerts if a.rule == "step-size" and a.step is not None]
    return large[0] if large and told.step is not None and large[0] <= told.step else None


def _began(alert: AnyAlert) -> int | None:
    """Where the only episode of the alarm began, if that can be seen."""
    return alert.began if isinstance(alert, Alert) and len(alert.episodes) == 1 else None


def _back(t: Trouble, alert: AnyAlert) -> str:
    """Where to go back to: before the beginning, where that is seen. Otherwise trailing means see a
    fault late, so a checkpoint counts only from SMOOTH steps before the alarm on; of a collapse,
    before the alarm of the decay."""
    led_to = ("lld-decay", "lld-collapse") if alert.rule == "lld-collapse" else (alert.rule,)
    first = min(a.step for a in t.alerts if a.rule in led_to and a.step is not None)
    began = _began(alert)
    saved = last_checkpoint(t.events, first - SMOOTH if began is None else began - 1)
    if saved is not None:
        return f"go back to the checkpoint of step {saved}"
    again = "start again" if t.life.over else "stop and start again"
    return f"{again} (no checkpoint from before is recorded)"


def last_checkpoint(events: Events, until: int | None = None) -> int | None:
    """The last step of which a checkpoint is recorded, `until` included; None if there is none."""
    saved = (e.get("step") for e in events if e.get("kind") == "checkpoint")
    steps = [step for step in saved if step is not None]
    return max((s for s in steps if until is None or s <= until), default=None)


def missing(events: Events, failed: bool = False) -> dict[str, str]:
    """What an adapter said that it does not record, in the last attempt: what → why. `failed`: only
    what it should have recorded."""
    said = [e for e in events if e.get("kind") == "not_recorded"]
    said = [e for e in said if e.get("failed") or not failed]
    last = max((e.get("attempt") or 0 for e in said), default=0)
    return {str(e.get("what")): str(e.get("why")) for e in said if (e.get("attempt") or 0) == last}


def with_checkpoint(alert: Alert, events: Events) -> Alert:
    """The alarm; where its advice is to go back to a checkpoint, and none from before is recorded,
    it says so."""
    goes_back = re.search("checkpoint (from )?before|last checkpoint", alert.advice)
    if not goes_back or last_checkpoint(events, alert.step - 1) is not None:
        return alert
    return replace(alert, advice=f"{alert.advice} No checkpoint from before is recorded.")


def _first_sentence(text: str) -> str:
    return _sentence(text.split(". ")[0].rstrip("."))


def _sentence(text: str) -> str:
    """Text that goes on after a colon."""
    return text[:1].lower() + text[1:]
