"""All alarms: the rules computed from the signals, and the one that comes from the clock."""

from __future__ import annotations

from .rule import Declaration, Rule, Severity
from .rules import (
    components,
    groups,
    held_out,
    lld,
    numerics,
    policy,
    responses,
    reward,
    tools,
)

__all__ = ["CAUSES", "LABELS", "LOOK_ALIKES", "RULES", "STALLED", "Rule"]

RULES: tuple[Rule, ...] = (
    *lld.RULES,
    *policy.RULES,
    *reward.RULES,
    *components.RULES,
    *held_out.RULES,
    *tools.RULES,
    *groups.RULES,
    *responses.RULES,
    *numerics.RULES,
)

CAUSES = tuple(rule for rule in RULES if rule.rank is not None)
LOOK_ALIKES: tuple[str, ...] = ("lld", *(rule.id for rule in CAUSES))
LABELS = {
    "lld": next(rule.label for rule in lld.RULES if rule.label),
    **{rule.id: rule.label for rule in CAUSES},
}
"""Look-alike → its name in a list."""

# Computed in `lldscope.monitor.health`.
STALLED = Declaration(
    "stalled",
    Severity.CRITICAL,
    needs=(),
    label="The run has stopped making steps",
    cause="No more steps",
    action="look at the job's own log",
    meaning="The run has not finished normally and records no more steps.",
    evidence="run.json, the heartbeats of the ranks and the age of the last step; not the signals. "
    "Lost: a rank without a heartbeat for 30 s, or a step that takes ten usual ones and 120 s, "
    "or an hour before a run's third step and the first after a resume.",
    advice="Look at the job's own log; resume from the last checkpoint.",
    confused_with="A step, an evaluation or a checkpoint that takes far longer than usual.",
    false_alarms="none if the process is gone; otherwise a time limit",
)
