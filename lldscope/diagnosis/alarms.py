"""The alarms of a run: which rules fire, have fired, or are pending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from . import detectors as d
from .causes import explained_elsewhere
from .evidence import SMOOTH, Evidence, Flags, Rows, once
from .outcome import LEARNS_WITHIN, RISES, outcome, solved
from .phases import classify
from .rule import Alert, Episode, Rule, Severity, State, episodes

START = 40  # steps: if the reward rises, changes in these come from learning to answer at all


@once
def condition_met(e: Evidence, rule: Rule) -> Flags:
    """Whether the condition of the rule is met, row by row; NaN never meets a condition."""
    holds = rule.measure(e).holds
    if rule.phase is not None:
        holds = holds & np.array([phase == rule.phase for phase in classify(e)], dtype=bool)
    return holds & ~explained_elsewhere(e) if rule.inhibited else holds


def evaluate_rules(e: Evidence, rules: Sequence[Rule]) -> tuple[list[Alert], list[Alert]]:
    """Alarms that have fired up to the last row, and alarms that are pending there; each list
    sorted by severity, then by step."""
    fired, pending = (
        sorted((a for a in of if a is not None), key=lambda a: (-a.severity.rank, a.step))
        for of in zip(*(alarm(e, rule) for rule in rules), strict=True)
    )
    return fired, pending


@once
def firings(e: Evidence, rule: Rule) -> list[Episode]:
    return episodes(e, condition_met(e, rule), since_row(e, rule))


@once
def alarm(e: Evidence, rule: Rule) -> tuple[Alert | None, Alert | None]:
    """The alarm of a rule with the worst severity it has had, and the pending alarm at the last
    row."""
    holds, of, since = condition_met(e, rule), firings(e, rule), since_row(e, rule)
    on, ranks = d.consecutive(holds), _ranks(rule, e, since)
    levels = [s for s in Severity if s <= rule.severity]
    fired = {
        s: d.consecutive(holds & (ranks >= s.rank)) >= e.cadence.rows(rule.for_steps)
        for s in levels
    }
    state = d.cell()
    alert, pending = state.value or (None, None)
    with d.without_memory():
        for severity in reversed(levels):
            if alert is not None and severity <= alert.severity:
                break
            if fired[severity].any():
                alert = _alert(rule, e, severity, int(np.argmax(fired[severity])))
                break
        if not holds[-1:].any() or since[-1] >= 0:
            pending = None
        else:
            now = levels[int(ranks[-1])] if alert is None else alert.severity
            if on[-1] <= len(on):  # otherwise it has been pending since before
                pending = _alert(rule, e, now, len(on) - int(on[-1]))
            assert pending is not None
            pending = replace(pending, severity=now)
    if alert is not None:
        lasts: State = "firing" if of[-1].end is None else "resolved"
        alert = replace(alert, state=lasts, episodes=tuple(episode.span for episode in of))
    state.value = alert, pending
    return alert, pending


@once
def since_row(e: Evidence, rule: Rule) -> Rows:
    """For each row: the row since which a rule has been firing, or -1."""
    return rule.firing(e, condition_met(e, rule))


def _ranks(rule: Rule, e: Evidence, since: Rows) -> NDArray[np.int64]:
    ranks = np.full(len(since), rule.severity.rank)
    if (grave := rule.measure(e).grave) is not None:
        ranks -= ~grave
    if rule.inside:
        ranks[solved(e) | outcome(e).rises | _risen_since(e, since)] = 0
    return ranks


def _risen_since(e: Evidence, since: Rows) -> Flags:
    """Whether the reward is clearly higher than when the firing alarm began, or than LEARNS_WITHIN
    steps ago if that is later. In the first START steps: than when the alarm began."""
    within, smooth = e.cadence.rows(LEARNS_WITHIN), e.cadence.rows(SMOOTH)
    number = e.start + np.arange(len(since))
    is_late = (since >= e.cadence.rows(START)) & (number - within > since - smooth)

    def then(values: d.Series) -> d.Series:
        """Extend a series to earlier rows by its first value."""
        is_known = ~np.isnan(values)
        first = d.last(values, is_known & (d.total(is_known) == 1))
        began = d.last(d.shifted(values, smooth), since == number)
        base = np.where(is_late, d.shifted(values, within), began)
        return np.where(np.isnan(base), first, base)

    level, error = outcome(e).level, outcome(e).error
    return (since >= 0) & (level - then(level) > RISES * np.hypot(error, then(error)))


def _alert(rule: Rule, e: Evidence, severity: Severity, row: int) -> Alert:
    measurement = rule.measure(e)
    words = measurement.words(row) if measurement.words else (rule.cause, rule.action)
    return Alert(
        rule=rule.id,
        severity=severity,
        state="pending",
        step=int(e.step[row]),
        value=float(measurement.value[row]),
        threshold=float(measurement.threshold[row]),
        message=measurement.message(row),
        meaning=rule.meaning,
        evidence=rule.evidence,
        advice=measurement.advice(row) if measurement.advice else rule.advice,
        false_alarms=rule.guarantee(e, row) if rule.guarantee else rule.false_alarms,
        episodes=(),
        cause=words[0],
        action=words[1],
    )
