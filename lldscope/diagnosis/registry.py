"""All alarms: the rules computed from the signals, and `stalled`, which depends on the clock; and
their description in docs/alarms.md."""

from __future__ import annotations

from ..core.safe_text import as_sentence
from .rule import Declaration, Rule, Severity, tallies
from .rules import groups, held_out, lld, numerics, policy, responses, reward
from .rules.measures import REPORTS

__all__ = ["CAUSES", "LABELS", "LOOK_ALIKES", "RULES", "STALLED", "Rule"]

_FAMILIES = (lld, policy, reward, held_out, groups, responses, numerics)
RULES: tuple[Rule, ...] = tuple(rule for family in _FAMILIES for rule in family.RULES)
CAUSES = tuple(rule for rule in RULES if rule.rank is not None)
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


def markdown() -> str:
    """The table "Rules" of docs/alarms.md."""
    rows = "\n".join(_row(rule) for rule in (*RULES, STALLED))
    head = "| rule, severity, fired in runs that held | what it means, when it fires, what to do |"
    return f"{head}\n|---|---|\n{rows}"


def _row(rule: Declaration) -> str:
    needs = " or ".join(f"`{name}`" for name in rule.needs) or "the files of the run"
    needs += "".join(f", and `{name}`" for name in rule.needs_too)
    steps = rule.for_steps if isinstance(rule, Rule) else 1
    delay = "at once" if steps == 1 else f"after {steps} steps"
    cells = [
        ("", rule.meaning), (f"**Fires {delay}, from {needs}:** ", rule.evidence),
        ("**Do:** ", rule.advice), ("**Confused with:** ", rule.confused_with),
    ]
    if rule.promise not in ("", REPORTS):
        cells.append(("**False alarms:** ", f"{rule.promise}."))
    counted = tallies().get(rule.id)
    held = "<br>{} of {}".format(*counted) if counted else ""
    text = "<br>".join(f"{name}{as_sentence(words)}" for name, words in cells)
    return f"| <a id=\"{rule.id}\"></a>**{rule.id}**<br>{rule.severity}{held} | {text} |"
