"""How often each rule fires in runs of the alarm bank that held: what the rules' pages repeat."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

from lldscope.diagnosis.assess import DEFAULT_ARL
from lldscope.diagnosis.registry import RULES
from lldscope.diagnosis.rule import COUNTS
from lldscope.evaluation.bank import read_bank
from lldscope.evaluation.scoring import EvaluatedRun, evaluate_run

from .arms import ALARM_BANK


@cache
def evaluated(bank: Path) -> tuple[EvaluatedRun, ...]:
    """The runs of a bank and the alarms of each."""
    return tuple(evaluate_run(run, DEFAULT_ARL) for run in read_bank(bank))


def counts(bank: Path = ALARM_BANK) -> dict[str, tuple[int, int]]:
    """Rule → runs in which it fired, of those that held and recorded its signals."""
    fired: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    for result in (r for r in evaluated(bank) if r.label == "held"):
        recorded = result.run.signals().notna().any()
        fired.update({rule for rule, steps in result.fired.items() if steps})
        judged.update(
            rule.id
            for rule in RULES
            if any(recorded[list(rule.needs)]) and all(recorded[list(rule.needs_too)])
        )
    return {rule.id: (fired[rule.id], judged[rule.id]) for rule in RULES if judged[rule.id]}


def write_counts(path: Path = COUNTS) -> Path:
    """Write the counts where the rules read them; the file."""
    rows = (f'  "{rule}": [{fired}, {n}]' for rule, (fired, n) in counts().items())
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")
    return path
