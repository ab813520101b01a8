"""Rules as declarations, and the states they go through: inactive → pending → firing → resolved.

A rule says when it holds, how bad that is, what it means and what to do. It is `pending` while it
holds but not yet for `for_steps` steps, fires from then on, and is `resolved` once it has not held
for `clear_steps` steps. Everything is causal: the state at a step uses rows up to that step only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..core.numbers import short
from ..signals import detectors as d
from ..signals.evidence import Evidence, Flags
from ..signals.phases import Phase

Severity = Literal["info", "warning", "critical"]
State = Literal["inactive", "pending", "firing", "resolved"]
Phases = Sequence[Phase | None]
Span = tuple[int, int | None]

NO_RATE = "no rate is promised; docs/alarms.md counts false alarms in real runs"
ORDER = {"critical": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class Declaration:
    """What there is to say about an alarm before any run.

    It can be observed where one of the signals in `needs` is measured, and all in `needs_too`.
    `evidence` says what it looks at, `confused_with` what else can look like it.
    """

    id: str
    severity: Severity
    needs: tuple[str, ...]
    meaning: str
    advice: str
    evidence: str = ""
    confused_with: str = ""
    false_alarms: str = NO_RATE
    needs_too: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rule(Declaration):
    """An alarm that is computed from the signals.

    `holds`, `value` and `threshold` give one entry per row of the signals. `message` makes the
    sentence with the numbers of one row; without it, it is made of the first sentence of `meaning`,
    value and threshold. `guarantee` says of a row what `false_alarms` says in general. `inhibited`:
    it does not hold where another cause explains the fall of the likelihood (`explained`).
    """

    holds: Callable[[Evidence, Phases], Flags]
    value: Callable[[Evidence], d.Series]
    threshold: Callable[[Evidence], d.Series | float]
    unit: str
    for_steps: int = 1
    clear_steps: int = 20
    message: Callable[[Evidence, int], str] | None = None
    guarantee: Callable[[Evidence, int], str] | None = None
    inhibited: bool = False


@dataclass(frozen=True)
class Alert:
    """A rule that fires, has fired, or is about to. `step` is where it first fired, or, while it is
    pending, since when it holds; `value` and `threshold` are from there.

    `episodes` are (fired, resolved) steps; resolved is None while it still fires.
    """

    rule: str
    severity: Severity
    state: State
    step: int
    value: float
    threshold: float
    message: str
    meaning: str
    evidence: str
    advice: str
    false_alarms: str
    episodes: tuple[Span, ...]


def condition_met(rule: Rule, e: Evidence, phases: Phases, explained: Flags) -> Flags:
    """Whether the condition of the rule is met, for each row; NaN never meets one."""
    with np.errstate(invalid="ignore", divide="ignore"):
        holds = np.asarray(rule.holds(e, phases), dtype=bool)
    return holds & ~explained if rule.inhibited else holds


def evaluate_rules(
    e: Evidence, phases: Phases, rules: Sequence[Rule], explained: Flags
) -> tuple[list[Alert], list[Alert]]:
    """Every rule that has fired up to the last row, and every rule that holds there but not yet for
    long enough to fire; each list worst and then earliest first."""
    fired, pending = [], []
    for rule in rules:
        holds = condition_met(rule, e, phases, explained)
        if not holds.any():
            continue
        spans = episodes(holds, rule.for_steps, rule.clear_steps)
        fires = bool(spans) and spans[-1][1] is None
        if spans:
            state: State = "firing" if fires else "resolved"
            fired.append(_alert(rule, e, spans[0][0], state, spans))
        if holds[-1] and not fires:
            since = len(holds) - int(d.consecutive(holds)[-1])
            pending.append(_alert(rule, e, since, "pending", ()))
    return _sorted(fired), _sorted(pending)


def _sorted(alerts: list[Alert]) -> list[Alert]:
    return sorted(alerts, key=lambda a: (ORDER[a.severity], a.step))


def _alert(rule: Rule, e: Evidence, row: int, state: State, spans: Sequence[Span]) -> Alert:
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(np.asarray(rule.value(e), dtype=float)[row])
        limit = np.broadcast_to(np.asarray(rule.threshold(e), dtype=float), (len(e.step),))
    told = rule.message(e, row) if rule.message else _message(rule, value, float(limit[row]))
    return Alert(
        rule=rule.id,
        severity=rule.severity,
        state=state,
        step=int(e.step[row]),
        value=value,
        threshold=float(limit[row]),
        message=told,
        meaning=rule.meaning,
        evidence=rule.evidence,
        advice=rule.advice,
        false_alarms=rule.guarantee(e, row) if rule.guarantee else rule.false_alarms,
        episodes=tuple((int(e.step[a]), None if b is None else int(e.step[b])) for a, b in spans),
    )


def _message(rule: Rule, value: float, threshold: float) -> str:
    first = rule.meaning.split(". ")[0].rstrip(".")
    return f"{first[0].lower()}{first[1:]}: {short(value)} {rule.unit} (limit {short(threshold)})"


def states(holds: Flags, for_steps: int, clear_steps: int) -> list[State]:
    """The state at every row. An alarm that holds again after it was resolved is pending again."""
    spans = episodes(holds, for_steps, clear_steps)
    out = np.full(len(holds), "inactive", dtype=object)
    if spans and spans[0][1] is not None:
        out[spans[0][1] :] = "resolved"
    out[holds] = "pending"
    for start, end in spans:
        out[start:end] = "firing"
    return out.tolist()


def episodes(holds: Flags, for_steps: int, clear_steps: int) -> list[Span]:
    """Row spans in which an alarm fires: from `for_steps` of true to `clear_steps` of false."""
    fires = np.flatnonzero(d.consecutive(holds) >= for_steps)
    clears = np.flatnonzero(d.consecutive(~holds) >= clear_steps)
    spans: list[Span] = []
    while len(fires):
        start = int(fires[0])
        clears = clears[clears > start]
        if not len(clears):
            return [*spans, (start, None)]
        spans.append((start, int(clears[0])))
        fires = fires[fires > clears[0]]
    return spans
