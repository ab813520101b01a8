"""How often the alarms are wrong: the tables of docs/research/alarm-rates.md, from the bank."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.candidates import fall_cell, lead_cell, rate_cell, share_cell, starts
from benchmarks.rivals import RIVALS
from lldscope.diagnosis.assess import DEFAULT_ARL
from lldscope.evaluation.bank import read_bank
from lldscope.evaluation.scoring import ANY, RECOVERED, EvaluatedRun, evaluate_run, score

from .tables import table

RULES = (
    "lld-decay", "lld-collapse", "entropy-surge", "entropy-floor", "grad-explosion", "eval-gap",
    "reward-decline", "reward-crash",
)
LABELS = ("held", "declined", "collapsed")
NO_FAULT = (*LABELS, RECOVERED)


def rates(bank: Path, split: Any) -> str:
    """Rules and rivals on the runs of a split; faults are in the first sentence only."""
    runs = read_bank(bank, split) if (bank / "index.jsonl").is_file() else []
    if not runs:
        return "No runs yet."
    judged = [_with_rivals(evaluate_run(run, DEFAULT_ARL)) for run in runs]
    names = (*RULES, *ANY, *RIVALS)
    scores = score(judged, names)
    rows = [_cells(name, t) for name, t in zip(names, scores, strict=True)]
    head = (
        "alarm", *(f"fired on {label}" for label in LABELS),
        "false alarms per 1,000 healthy steps (95 %)", "collapses warned of (95 %)",
        "lead in steps: median, 10th percentile, range",
        "falls of the reward warned of (95 %), median lead as a share of the steps up to it",
    )
    return f"{_made_of(judged)}\n\n{table(head, rows)}"


def _with_rivals(j: EvaluatedRun) -> EvaluatedRun:
    signals = j.run.signals()
    step = signals["step"].to_numpy()
    rivals = {name: starts(fires(signals, DEFAULT_ARL), step) for name, fires in RIVALS.items()}
    return replace(j, fired={**j.fired, **rivals})


def _made_of(judged: list[EvaluatedRun]) -> str:
    labels = Counter(j.label for j in judged)
    kinds = ", ".join(f"{labels[label]} {label}" for label in NO_FAULT)
    faulty = sum(n for label, n in labels.items() if label not in NO_FAULT)
    steps = sum(j.steps for j in judged if j.label == "held")
    return f"{len(judged)} runs: {kinds}, {faulty} with a fault; {steps:,} healthy steps."


def _cells(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"`{name}`" if name in RULES else name,
        *("{} of {}".format(*row["fired"].get(label, [0, 0])) for label in LABELS),
        rate_cell(row),
        share_cell(row["warned"]),
        lead_cell(row),
        fall_cell(row),
    )
