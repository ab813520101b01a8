"""All alarms: the rules computed from the signals, and the one that comes from the clock; and their
description in docs/alarms.md."""

from __future__ import annotations

from ..core.safe_text import as_sentence
from .rule import Declaration, Rule, Severity, fired_wrongly, tallies
from .rules import groups, held_out, lld, numerics, policy, responses, reward
from .rules.measures import REPORTS

__all__ = ["CAUSES", "LABELS", "LOOK_ALIKES", "RULES", "STALLED", "Rule"]

_FAMILIES = (lld, policy, reward, held_out, groups, responses, numerics)
RULES: tuple[Rule, ...] = tuple(rule for family in _FAMILIES for rule in family.RULES)
CAUSES = tuple(rule for rule in RULES if rule.rank is not None)
LOOK_ALIKES: tuple[str, ...] = ("lld", *(rule.id for rule in CAUSES))
LABELS = {"lld": "Lazy Likelihood Displacement", **{rule.id: rule.cause for rule in CAUSES}}
"""Look-alike → its name in a list."""

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


def markdown() -> str:
    """The section "Rules" of docs/alarms.md."""
    return "\n".join(_section(rule) for rule in (*RULES, STALLED))


def _section(rule: Declaration) -> str:
    rows = [("Evidence", rule.evidence)]
    if rule.needs:
        needs = " or ".join(f"`{name}`" for name in rule.needs)
        needs += "".join(f", and `{name}`" for name in rule.needs_too)
        rows.append(("Needs", f"{needs}."))
    if isinstance(rule, Rule):
        delay = "at once" if rule.for_steps == 1 else f"after {rule.for_steps} steps in a row"
        rows.append(("Fires", f"{delay}; resolved after {rule.clear_steps} steps without."))
    promise = f"{rule.false_alarms}."
    if rule.promise not in ("", REPORTS) and rule.id in tallies():  # something else was counted
        promise += f" {as_sentence(fired_wrongly(rule.id))}."
    rows += [
        ("Do", rule.advice), ("Confused with", rule.confused_with), ("False alarms", promise),
    ]
    items = "\n".join(f"- **{name}:** {as_sentence(text)}" for name, text in rows)
    return f"### {rule.id}\n\n*{rule.severity}.* {rule.meaning}\n\n{items}\n"
