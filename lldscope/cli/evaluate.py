"""`lldscope evaluate BANK`: how often the alarms are right on runs whose end is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import LldscopeError
from ..core.terminal import console, paragraph, plain
from .shared import arl_option, print_json, print_table, progress

if TYPE_CHECKING:
    from ..evaluation.ranking import Ranking
    from ..evaluation.scoring import EvaluatedRun

LABELS = ("held", "recovered", "declined", "collapsed", "grey", "degraded")
FAULTS = "faults"  # column of the table for all faults; --json lists each


@click.command()
@click.argument("bank", type=click.Path(path_type=Path))
@click.option(
    "--split",
    type=click.Choice(["development", "test", "all"]),
    default="development",
    help="Runs to score on. Tune detectors on development; look at test once.",
)
@click.option(
    "--detector", type=click.Path(path_type=Path), metavar="FILE.py",
    help="Rank your own detector: a Python file, which is run, with a function score(signals).",
)
@arl_option("2000")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def evaluate(
    bank: Path, split: Any, detector: Path | None, arl: float | None, as_json: bool
) -> None:
    """Score every rule on BANK, a folder of runs with known outcomes.

    BANK/index.jsonl has one JSON object per run: run, outcome (held, declined, collapsed with
    collapse_step; or, by held-out evaluations, held, grey, degraded with degraded_step), and
    optionally split, arm (the recipe), fault and path (a run directory, or a Parquet file of
    signals; default signals.parquet, whose column run names the run).

    A second table ranks single signals, and the detector in FILE.py, by how well they separate
    runs that end from runs of the same arm that hold. score(signals) gets a DataFrame with the
    columns of `lldscope schema signals`, a row per step, and returns a number per row, from that
    row and those before: the higher, the more alarming. Held-out scores are left out where they
    define the label. Three controls that must fail are ranked as well.
    """
    from ..diagnosis.assess import DEFAULT_ARL
    from ..diagnosis.registry import RULES
    from ..evaluation.bank import read_bank
    from ..evaluation.ranking import rank, read_detector
    from ..evaluation.scoring import ANY, evaluate_run, score

    scorer = read_detector(detector) if detector else None
    runs = read_bank(bank, split)
    if not runs:
        raise LldscopeError(f"{bank} has no runs in the split {split!r}.")
    arl = arl or DEFAULT_ARL
    with progress(runs) as bar:
        evaluations = [evaluate_run(run, arl) for run in bar]
    scores = score(evaluations, [*(rule.id for rule in RULES), *ANY])
    rankings = rank(runs, scorer)
    answer = {
        "schema": 1,
        "bank": str(bank),
        "split": split,
        "arl": arl,
        "labels": dict(sorted(Counter(j.label for j in evaluations).items())),
        "healthy_steps": scores[0]["healthy_steps"],
        "rules": scores,
        "detectors": [vars(r) for r in rankings],
        "runs": [_about(j) for j in evaluations],
    }
    if as_json:
        print_json(answer)
    else:
        _show(answer)
        if rankings:
            _show_detectors(rankings)


def _about(evaluation: EvaluatedRun) -> dict[str, Any]:
    return {
        "run": evaluation.run.name,
        "label": evaluation.label,
        "steps": evaluation.steps,
        "end_step": evaluation.run.end_step,
        "fall_step": evaluation.fall,
        "first_alarm": {rule: min(steps) for rule, steps in evaluation.fired.items()},
    }


def _show(answer: dict[str, Any]) -> None:
    labels = [name for name in LABELS if name in answer["labels"]]
    if len(labels) < len(answer["labels"]):
        labels.append(FAULTS)
    counts = ", ".join(f"{n} {plain(label)}" for label, n in answer["labels"].items())
    click.echo(
        f"{len(answer['runs'])} runs of {plain(answer['bank'])} ({answer['split']}): {counts}. "
        f"{answer['healthy_steps']:,} healthy steps. --arl {answer['arl']:,.0f}."
    )
    head = ["rule", *(f"fired on\n{plain(label)}" for label in labels),
            "false alarms per\n1,000 healthy steps", "ends\nwarned of",
            "steps of lead,\nmedian (range)"]
    active = [rule for rule in answer["rules"] if any(k for k, _ in rule["fired"].values())]
    rows = [[rule["rule"], *_cells(rule, labels)] for rule in active]
    print_table(head, rows, range(1, len(head)))
    quiet = [rule["rule"] for rule in answer["rules"] if rule not in active]
    if quiet:
        out = console()
        out.print(paragraph(out, f"fired on no run: {', '.join(quiet)}"))


def _show_detectors(rankings: list[Ranking]) -> None:
    from ..evaluation.ranking import CONTROLS, HEAD, cells

    click.echo(
        f"\nIn arms with runs of both kinds, {rankings[0].hits[1]} ended and "
        f"{rankings[0].false[1]} held. The last {len(CONTROLS)} lines are controls: within arms "
        "they must not tell these apart."
    )
    print_table(HEAD, [cells(r) for r in rankings], range(1, len(HEAD)))


def _cells(rule: dict[str, Any], labels: list[str]) -> list[str]:
    low, high = rule["false_alarms_per_1000_healthy_steps_interval"]
    rate = f"{rule['false_alarms_per_1000_healthy_steps']:.2f} ({low:.2f}–{high:.2f})"
    reach = rule["lead_range"] and "–".join(map(str, rule["lead_range"]))
    return [
        *(_firing_count(rule["fired"], label) for label in labels),
        rate if low == low else "–",  # no run held
        _of(rule["warned"]),
        f"{rule['lead_median']:.0f} ({reach})" if reach else "–",
    ]


def _firing_count(counts: dict[str, list[int]], label: str) -> str:
    """In how many runs of an outcome, or of all faults together, the alarm fired."""
    pairs = [c for name, c in counts.items() if (name if name in LABELS else FAULTS) == label]
    return _of([sum(column) for column in zip(*pairs, strict=True)])


def _of(counts: Sequence[int]) -> str:
    k, n = counts
    return f"{k} of {n}" if n else "–"
