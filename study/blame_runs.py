"""Is the paper's mechanism what one sees? The runs behind docs/research/mechanism.md.

    python -m study mechanism           # make what is missing; the same command goes on
    python -m study mechanism --report  # the tables of the page, from the results

The plan is declared in the page, and here: RECIPES, PAIRS, ARMS. One run after the other, in this
process; each adds a line to RESULTS once it is whole, and leaves nothing else behind.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import numpy as np
from lldscope_trainer.blame.answer import AS_IT_WAS, HALF_RATE, POSITIVE, interval
from lldscope_trainer.blame.experiment import blame
from lldscope_trainer.checkpoint import find_checkpoint
from lldscope_trainer.config import TrainConfig, load_config
from lldscope_trainer.rescue.forks import Fork

from lldscope import open_run

from .arms import BASE_FILE, LETTERS, LLDS, ROOT, STUDY, _letters
from .label import KEPT, label
from .letters import write_files
from .stats import paired
from .tables import table
from .until_degraded import train

RESULTS = Path(__file__).with_name("mechanism.jsonl")
PAGE = ROOT / "docs" / "research" / "mechanism.md"
FOLDER = STUDY / "mechanism"

PAIRS = 6  # degrading and holding runs of each family
SEEDS = tuple(range(200, 212))  # nobody had seen a run of theirs
DRAWS = 8
STEPS = 40  # of a fork
EVERY = 10  # steps between evaluations of a fork

COMMON: dict[str, Any] = {
    "steps": 60, "prompts": 8, "warmup_steps": 10, "eval_every": 5, "tokens_every": 0,
    "probes_every": 0, "checkpoint_every": 5, "checkpoints_kept": 20,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "letters": {"model": "study/policies/letters-1", "eval_questions": 256,
                **_letters(LETTERS, 64)},
    "countries": {"model": "study/policies/warm-1", "eval_questions": 128},
}
RATES = {  # of learning: at which runs degrade, and at which they hold
    "letters": {"degraded": 1.2e-4, "held": 2.2e-5},
    "countries": {"degraded": 4.7e-4, "held": 1e-4},
}
ARMS: dict[str, dict[str, Any]] = {  # of blame → what a fork changes
    AS_IT_WAS: {},
    POSITIVE: {"positive_only": True},
    "LLDS, action gate": LLDS,
    HALF_RATE: {},  # the rate depends on the recipe
    "KL 0.05": {"kl_coefficient": 0.05},
}


@dataclass(frozen=True)
class Plan:
    """A run: `kind` is the label that it must have to count."""

    family: str
    kind: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.family}-{self.kind}-{self.seed}"

    def config(self, **more: Any) -> TrainConfig:
        settings = COMMON | FAMILIES[self.family] | {
            "lr": RATES[self.family][self.kind], "seed": self.seed, "name": self.name,
        }
        words = [f"{key}={value}" for key, value in (settings | more).items()]
        return load_config(str(BASE_FILE), words)


def results(file: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Run name → its line."""
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def countable(rows: dict[str, dict[str, Any]], family: str, kind: str) -> list[dict[str, Any]]:
    """The first PAIRS runs of a family that have the label of their recipe, by seed."""
    mine = [r for r in rows.values() if r["family"] == family and r["kind"] == r["label"] == kind]
    return sorted(mine, key=lambda r: r["seed"])[:PAIRS]


def missing(rows: dict[str, dict[str, Any]]) -> Iterator[Plan]:
    """What is to be made next: families and kinds in turn, so that they stay even."""
    for n in range(1, PAIRS + 1):
        for family in FAMILIES:
            for kind in ("degraded", "held"):
                for seed in SEEDS:
                    plan = Plan(family, kind, seed)
                    if len(countable(rows, family, kind)) < n and plan.name not in rows:
                        yield plan


def make(say: Callable[[str], None]) -> None:
    """Make every run that is missing."""
    make_each(lambda: next(missing(results()), None), lambda plan: one(plan, results()),
              FOLDER, RESULTS, say)


