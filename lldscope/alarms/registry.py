"""Alarm rules: what each of them says, the states they go through, and what looks alike.

states       the declaration of a rule, and inactive → pending → firing → resolved
lld          Lazy Likelihood Displacement itself
symptoms     that a run is unwell, not why
faults       causes other than LLD (what they look at: `traces`)
look_alikes  which cause the log supports, and which came first
page         all of it as the page docs/alarms.md
"""

from __future__ import annotations

from collections.abc import Sequence

from ..signals.evidence import Evidence, Flags
from .attribution import LOOK_ALIKES, Answer, Finding, explained_elsewhere, look_alikes
from .rule import Alert, Declaration, Phases, Rule, Severity, State, evaluate_rules
from .rules.faults import FAULTS
from .rules.lld import LLD
from .rules.symptoms import SYMPTOMS

RULES: tuple[Rule, ...] = (*LLD, *SYMPTOMS, *FAULTS)

STALLED = Declaration(
    "stalled",
    "critical",
    needs=(),
    meaning="The run has not ended in order and records no more steps.",
    evidence="run.json, the heartbeats of the ranks and the age of the last step; not the signals. "
    "Lost is a rank without a heartbeat for 30 s, and a step that takes ten usual ones and 120 s, "
    "or an hour before a run's third step and the first after a resume.",
    advice="Look at the job's own log; resume from the last checkpoint.",
    confused_with="A step, an evaluation or a checkpoint that takes far longer than usual.",
    false_alarms="none if the process is gone; otherwise a time limit",
)
"""From the clock rather than from the rows: see `lldscope.monitor.health`."""

__all__ = [
    "LOOK_ALIKES",
    "RULES",
    "STALLED",
    "Alert",
    "Answer",
    "Declaration",
    "Finding",
    "Phases",
    "Rule",
    "Severity",
    "State",
    "evaluate",
    "explained_elsewhere",
    "look_alikes",
]


def evaluate(
    e: Evidence, phases: Phases, rules: Sequence[Rule] = RULES, explained: Flags | None = None
) -> tuple[list[Alert], list[Alert]]:
    """The rules that have fired up to the last row, and those that are pending there; each list
    worst and then earliest first. `explained` is `explained_elsewhere(e)`, if it is known."""
    return evaluate_rules(
        e, phases, rules, explained_elsewhere(e) if explained is None else explained
    )
