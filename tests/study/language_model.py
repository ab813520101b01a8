"""The language-model experiment (docs/research/language-model.md): its runs, and what they say.

    python -m tests.study.language_model run FOLDER       make or resume what is missing, in order
    python -m tests.study.language_model report FOLDER    the tables of the page

One process at a time; Ctrl-C stops, and the same command goes on from the last checkpoint.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pandas as pd
from lldscope_trainer.config import load_config

import lldscope
from lldscope.core.errors import LldscopeError

from .outcome import collapse_row, outcome
from .tables import or_dash, table

CONFIG = "search-smollm2"
ARMS: dict[str, tuple[float, tuple[str, ...]]] = {
    "plain": (1, ()),
    "llds": (1, ("llds=action", "llds_coefficient=0.2")),
    "half": (0.5, ()),
    "positives": (1, ("positive_only=true",)),
    "holding": (0.1, ()),
}
"""Share of the configuration's learning rate, and what else an arm changes."""
SEEDS = {"plain": 6, "llds": 4, "half": 4, "positives": 4, "holding": 4}
"""How many runs of each: seeds from 1 on, the same questions in every arm."""
SMOOTH = 10


def plan() -> Iterator[tuple[str, int]]:
    """(arm, seed) in the order in which they are made: first what questions a and d need, each seed
    in all arms before the next."""
    for arms in (("plain", "llds", "half"), ("positives", "holding")):
        for seed in range(1, max(SEEDS.values()) + 1):
            yield from ((arm, seed) for arm in arms if seed <= SEEDS[arm])


def settings(arm: str, seed: int) -> list[str]:
    """What `lldscope train` is told beside the configuration."""
    share, changes = ARMS[arm]
    lr = load_config(CONFIG).lr * share
    return [f"lr={lr:g}", *changes, f"seed={seed}", f"name={arm}-{seed}"]


def command(arm: str, seed: int, run: Path) -> list[str] | None:
    """What makes or resumes a run; None where it is done."""
    train = [str(Path(sys.executable).with_name("lldscope")), "train"]
    if not (run / "run.json").is_file():
        return [*train, CONFIG, *settings(arm, seed), "--run", str(run)]
    if json.loads((run / "run.json").read_text("utf-8")).get("status") == "finished":
        return None
    if any((run / "checkpoints").glob("step-*")):
        return [*train, "--resume", "--run", str(run)]
    raise LldscopeError(f"{run} stopped before its first checkpoint: remove it")


def events(signals: pd.DataFrame) -> dict[str, int | None]:
    """The step at which each signal turns: the first of ten in a row at which its ten-step mean is
    beyond its limit; None for one that does not. The limits were fixed before the runs."""

    def mean(name: str) -> pd.Series:
        values = signals.set_index("step")[name].astype(float)
        return values.rolling(SMOOTH, min_periods=SMOOTH // 2).mean().dropna()

    def first(condition: pd.Series) -> int | None:
        lasting = condition[::-1].rolling(SMOOTH).sum()[::-1] == SMOOTH
        steps = lasting.index[lasting.to_numpy(bool)]
        return int(steps[0]) if len(steps) else None

    reward, entropy, norm = mean("reward"), mean("entropy"), mean("grad_norm")
    return {
        "reward": first(reward < 0.9 * reward.cummax()),
        "delta": first(mean("delta_correct") < 0),
        "retention": first(mean("retention_delta") < 0),
        "entropy": first(entropy >= 1.5 * entropy.cummin()),
        "norm": first(norm >= 2 * norm.cummin()),
    }


@click.group()
def main() -> None:
    """The language-model experiment."""


_folder = click.argument("folder", type=click.Path(path_type=Path))


@main.command()
@_folder
def run(folder: Path) -> None:
    """Make or resume what is missing."""
    for arm, seed in plan():
        if line := command(arm, seed, folder / f"{arm}-{seed}"):
            click.echo(" ".join(line))
            if code := subprocess.run(line).returncode:
                sys.exit(code)


@main.command()
@_folder
def report(folder: Path) -> None:
    """The tables, from whatever has run."""
    rows, actions = [], []
    for arm, seed in plan():
        path = folder / f"{arm}-{seed}"
        if not (path / "run.json").is_file():
            continue
        opened = lldscope.open_run(path)
        signals = opened.signals()
        turns = events(signals)
        reward = signals["reward"].to_numpy(float)
        scores = opened.sql("SELECT value FROM evals WHERE metric = 'em_greedy' ORDER BY step")
        alarms = sorted({alert.rule for alert in opened.assess().alerts})
        done = len(signals)
        fate = "–" if done < load_config(CONFIG).steps else outcome(reward)
        rows.append([
            f"{arm}-{seed}", str(done), fate, or_dash(collapse_row(reward)),
            *(or_dash(step) for step in turns.values()),
            f"{signals['good_first_action_share'].mean():.2f}",
            " → ".join(f"{v:.2f}" for v in scores["value"]), ", ".join(alarms) or "–",
        ])
        actions += _actions(opened, f"{arm}-{seed}")
    head = ("run", "steps", "fate", "collapse", "reward turns", "Δ", "retention", "entropy",
            "gradient norm", "good first actions", "held-out EM", "alarms")
    click.echo(table(head, rows))
    click.echo(table(("run", "action", "Δ of correct, nats/response"), actions))


def _actions(opened: lldscope.Run, name: str) -> list[list[str]]:
    values = opened.action_signals()
    values = values[values["correct"].astype(bool)].groupby("action_index")["delta"].mean()
    return [[name, str(index), f"{value:+.3f}"] for index, value in values.items()]


if __name__ == "__main__":
    main()
