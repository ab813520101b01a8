"""What looks like LLD on a reward curve: which causes this log supports, and which came first.

Precedence. A fall of the likelihood is laid to another cause, and not to LLD, if that cause began
no later than the fall (LAG steps for what a trailing mean needs to see it), no more than WITHIN
steps before it, and had not yet been resolved. Then neither a rule nor a phase of LLD holds. The
fall begins where the decay test has reached a quarter of its threshold, or the mean Δ lies 2.5
standard errors below 0, and ends after ENDS steps without either.

The other way round: truncation, engine mismatch and overflow are consequences where LLD, or a cause
that is none of these three, began no later: a policy that collapses, or gets no documents any more,
writes without end, writes unlikely tokens and has large gradients. Where overflow is frequent and
began no later, the other two are its consequences as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..core.numbers import short
from ..signals import detectors as d
from ..signals.evidence import Evidence, Flags
from ..signals.phases import LEAST
from .rule import Alert, Phases, Rule, Span, condition_met, episodes, evaluate_rules, states
from .rules import traces
from .rules.faults import FAULTS
from .rules.lld import LLD
from .rules.measures import observed, percent
from .rules.symptoms import SYMPTOMS

Answer = Literal["supported", "ruled_out", "not_observable"]

LAG = 3  # steps by which a cause may be seen later than the fall it explains
WITHIN = 100  # steps: what the likelihood has withstood for longer does not explain its fall
FALLS = -2.5  # standard errors of Δ
ENDS = 10  # steps without a fall before one is over
OFTEN = 0.3  # of the last ten steps with a non-finite number, before those explain anything

CAUSES: tuple[Rule, ...] = (*FAULTS, *(rule for rule in SYMPTOMS if rule.id == "nonfinite"))
CONSEQUENCES = ("truncation", "engine-mismatch", "nonfinite")
LOOK_ALIKES: tuple[str, ...] = ("lld", *(rule.id for rule in CAUSES))


@dataclass(frozen=True)
class Finding:
    """The answer for one look-alike, and the evidence for it in a sentence."""

    answer: Answer
    evidence: str


# -- precedence -----------------------------------------------------------------------------------


def falls(e: Evidence) -> list[Span]:
    """Row spans in which the likelihood of correct responses goes down, from before an alarm can be
    sure of it."""
    with np.errstate(invalid="ignore"):
        going = e.decay.value >= e.decay.threshold / 4
    return episodes(going | (e.has_delta & (e.delta_t <= FALLS)), 1, ENDS)


def spells(rule: Rule, holds: Flags) -> list[tuple[int, int, int | None]]:
    """When a cause was there: rows at which it began to hold, fired, and was resolved.

    One that is pending at the last row is not among them.
    """
    on = d.consecutive(holds)
    return [
        (fires - int(on[fires]) + 1, fires, resolved)
        for fires, resolved in episodes(holds, rule.for_steps, rule.clear_steps)
    ]


def explained_elsewhere(e: Evidence) -> Flags:
    """For each row, whether the fall of the likelihood that is going on is laid to another cause.

    A cause counts while it is pending as well: LLD waits for it.
    """
    out = np.zeros(len(e.step), dtype=bool)
    fallen = falls(e)
    for rule in CAUSES if fallen else ():
        holds = _explaining(rule, e)
        for begin, fires, resolved in spells(rule, holds):
            for start, end in fallen:
                if _explains(begin, start) and (resolved is None or start < resolved):
                    out[max(start, fires) : end] = True
        if not holds.any():
            continue
        on = d.consecutive(holds)
        state = np.array(states(holds, rule.for_steps, rule.clear_steps))
        for row in np.flatnonzero(state == "pending").tolist():
            going_on = (a for a, b in fallen if a <= row and (b is None or row < b))
            out[row] |= any(_explains(row - int(on[row]) + 1, start) for start in going_on)
    return out


def _explains(begin: int, fall: int) -> bool:
    return begin - LAG <= fall <= begin + WITHIN


def _explaining(rule: Rule, e: Evidence) -> Flags:
    """Where a cause is there, and strong enough to explain a fall of the likelihood."""
    holds = _holding(rule, e)
    if rule.id == "nonfinite":
        return holds & (d.trailing_mean(holds.astype(float), 10, 1) >= OFTEN)
    if rule.id == "group-collision":
        return holds & traces.collides_often(e)
    return holds


def _holding(rule: Rule, e: Evidence) -> Flags:
    """The condition of a cause; none of them asks for the phase."""
    return condition_met(rule, e, [None] * len(e.step), np.zeros(len(e.step), dtype=bool))


# -- answers --------------------------------------------------------------------------------------


def look_alikes(e: Evidence, phases: Phases, explained: Flags) -> dict[str, Finding]:
    """For LLD and each cause that looks like it on the reward curve, what this log says.

    `explained` is what `explained_elsewhere` says of the same evidence.
    """
    fired, pending = evaluate_rules(e, phases, (*LLD, *CAUSES), explained)
    alerts = {a.rule: a for a in (*pending, *fired)}
    found = {"lld": _lld(e, alerts, explained)}
    displaced = found["lld"].answer == "supported"
    for rule in CAUSES:
        found[rule.id] = _cause(rule, e, alerts.get(rule.id), displaced)
    return found


def _lld(e: Evidence, alerts: Mapping[str, Alert], explained: Flags) -> Finding:
    if not any(observed(e, name) for name in LLD[0].needs):
        return Finding("not_observable", "this log has no log-probabilities of correct responses")
    fired = [alerts[name] for name in ("lld-decay", "lld-collapse") if name in alerts]
    displaced = [alert for alert in fired if alert.episodes]
    if displaced:
        first = min(displaced, key=lambda alert: alert.step)
        return Finding("supported", f"from step {first.step} on: {first.message}")
    if e.measured[-1] < LEAST:
        have = f"{e.measured[-1]} steps are measured, {LEAST} are needed"
        return Finding("not_observable", f"too early to say: {have}")
    if explained.any():
        return Finding("ruled_out", _laid_to(e, int(np.flatnonzero(explained)[0])))
    if not any(e.decay.basis):
        return Finding("not_observable", e.decay.guarantee())
    margin = e.decay.value / e.decay.threshold
    row = int(np.nanargmax(margin))
    reached = f"{e.decay.value[row]:,.3g} of {e.decay.threshold[row]:,.3g}"
    basis = "Δ of correct responses" if e.decay.basis[row] == "delta" else "the likelihood level"
    return Finding("ruled_out", f"the decay test on {basis} has reached {reached} at most")


def _laid_to(e: Evidence, row: int) -> str:
    """Which causes came before the fall that is going on at the row."""
    start = max(a for a, _ in falls(e) if a <= row)
    told = [
        f"{rule.id} was there from step {e.step[begin]} on"
        for rule in CAUSES
        for begin, _, _ in spells(rule, _explaining(rule, e))
        if _explains(begin, start)
    ]
    return (
        f"the likelihood of correct responses falls from step {e.step[start]} on, but "
        f"{' and '.join(told) or 'another cause may have begun before'}"
    )


def _cause(rule: Rule, e: Evidence, alert: Alert | None, displaced: bool) -> Finding:
    lacking = [] if any(observed(e, n) for n in rule.needs) else [" or ".join(rule.needs)]
    lacking += [name for name in rule.needs_too if not observed(e, name)]
    if lacking:
        return Finding("not_observable", f"this log does not have {', '.join(lacking)}")
    if alert is None:
        return _quiet(rule, e)
    if not alert.episodes:
        held = f"it holds since step {alert.step}, {rule.for_steps} steps in a row are needed"
        return Finding("not_observable", f"too early to say: {held}")
    told = f"from step {alert.step} on: {alert.message}"
    if rule.id in CONSEQUENCES:
        earlier = _earlier(e, rule, spells(rule, _holding(rule, e))[0][0], displaced)
        if earlier is not None:
            return Finding("ruled_out", f"a consequence: {earlier}; {told}")
    return Finding("supported", told)


def _earlier(e: Evidence, of: Rule, begin: int, displaced: bool) -> str | None:
    """What had begun before a consequence that begins at the row, if anything had."""
    for rule in CAUSES:
        if rule.id in CONSEQUENCES and (rule.id != "nonfinite" or of.id == "nonfinite"):
            continue
        for start, _, resolved in spells(rule, _explaining(rule, e)):
            if start <= begin + LAG and (resolved is None or begin < resolved):
                return f"{rule.id} was there from step {e.step[start]} on"
    before = [start for start, _ in falls(e) if displaced and start < begin - LAG]
    if before:
        return f"the likelihood had been falling from step {e.step[before[-1]]} on"
    return None


def _quiet(rule: Rule, e: Evidence) -> Finding:
    """How near a rule that does not hold and has not fired came to it."""
    with np.errstate(invalid="ignore", divide="ignore"):
        value = np.asarray(rule.value(e), dtype=float)
        limit = np.broadcast_to(np.asarray(rule.threshold(e), dtype=float), value.shape)
    if np.isnan(value).all():
        return Finding("not_observable", "too early to say: not enough steps to compare with")
    if rule.id == "reward-parsing":
        row = int(np.nanargmin(value))
        kept = f"the reward kept {percent(value[row])} of its trailing median at least"
        changed = f"; the policy changed with it at step {e.step[row]}"
        return Finding("ruled_out", kept + (changed if value[row] <= limit[row] else ""))
    row = int(np.nanargmax(value - limit))
    by_ratio = limit[row] > 1 and "×" in rule.unit
    unit = "× the most before" if by_ratio else rule.unit.split(", or ×")[0]
    told = f"{short(value[row], 2)} {unit} at most (limit {short(limit[row], 2)})"
    beyond = value[row] > limit[row]
    if beyond:
        told += ", not for long enough or with other signs against it"
    return Finding("ruled_out", told)
