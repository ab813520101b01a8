"""The alarms of a run: which rules fire, have fired, or are about to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import detectors as d
from .evidence import SMOOTH, Evidence, Flags
from .outcome import LEARNS_WITHIN, RISES, outcome, solved
from .phases import Phase
from .rule import Alert, Measurement, Rule, Severity, Span, State

START = 40  # steps: a change in these is of learning to answer at all, if the reward rises


def condition_met(
    rule: Rule, e: Evidence, phases: Sequence[Phase | None], explained: Flags
) -> Flags:
    """Whether the condition of the rule is met, for each row; NaN never meets one."""
    holds = rule.measure(e).holds
    if rule.phase is not None:
        holds = holds & np.array([phase == rule.phase for phase in phases], dtype=bool)
    return holds & ~explained if rule.inhibited else holds


def evaluate_rules(
    e: Evidence, phases: Sequence[Phase | None], rules: Sequence[Rule], explained: Flags
) -> tuple[list[Alert], list[Alert]]:
    """Alarms that have fired up to the last row, and those that are pending there; each list worst
    and then earliest first."""
    alerts, pending = [], []
    for rule in rules:
        holds = condition_met(rule, e, phases, explained)
        if not holds.any():
            continue
        spans = rule.episodes(e, holds)
        severity, row = worst(rule, e, holds)
        fires = bool(spans) and spans[-1][1] is None
        if spans:
            state: State = "firing" if fires else "resolved"
            alerts.append(_alert(rule, e, severity, row, state, spans))
        if holds[-1] and not fires:
            since = len(holds) - int(d.consecutive(holds)[-1])
            pending.append(_alert(rule, e, severity, since, "pending", ()))
    return _sort(alerts), _sort(pending)


def worst(rule: Rule, e: Evidence, holds: Flags) -> tuple[Severity, int]:
    """The worst severity at which the alarm has fired, and the row at which it first did. An alarm
    that has not fired has the severity of the last row."""
    ranks = np.where(solved(e) & rule.inside, 0, rule.severity.rank)
    if (grave := rule.measure(e).grave) is not None:
        ranks[~grave & (ranks > 0)] -= 1
    if rule.inside:
        ranks = np.where(outcome(e).rises | _risen_since(rule, e, holds), 0, ranks)
    for severity in reversed(Severity):
        if spans := rule.episodes(e, holds, holds & (ranks >= severity.rank)):
            return severity, spans[0][0]
    return list(Severity)[int(ranks[-1])], len(holds) - 1


def _risen_since(rule: Rule, e: Evidence, holds: Flags) -> Flags:
    """The reward is clearly above what it was when the alarm that fires began, or LEARNS_WITHIN
    steps ago, where that is later; of one of the first START steps, when it began."""
    level, error = outcome(e).level, outcome(e).error
    out = np.zeros(len(holds), dtype=bool)
    first = int(np.argmax(~np.isnan(level)))
    for start, end in rule.episodes(e, holds):
        now = np.arange(len(level))[start:end]
        lately = now - e.cadence.rows(LEARNS_WITHIN) if start >= e.cadence.rows(START) else first
        then = np.maximum(np.maximum(lately, start - e.cadence.rows(SMOOTH)), first)
        out[now] = level[now] - level[then] > RISES * np.hypot(error[now], error[then])
    return out


def _sort(alerts: list[Alert]) -> list[Alert]:
    return sorted(alerts, key=lambda a: (-a.severity.rank, a.step))


def _alert(
    rule: Rule, e: Evidence, severity: Severity, row: int, state: State, spans: Sequence[Span]
) -> Alert:
    measurement = rule.measure(e)
    words = measurement.words(row) if measurement.words else (rule.cause, rule.action)
    return Alert(
        rule=rule.id,
        severity=severity,
        state=state,
        step=int(e.step[row]),
        value=float(measurement.value[row]),
        threshold=float(measurement.threshold[row]),
        message=measurement.message(row),
        meaning=rule.meaning,
        evidence=rule.evidence,
        advice=measurement.advice(row) if measurement.advice else rule.advice,
        false_alarms=rule.guarantee(e, row) if rule.guarantee else rule.false_alarms,
        episodes=tuple((int(e.step[a]), None if b is None else int(e.step[b])) for a, b in spans),
        began=began(measurement, e, row),
        cause=words[0],
        action=words[1],
    )


def began(measurement: Measurement, e: Evidence, row: int) -> int | None:
    """The first step of the unbroken stretch up to `row` in which every step was over the limit."""
    if measurement.per_step is None:
        return None
    with np.errstate(invalid="ignore"):
        over = measurement.per_step > measurement.threshold
    stretch = int(d.consecutive(over)[row])
    return int(e.step[row - stretch + 1]) if stretch else None
