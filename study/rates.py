"""How often the alarms are wrong: the table of runs that are labelled by their reward in
docs/research/alarm-rates.md, from the bank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.candidates import share_cell, starts
from benchmarks.rivals import RIVALS
from lldscope.diagnosis.assess import DEFAULT_ARL
from lldscope.evaluation.bank import read_bank
from lldscope.evaluation.scoring import ANY, EvaluatedRun, evaluate_run, score

from .tables import table

RULES = (
    "lld-decay", "lld-collapse", "entropy-surge", "entropy-floor", "grad-explosion", "eval-gap",
    "reward-decline", "reward-crash",
)
NAMES = (*RULES, *ANY, *RIVALS)
LABELS = ("held", "declined", "collapsed")


def rates(bank: Path) -> str:
    """Rules and rivals on the runs for development and for the test."""
    if not (bank / "index.jsonl").is_file():
        return "No runs yet."
    halves = [_cells(bank, split) for split in ("test", "development")]
    head = ("alarm", *(f"{split}: {word}" for split in ("test", "development") for word in (
        *LABELS, "falls warned of (95 %)")))
    rows = [
        (f"`{name}`" if name in RULES else name, *test, *development)
        for name, test, development in zip(NAMES, *halves, strict=True)
    ]
    return table(head, rows)


def _cells(bank: Path, split: Any) -> list[tuple[str, ...]]:
    judged = [_with_rivals(evaluate_run(run, DEFAULT_ARL)) for run in read_bank(bank, split)]
    return [
        (
            *("{} of {}".format(*row["fired"].get(label, [0, 0])) for label in LABELS),
            share_cell(row["warned_of_fall"]),
        )
        for row in score(judged, NAMES)
    ]


def _with_rivals(j: EvaluatedRun) -> EvaluatedRun:
    signals = j.run.signals()
    step = signals["step"].to_numpy()
    rivals = {name: starts(fires(signals, DEFAULT_ARL), step) for name, fires in RIVALS.items()}
    return replace(j, fired={**j.fired, **rivals})
