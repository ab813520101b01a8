"""For LLD and each look-alike: what the log supports.

A cause of a higher rank (`rule.CauseRank`) is a consequence if LLD, a cause of a lower rank, or a
crash of the reward began first. A TERTIARY cause is also a consequence if entropy or gradients
surged first: a policy that collapses, or no longer gets documents, writes without end, writes
unlikely tokens and has large gradients. (A cause that began after the mean reward had halved cannot
have halved it.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ..core.numbers import short
from . import detectors as d
from .alarms import evaluate_rules, firings, since_row
from .causes import LAG, explained_elsewhere, explaining, explains, explanations, falls, lead
from .conditions import least_rows
from .detectors import Series
from .evidence import Evidence, is_observed, once
from .registry import BY_ID, CAUSES
from .rule import Alert, CauseRank, Episode, Rule
from .rules import lld
from .rules.measures import EARLIER_MAXIMUM, percent

Answer = Literal["supported", "consequence", "ruled_out", "not_shown", "not_observable"]


@dataclass(frozen=True)
class Finding:
    """The finding for one look-alike, and its evidence in a sentence. `consequence`: it is present,
    but something else began before it. `ruled_out`: it was measured and is absent. `not_shown`: the
    measurements neither show nor exclude it."""

    answer: Answer
    evidence: str


def look_alikes(e: Evidence) -> dict[str, Finding]:
    """The finding for LLD and for each look-alike as of the last row."""
    firing, pending = evaluate_rules(e, (*lld.RULES, *CAUSES))
    alerts = {a.rule: a for a in (*pending, *firing)}
    findings = {"lld": _lld(e, alerts)}
    is_lld = findings["lld"].answer == "supported"
    for rule in CAUSES:
        findings[rule.id] = _cause(rule, e, alerts.get(rule.id), is_lld)
    return findings


def _lld(e: Evidence, alerts: Mapping[str, Alert]) -> Finding:
    explained, (peak, _) = _first_explained(e), _highest(e)
    if not any(is_observed(e, name) for name in lld.NEEDS):
        return Finding("not_observable", "this log has no log-probabilities of correct responses")
    lld_alerts = [alerts[name] for name in ("lld-decay", "lld-collapse") if name in alerts]
    if fired := [alert for alert in lld_alerts if alert.episodes]:
        first = min(fired, key=lambda alert: alert.step)
        return Finding("supported", f"fired at step {first.step}: {first.message}")
    measured = int(e.measured[-1]) if len(e.measured) else 0
    if measured < (least := least_rows(e)):
        have = f"{measured} steps are measured, {least} are needed"
        return Finding("not_observable", f"too early to say: {have}")
    if explained is not None:
        return Finding("ruled_out", _attributed_to(e, explained))
    if peak is None:
        return Finding("not_observable", e.decay.guarantee())
    basis = "Δ of correct responses" if peak.unit == "delta" else "the likelihood level"
    reached = f"{short(peak.value)} of {short(peak.threshold)}"
    return Finding("not_shown", f"the decay test on {basis} has reached {reached} at most")


class Nearest(NamedTuple):
    """The point at which a value came nearest to its threshold, or went farthest beyond it."""

    margin: float
    value: float
    threshold: float
    step: int
    unit: str


def _nearest_of(
    e: Evidence, margin: Series, value: Series, threshold: Series, unit: Callable[[int], str]
) -> Nearest | None:
    """The largest margin so far; None before the first."""
    state = d.cell()
    if not np.isnan(margin).all():
        row = int(np.nanargmax(margin))
        if state.value is None or margin[row] > state.value.margin:
            numbers = float(margin[row]), float(value[row]), float(threshold[row])
            with d.without_memory():
                state.value = Nearest(*numbers, int(e.step[row]), unit(row))
    nearest: Nearest | None = state.value
    return nearest


@once
def _highest(e: Evidence) -> tuple[Nearest | None, frozenset[str]]:
    """The nearest approach of the decay test to its threshold, with its basis there, and all bases
    so far."""
    value, threshold, basis = e.decay.value, e.decay.threshold, e.decay.basis
    peak = _nearest_of(e, value / threshold, value, threshold, lambda row: str(basis[row]))
    state = d.cell()
    state.value = (state.value or frozenset()) | {b for b in basis if b is not None}
    return peak, state.value


def bases(e: Evidence) -> frozenset[str]:
    """All bases of the decay test so far."""
    return _highest(e)[1]


@once
def _first_explained(e: Evidence) -> Episode | None:
    """The first fall of the likelihood that a cause other than LLD explains."""
    state, rows = d.cell(), np.flatnonzero(explained_elsewhere(e))
    if state.value is None and len(rows):
        first = e.start + int(rows[0])
        state.value = max((f for f in falls(e) if f.fired <= first), key=lambda f: f.fired)
    fall: Episode | None = state.value
    return fall


def _attributed_to(e: Evidence, fall: Episode) -> str:
    """The causes that preceded a fall, in a sentence."""
    causes = sorted(
        (cause.begin, f"{rule.id} fired at step {cause.span[0]}")
        for rule in CAUSES
        for cause in explanations(e, rule)
        if explains(e, rule, cause.begin, fall.fired)
    )
    reason = " and ".join(cause for _, cause in causes) or "another cause may have begun before"
    step = fall.span[0]
    return f"the likelihood of correct responses falls from step {step} on, but {reason}"


@once
def _was_late(e: Evidence, rule: Rule) -> bool:
    """Whether a cause, when it became grave, was too late to explain a loss of the reward."""
    state, grave = d.cell(), rule.measure(e).grave
    if state.value is None and grave is not None:
        rows = np.flatnonzero(grave & (since_row(e, rule) >= 0))
        state.value = not explaining(e, rule)[rows[0]] if len(rows) else None
    return bool(state.value)


def _cause(rule: Rule, e: Evidence, alert: Alert | None, is_lld: bool) -> Finding:
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
    when = f"fired at step {alert.step}"
    message = f"{when}: {alert.message}"
    if rule.rank != CauseRank.PRIMARY:
        is_late = _was_late(e, rule)
        earlier = _brought_about_by(e, rule, firings(e, rule)[0], is_lld)
        if earlier is None and is_late:
            earlier = "the reward had fallen"
        if earlier is not None:
            return Finding("consequence", f"{when}, after {earlier}: {alert.message}")
    return Finding("supported", message)


def _brought_about_by(
    e: Evidence, consequence: Rule, of: Episode, is_lld: bool
) -> str | None:
    """The trouble that began before an episode of a possible consequence, if any."""
    causes = [
        (cause.begin, f"{rule.id}, which fired at step {cause.span[0]}")
        for rule in CAUSES
        if rule.rank < consequence.rank
        for cause in explanations(e, rule)
        if cause.begin <= of.begin + e.cadence.rows(LAG) and cause.lasts(of.begin)
    ]
    if causes:
        return min(causes)[1]
    latest = of.begin + lead(e, consequence)
    before = [fall for fall in falls(e) if is_lld and fall.fired < latest]
    if before:
        return f"the likelihood, which fell from step {before[-1].span[0]} on"
    just_before = of.begin - e.cadence.rows(LAG)
    troubles = [("reward-crash", just_before, "the reward, which crashed")]
    if consequence.rank == CauseRank.TERTIARY:
        troubles += [
            ("entropy-surge", of.begin, "the entropy, which surged"),
            ("grad-explosion", of.begin, "the gradient norm, which surged"),
        ]
    for name, limit, what in troubles:
        for trouble in reversed(firings(e, BY_ID[name])):
            if trouble.fired < limit and trouble.lasts(of.begin):
                return f"{what} at step {trouble.span[0]}"
    return None


@once
def nearest(e: Evidence, rule: Rule) -> Nearest | None:
    """The nearest approach of a rule's value to its threshold."""
    measurement, sign = rule.measure(e), -1.0 if rule.fires_below else 1.0
    value, threshold = measurement.value, measurement.threshold
    unit = measurement.unit or (lambda _: rule.unit)
    return _nearest_of(e, sign * (value - threshold), value, threshold, unit)


def _nearest(rule: Rule, e: Evidence) -> Finding:
    """The finding for a rule that neither holds nor has fired, by its nearest approach."""
    if (near := nearest(e, rule)) is None:
        return Finding("not_observable", "too early to say: not enough steps to compare with")
    margin, value, limit, step, unit = near
    if unit.startswith("of the "):
        extreme, bound = f"{percent(value)} {unit}", f"limit {percent(limit)}"
    else:
        extreme = f"{short(value, 2)} {unit}"
        bound = f"limit {short(limit, 2)}{' ×' if unit.startswith('×') else ''}"
    if margin > 0:
        why = "but not for long enough, or the other conditions were not met"
        return Finding("not_shown", f"{extreme} at step {step} ({bound}), {why}")
    if value == limit == 0.0:
        message = f"{extreme} throughout"
    elif unit == EARLIER_MAXIMUM and value <= 1.0:
        message = f"never above its earlier maximum ({bound})"
    else:
        message = f"never {'below' if rule.fires_below else 'above'} {extreme} ({bound})"
    return Finding("ruled_out", message)
