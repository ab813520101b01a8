"""All alarms: the rules computed from the signals, and `stalled`, which depends on the clock."""

from __future__ import annotations

from .rule import Declaration, Rule, Severity
from .rules import groups, held_out, lld, numerics, policy, responses, reward

__all__ = ["BY_ID", "CAUSES", "LABELS", "LOOK_ALIKES", "RULES", "STALLED", "Rule"]

_FAMILIES = (lld, policy, reward, held_out, groups, responses, numerics)
RULES: tuple[Rule, ...] = tuple(rule for family in _FAMILIES for rule in family.RULES)
BY_ID = {rule.id: rule for rule in RULES}
CAUSES = tuple(rule for rule in RULES if rule.rank)
LOOK_ALIKES: tuple[str, ...] = ("lld", *(rule.id for rule in CAUSES))
LABELS = {"lld": "Lazy Likelihood Displacement", **{rule.id: rule.cause for rule in CAUSES}}
"""Look-alike → its display name."""

# Computed in `lldscope.monitor.health`.
STALLED = Declaration(
    "stalled",
    severity=Severity.CRITICAL,
    needs=(),
    cause="No more steps",
    action="look at the job's own log",
    meaning="The run has not finished normally and records no more steps.",
    evidence="run.json, the heartbeats of the ranks and the age of the last step; not the signals. "
    "Lost: a rank without a heartbeat for 30 s, or a step that takes ten usual ones and 120 s, "
    "or an hour before a run's third step and the first after a resume.",
    advice="Look at the job's own log; resume from the last checkpoint.",
    confused_with="A step, an evaluation or a checkpoint that takes far longer than usual.",
    promise="none if the process is gone; otherwise a time limit",
)
