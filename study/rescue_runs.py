"""Does `lldscope rescue` save runs? The runs behind docs/research/rescue.md.

    python -m study rescue           # make what is missing; the same command goes on
    python -m study rescue --report  # the tables of the page, from the results

Of each run: trained until a warning fires, then each strategy gets BUDGET steps. One run after the
other, in this process; each adds a line to RESULTS once it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from math import comb
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import numpy as np
from lldscope_trainer.checkpoint import Checkpoint, Checkpoints, find_checkpoint
from lldscope_trainer.config import TrainConfig
from lldscope_trainer.environment.reward import CORRECT_RULES
from lldscope_trainer.rescue.forks import Fork, changes, end_losers, winner
from lldscope_trainer.train import Trainer

from lldscope import NullRecorder, open_run
from lldscope.diagnosis.account import Onset

from .arms import STUDY
from .blame_runs import FAMILIES, Plan, make_each
from .label import label
from .tables import table
from .until_degraded import Answers

RESULTS = Path(__file__).with_name("rescue.jsonl")
FOLDER = STUDY / "rescue"

RUNS = 10  # of each family that count
SEEDS = tuple(range(300, 330))  # nobody had seen a run of theirs
LIMIT = 60  # steps in which a warning has to fire
BUDGET = 60  # steps of training that each strategy has from then on
ARMS = ("as-it-was", "half-rate", "llds")
ROUNDS, ROUND = 4, 2  # rounds of the forks, steps in each
WITHIN = 0.95  # of the best exact match before the alarm
STRATEGIES = ("nothing", "stop", "half-rate", "rescue")


def results(file: Path = RESULTS) -> list[dict[str, Any]]:
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    return [json.loads(line) for line in lines]


def countable(rows: Sequence[dict[str, Any]], family: str) -> list[dict[str, Any]]:
    """The first RUNS runs of a family that an alarm warned of and that degraded when nothing was
    done, by seed."""
    mine = [r for r in rows if r["family"] == family and r.get("label") == "degraded"]
    return sorted(mine, key=lambda r: r["seed"])[:RUNS]


def missing(rows: Sequence[dict[str, Any]]) -> Iterator[Plan]:
    """What is to be made next, the families in turn."""
    done = {r["name"] for r in rows}
    for n in range(1, RUNS + 1):
        for family in FAMILIES:
            for seed in SEEDS:
                plan = Plan(family, "degraded", seed)
                if len(countable(rows, family)) < n and plan.name not in done:
                    yield plan


def make(say: Callable[[str], None]) -> None:
    """Make every run that is missing."""
    make_each(lambda: next(missing(results()), None), one, FOLDER, RESULTS, say)


def one(plan: Plan) -> dict[str, Any]:
    """A run until its alarm, and the strategies from there."""
    folder, config = FOLDER / plan.name, plan.config(steps=LIMIT)
    steps, right, trouble = until_alarm(config, folder / "run")
    means = [float(r.mean()) for r in right]
    row: dict[str, Any] = {"name": plan.name, "family": plan.family, "seed": plan.seed,
                           "em": dict(zip(steps, means, strict=True)), "rule": None}
    if trouble is None:
        return row
    checkpoints = [c.state.step for c in Checkpoints(folder / "run", keep=1).all()]
    earlier = [s for s in checkpoints if s <= trouble.sound + 1]
    row |= {"rule": trouble.rule, "fired": trouble.fired, "sound": trouble.sound,
            "alarm": steps[-1], "checkpoint": max(earlier, default=None), "best": max(means)}
    on = fork("as-it-was", config, find_checkpoint(folder / "run", steps[-1]), folder / "nothing")
    with on:
        for _ in range(BUDGET // 10):
            on.advance(10)
    verdict = label([*steps, *(s.step for s in on.scores)], [*right, *(s.right for s in on.scores)])
    row |= {"label": verdict.verdict, "degraded_step": verdict.step}
    if verdict.verdict != "degraded" or not earlier:
        return row | {"label": verdict.verdict if earlier else "no checkpoint"}
    start = find_checkpoint(folder / "run", max(earlier))
    half = fork("half-rate", config, start, folder / "half")
    with half:
        half.advance(BUDGET)
    best, forks = follow_rescue(config, start, folder)
    final = {"nothing": on.scores[-1].em, "stop": means[-1], "half-rate": half.scores[-1].em,
             "rescue": best.scores[-1].em}
    return row | {"final": final, "winner": best.arm,
                  "forks": {f.arm: [s.em for s in f.scores] for f in forks}}


def fork(arm: str, config: TrainConfig, start: Checkpoint, folder: Path) -> Fork:
    settings = changes(arm, config, start)
    assert settings is not None
    return Fork(arm, settings, longer(config), start, folder)


def longer(config: TrainConfig) -> TrainConfig:
    return config.replace(steps=LIMIT + 2 * BUDGET)


def follow_rescue(config: TrainConfig, start: Checkpoint, folder: Path) -> tuple[Fork, list[Fork]]:
    """Forks as `lldscope rescue` makes and ends them, then the winner's training for what is left
    of the budget. `--apply` trains the winner from the checkpoint again, to the same bit: so the
    winner's fork is continued here, and its steps count twice."""
    forks = [fork(arm, config, start, folder / arm) for arm in ARMS]
    cost = 0
    for each in forks:
        each.__enter__()
    running = forks
    for _ in range(ROUNDS):
        for each in running:
            each.advance(ROUND)
            cost += ROUND
        running = end_losers(forks, ROUNDS)
    best = winner(forks)
    best.advance(BUDGET - cost - ROUNDS * ROUND)
    for each in forks:
        each.__exit__(None, None, None)
    return best, forks


