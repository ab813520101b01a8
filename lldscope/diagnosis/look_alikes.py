"""For LLD and each cause that looks like it on the reward curve, what the log supports.

A cause of a higher rank (`rule.CauseRank`) is a consequence where LLD, a cause of a lower rank, or
a crash of the reward began first, and a TERTIARY one where entropy or gradients surged first: a
policy that collapses, or no longer gets documents, writes
without end, writes unlikely tokens and has large gradients. (What began when the mean of the reward
was at half of its best already cannot have halved it.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..core.numbers import short
from .alarms import began, evaluate_rules
from .causes import ENDS, LAG, cause_episodes, explaining, explains, falls
from .conditions import entropy_surges, gradient_surges, least_rows, reward_crashed
from .evidence import Evidence, Flags, is_observed
from .phases import Phase
from .registry import CAUSES
from .rule import Alert, CauseRank, Rule, episodes, since
from .rules import lld
from .rules.measures import EARLIER_MAXIMUM, percent

Answer = Literal["supported", "consequence", "ruled_out", "not_shown", "not_observable"]


@dataclass(frozen=True)
class Finding:
    """The answer for one look-alike, and the evidence for it in a sentence.

    `consequence`: it is there, and something else began before it. `ruled_out`: it was measured and
    is not there. `not_shown`: what was measured neither shows it nor excludes it.
    """

    answer: Answer
    evidence: str


def look_alikes(
    e: Evidence, phases: Sequence[Phase | None], explained: Flags
) -> dict[str, Finding]:
    """For LLD and each cause that looks like it on the reward curve, what this log supports.

    `explained` is the result of `explained_elsewhere` for the same evidence.
    """
    firing, pending = evaluate_rules(e, phases, (*lld.RULES, *CAUSES), explained)
    alerts = {a.rule: a for a in (*pending, *firing)}
    findings = {"lld": _lld(e, alerts, explained)}
    displaced = findings["lld"].answer == "supported"
    for rule in CAUSES:
        findings[rule.id] = _cause(rule, e, alerts.get(rule.id), displaced)
    return findings


def _lld(e: Evidence, alerts: Mapping[str, Alert], explained: Flags) -> Finding:
    if not any(is_observed(e, name) for name in lld.NEEDS):
        return Finding("not_observable", "this log has no log-probabilities of correct responses")
    lld_alerts = [alerts[name] for name in ("lld-decay", "lld-collapse") if name in alerts]
    displaced = [alert for alert in lld_alerts if alert.episodes]
    if displaced:
        first = min(displaced, key=lambda alert: alert.step)
        return Finding("supported", f"{_fired(first)}: {first.message}")
    if e.measured[-1] < (least := least_rows(e)):
        have = f"{e.measured[-1]} steps are measured, {least} are needed"
        return Finding("not_observable", f"too early to say: {have}")
    if explained.any():
        return Finding("ruled_out", _attributed_to(e, int(np.flatnonzero(explained)[0])))
    if not any(e.decay.basis):
        return Finding("not_observable", e.decay.guarantee())
    margin = e.decay.value / e.decay.threshold
    row = int(np.nanargmax(margin))
    peak = f"{short(e.decay.value[row])} of {short(e.decay.threshold[row])}"
    basis = "Δ of correct responses" if e.decay.basis[row] == "delta" else "the likelihood level"
    return Finding("not_shown", f"the decay test on {basis} has reached {peak} at most")


def _fired(alert: Alert) -> str:
    """When it fired with the numbers of its message, which may not have been the last time."""
    return alert.since if alert.step >= alert.start else f"fired at step {alert.step}"


def _attributed_to(e: Evidence, row: int) -> str:
    """The causes that came before the fall at a row, in a sentence."""
    start = max(a for a, _ in falls(e) if a <= row)
    causes = sorted(
        (begin, f"{rule.id} {_began(rule, e, fires)}")
        for rule in CAUSES
        for begin, fires, _ in cause_episodes(rule, e, explaining(rule, e))
        if explains(e, begin, start)
    )
    reason = " and ".join(cause for _, cause in causes) or "another cause may have begun before"
    return f"the likelihood of correct responses falls from step {e.step[start]} on, but {reason}"


def _began(rule: Rule, e: Evidence, fires: int) -> str:
    return since(began(rule.measure(e), e, fires), int(e.step[fires]))


def _cause(rule: Rule, e: Evidence, alert: Alert | None, displaced: bool) -> Finding:
    lacking = [] if any(is_observed(e, n) for n in rule.needs) else [" or ".join(rule.needs)]
    lacking += [name for name in rule.needs_too if not is_observed(e, name)]
    if lacking:
        return Finding("not_observable", f"not recorded: {', '.join(lacking)}")
    if alert is None:
        return _nearest(rule, e)
    if not alert.episodes:
        need = f"{e.cadence.spans(rule.for_steps)} steps in a row are needed"
        duration = f"it has held since step {alert.step}, {need}"
        return Finding("not_observable", f"too early to say: {duration}")
    when = _fired(alert)
    message = f"{when}: {alert.message}"
    if rule.rank != CauseRank.PRIMARY:
        begin, fires, _ = cause_episodes(rule, e, rule.measure(e).holds)[0]
        earlier = _brought_about_by(e, rule, begin, fires, displaced)
        grave = rule.measure(e).grave
        if earlier is None and grave is not None and (grave & ~explaining(rule, e))[fires]:
            earlier = "the reward had fallen"
        if earlier is not None:
            return Finding("consequence", f"{when}, after {earlier}: {alert.message}")
    return Finding("supported", message)


def _brought_about_by(
    e: Evidence, consequence: Rule, begin: int, fires: int, displaced: bool
) -> str | None:
    """What began before a possible consequence that begins at row `begin`, if anything did."""
    causes = [
        (start, f"{rule.id}, which {_began(rule, e, fires)}")
        for rule in CAUSES
        if (rule.rank or 0) < (consequence.rank or 0)
        for start, fires, resolved in cause_episodes(rule, e, explaining(rule, e))
        if start <= begin + e.cadence.rows(LAG) and (resolved is None or begin < resolved)
    ]
    if causes:
        return min(causes)[1]
    before = [start for start, _ in falls(e) if displaced and start < begin - e.cadence.rows(LAG)]
    if before:
        return f"the likelihood, which fell from step {e.step[before[-1]]} on"
    crash = _ongoing(e, reward_crashed(e), begin - e.cadence.rows(LAG), begin)
    if crash is not None:
        return f"the reward, which crashed at step {crash}"
    if consequence.rank == CauseRank.TERTIARY:
        step = began(consequence.measure(e), e, fires)
        first = begin if step is None else int(np.searchsorted(e.step, step))
        for name, surges in (("entropy", entropy_surges), ("gradient norm", gradient_surges)):
            if (surge := _ongoing(e, surges(e), first, begin)) is not None:
                return f"the {name}, which surged at step {surge}"
    return None


def _ongoing(e: Evidence, flags: Flags, before: int, row: int) -> int | None:
    """The first step of what was there at a row, and began before another."""
    spans = episodes(flags, 1, e.cadence.rows(ENDS))
    starts = [a for a, b in spans if a < before and (b is None or row < b)]
    return int(e.step[starts[-1]]) if starts else None


def _nearest(rule: Rule, e: Evidence) -> Finding:
    """How near a rule that neither holds nor has fired came to its threshold."""
    measurement = rule.measure(e)
    if np.isnan(measurement.value).all():
        return Finding("not_observable", "too early to say: not enough steps to compare with")
    sign = -1.0 if rule.fires_below else 1.0
    row = int(np.nanargmax(sign * (measurement.value - measurement.threshold)))
    value, limit = float(measurement.value[row]), float(measurement.threshold[row])
    unit = measurement.unit(row) if measurement.unit else rule.unit
    if unit.startswith("of the "):
        extreme, bound = f"{percent(value)} {unit}", f"limit {percent(limit)}"
    else:
        extreme = f"{short(value, 2)} {unit}"
        bound = f"limit {short(limit, 2)}{' ×' if unit.startswith('×') else ''}"
    if sign * (value - limit) > 0:
        why = "but not for long enough, or the other conditions were not met"
        return Finding("not_shown", f"{extreme} at step {e.step[row]} ({bound}), {why}")
    if value == limit == 0.0:
        message = f"{extreme} throughout"
    elif unit == EARLIER_MAXIMUM and value <= 1.0:
        message = f"never above its earlier maximum ({bound})"
    else:
        message = f"never {'below' if rule.fires_below else 'above'} {extreme} ({bound})"
    return Finding("ruled_out", message)