def make_each(
    choose: Callable[[], Plan | None], one: Callable[[Plan], dict[str, Any]], folder: Path,
    lines: Path, say: Callable[[str], None],
) -> None:
    """Make the runs chosen, one after the other, in `folder`, where nothing is left of them; each
    adds a line to `lines` once it is whole."""
    write_files(LETTERS)
    while (plan := choose()) is not None:
        start = time.process_time()
        shutil.rmtree(folder / plan.name, ignore_errors=True)
        row = one(plan) | {"cpu_seconds": round(time.process_time() - start, 1)}
        with lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        shutil.rmtree(folder / plan.name)
        say(f"{plan.name}: {row.get('label')}, {row['cpu_seconds']} core seconds")


def one(plan: Plan, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A run: trained, labelled, and where it counts, blamed and forked at its state."""
    folder = FOLDER / plan.name
    config = plan.config()
    train(config, folder / "run")
    steps, right = evaluations(folder / "run")
    verdict = label(steps, right)
    row: dict[str, Any] = {
        "name": plan.name, "family": plan.family, "kind": plan.kind, "seed": plan.seed,
        "label": verdict.verdict, "degraded_step": verdict.step,
        "em": {int(s): float(r.mean()) for s, r in zip(steps, right, strict=True)},
    }
    if verdict.verdict != plan.kind:
        return row
    state = last_good(steps, right, verdict.step)
    if plan.kind == "held":  # at the step of the degrading run of the same number
        number = len(countable(rows, plan.family, "held"))
        state = countable(rows, plan.family, "degraded")[number]["state"]
    answer = blame(folder / "run", state, DRAWS)
    row |= {"state": state, "replay": all(answer.replay.values()),
            "blame": {r.name: {"delta": r.delta, "change": r.change, **r.measures}
                      for r in answer.variants}}
    checkpoint = find_checkpoint(folder / "run", state)
    row["forks"] = {}
    for arm, settings in ARMS.items():
        more = {"lr": config.lr / 2} if arm == HALF_RATE else settings
        with Fork(arm, more, config, checkpoint, folder / arm) as fork:
            for _ in range(STEPS // EVERY):
                fork.advance(EVERY)
        row["forks"][arm] = {"em": [s.em for s in fork.scores], "delta": fork.delta}
    return row


def evaluations(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """(evaluations,) steps trained; (evaluations, questions) 0 or 1."""
    with open_run(run) as source:
        rows = source.rows(
            "SELECT step, list(em ORDER BY question) FROM eval_questions WHERE name = 'greedy'"
            " GROUP BY step ORDER BY step"
        ).rows
    return np.array([step for step, _ in rows]), np.array([right for _, right in rows])


def last_good(steps: np.ndarray, right: np.ndarray, degraded: int | None) -> int:
    """The last evaluation before the degradation at which nothing much was lost: exact match at
    KEPT of the best so far, or more. A checkpoint is there from step 5 on."""
    means = right.mean(1)
    good = means >= KEPT * np.maximum.accumulate(means)
    before = steps < (math.inf if degraded is None else degraded)
    return max(5, int(steps[good & before].max(initial=5)))


# -- the tables ------------------------------------------------------------------------------------

PARTS = {
    "negative gradients": POSITIVE,
    "unlikely negatives": "without unlikely negatives",
    "shared prefixes": "without shared prefixes",
}


def report() -> str:
    """The tables of the page, of the runs that are there."""
    rows = results()
    parts = []
    for kind in ("degraded", "held"):
        lines = []
        for family in (*FAMILIES, "both"):
            runs = [r for f in FAMILIES if family in (f, "both") for r in countable(rows, f, kind)]
            if runs:
                lines.append([family, str(len(runs)), *_attribution(runs)])
        head = ("family", "runs", "Δ < 0 in", "Δ as it was, nats", *PARTS)
        parts.append(f"**{kind.capitalize()} runs**\n\n{table(head, lines)}")
    parts.append(_discrimination(rows))
    lines = []
    for kind in ("degraded", "held"):
        for family in (*FAMILIES, "both"):
            runs = [r for f in FAMILIES if family in (f, "both") for r in countable(rows, f, kind)]
            if runs:
                lines.append([kind, family, str(len(runs)), *_prediction(runs)])
    head = ("runs", "family", "n", "rank correlation [95 %]", "best by one step",
            *(f"fork: {arm}" for arm in ARMS))
    parts.append(table(head, lines))
    others = [r for r in rows.values() if r["label"] != r["kind"]]
    names = ", ".join(f"{r['name']} ({r['label']})" for r in others) or "none"
    parts.append(f"Runs that did not get the label of their recipe, and were left out: {names}.")
    return "\n\n".join(parts)


def _attribution(runs: Sequence[dict[str, Any]]) -> list[str]:
    """How many runs lose, Δ as it was, and by how much leaving each part out raises it."""
    was = [r["blame"][AS_IT_WAS]["delta"][0] for r in runs if r["blame"][AS_IT_WAS]["delta"]]
    cells = [f"{sum(d < 0 for d in was)} of {len(was)}", _mean(was)]
    for name in PARTS.values():
        values = [r["blame"][name]["change"][0] for r in runs if r["blame"][name]["change"]]
        cells.append(_mean(values))
    return cells


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    few = paired(values) if 2 <= len(values) < 6 else None
    span = interval(values) if few is None else (few.mean, few.low, few.high)
    return f"{fmean(values):+.2f}" + (f" [{span[1]:+.2f}, {span[2]:+.2f}]" if span else "")


def _discrimination(rows: dict[str, dict[str, Any]]) -> str:
    counts = []
    for kind in ("degraded", "held"):
        runs = [r for f in FAMILIES for r in countable(rows, f, kind)]
        was = [r["blame"][AS_IT_WAS]["delta"][0] for r in runs if r["blame"][AS_IT_WAS]["delta"]]
        counts.append((sum(d < 0 for d in was), len(was)))
    (a, n), (b, m) = counts
    total = sum(comb(n, k) * comb(m, a + b - k) for k in range(a, min(n, a + b) + 1))
    p = total / comb(n + m, a + b) if n + m else float("nan")
    return (f"Δ < 0 in {a} of {n} degrading and in {b} of {m} holding runs: p = {p:.3f} "
            "by Fisher's exact test, one-sided.")


def _prediction(runs: Sequence[dict[str, Any]]) -> list[str]:
    correlations, choices = [], []
    ends: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for r in runs:
        means = {arm: fmean(r["forks"][arm]["em"]) for arm in ARMS}
        for arm, value in means.items():
            ends[arm].append(value)
        deltas = {arm: d[0] for arm in ARMS if (d := r["blame"][arm]["delta"])}
        if len(deltas) == len(ARMS):
            choices.append(means[max(deltas, key=lambda arm: deltas[arm])])
            correlations.append(spearman([deltas[a] for a in ARMS], [means[a] for a in ARMS]))
    return [_mean([c for c in correlations if math.isfinite(c)]),
            f"{fmean(choices):.3f}" if choices else "–",
            *(f"{fmean(v):.3f}" for v in ends.values())]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation, with mean ranks for ties; NaN where one side is constant."""
    ranks = [_ranks(np.asarray(x)) for x in (a, b)]
    if min(r.std() for r in ranks) == 0:
        return math.nan
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    below = (values[:, None] > values).sum(1)
    return below + ((values[:, None] == values).sum(1) - 1) / 2


@click.command("mechanism")
@click.option("--report", "show", is_flag=True, help="Print the tables of what is there.")
def mechanism(show: bool) -> None:
    """One update run again, and 40 steps of each change, in degrading and holding runs."""
    if show:
        click.echo(report())
    else:
        make(click.echo)