def until_alarm(
    config: TrainConfig, folder: Path
) -> tuple[list[int], list[np.ndarray], Onset | None]:
    """Train until a warning has fired: steps and answers of the evaluations, and the trouble as
    `rescue` sees it after each evaluation."""
    trainer = Trainer(config, NullRecorder())
    recorder = Answers(
        folder, name=config.name, config=config.to_dict(),
        correct_rule=CORRECT_RULES[config.answers_from],
    )
    checkpoints, trouble = Checkpoints(folder, config.checkpoints_kept), None
    with recorder:
        recorder.plan(config.steps)
        trainer.recorder = recorder
        trainer.evaluate()
        while trainer.next_step < config.steps and trouble is None:
            trainer.step(trainer.next_step)
            done = trainer.next_step
            if done % config.eval_every == 0:
                trainer.evaluate()
                trainer.save(checkpoints, done)
                with open_run(folder) as run:
                    trouble = run.assess().account.onset()
        trainer.close()
    steps = list(recorder.evaluations)
    return steps, [recorder.evaluations[step] for step in steps], trouble


# -- the tables ------------------------------------------------------------------------------------


def report() -> str:
    """The tables of the page, of the runs that are there."""
    rows = results()
    lines = []
    for family in (*FAMILIES, "both"):
        runs = [r for f in FAMILIES if family in (f, "both") for r in countable(rows, f)]
        for name in STRATEGIES if runs else ():
            within = sum(saves(r, name) for r in runs)
            share = [r["final"][name] / r["best"] for r in runs]
            lines.append([family, name, f"{within} of {len(runs)}", f"{fmean(share):.3f}",
                          f"{min(share):.3f}", "" if name == "rescue" else _against(runs, name)])
    head = ("family", "strategy", "within 5 % of the best", "share of the best, mean", "least",
            "rescue alone saves / it alone, p")
    winners = [r["winner"] for f in FAMILIES for r in countable(rows, f)]
    choices = ", ".join(f"{arm} {winners.count(arm)}" for arm in ARMS)
    others = [f"{r['name']} ({r.get('label') or 'no warning'})" for r in rows
              if r.get("label") != "degraded"]
    return "\n\n".join((
        table(head, lines), f"What rescue chose: {choices}.",
        f"Runs that do not count: {', '.join(others) or 'none'}.",
    ))


def saves(row: dict[str, Any], strategy: str) -> bool:
    return bool(row["final"][strategy] >= WITHIN * row["best"])


def _against(runs: Sequence[dict[str, Any]], name: str) -> str:
    """Runs that one of the two saves alone, and the one-sided sign test's p."""
    ours = sum(saves(r, "rescue") and not saves(r, name) for r in runs)
    theirs = sum(saves(r, name) and not saves(r, "rescue") for r in runs)
    n = ours + theirs
    p = sum(comb(n, k) for k in range(ours, n + 1)) / 2**n
    return f"{ours} / {theirs}, p = {p:.3f}"


@click.command("rescue")
@click.option("--report", "show", is_flag=True, help="Print the tables of what is there.")
def rescue(show: bool) -> None:
    """Degrading runs from their alarm on: nothing, stop, half the rate, rescue."""
    if show:
        click.echo(report())
    else:
        make(click.echo)
