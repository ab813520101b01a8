"""The description of every rule: the text of docs/alarms.md."""

from __future__ import annotations

from ..core.safe_text import as_sentence
from .registry import RULES, STALLED
from .rule import Declaration, Rule, fired_wrongly, tallies
from .rules.measures import REPORTS


def markdown() -> str:
    """The section "Rules" of docs/alarms.md."""
    return "\n".join(_section(rule) for rule in (*RULES, STALLED))


def describe_rule(rule: Declaration) -> list[tuple[str, str]]:
    """(heading, text) of all that a rule declares beside its meaning; signals in backticks."""
    rows = [("Evidence", rule.evidence)]
    if rule.needs:
        needs = " or ".join(f"`{name}`" for name in rule.needs)
        needs += "".join(f", and `{name}`" for name in rule.needs_too)
        rows.append(("Needs", f"{needs}."))
    if isinstance(rule, Rule):
        delay = "at once" if rule.for_steps == 1 else f"after {rule.for_steps} steps in a row"
        rows.append(("Fires", f"{delay}; resolved after {rule.clear_steps} steps without."))
    rows += [
        ("Do", rule.advice),
        ("Confused with", rule.confused_with),
        ("False alarms", _false_alarms(rule)),
    ]
    return [(name, as_sentence(text)) for name, text in rows]


def _section(rule: Declaration) -> str:
    items = "\n".join(f"- **{name}:** {text}" for name, text in describe_rule(rule))
    return f"### {rule.id}\n\n*{rule.severity}.* {rule.meaning}\n\n{items}\n"


def _false_alarms(rule: Declaration) -> str:
    """What is promised, and what was counted where that is something else."""
    if rule.promise in ("", REPORTS) or rule.id not in tallies():
        return f"{rule.false_alarms}."
    return f"{rule.promise}. {as_sentence(fired_wrongly(rule.id))}."
