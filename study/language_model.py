"""The language-model experiment (docs/research/language-model.md): its runs, and what they say.

    python -m study.language_model explore FOLDER   one run of each recipe: which one degrades?
    python -m study.language_model run FOLDER       make or resume what is missing, in order
    python -m study.language_model report FOLDER    the tables of the page

One process at a time; Ctrl-C stops, and the same command goes on from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import pandas as pd
from lldscope_trainer.config import load_config
from lldscope_trainer.preflight import converted

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.evaluation.scoring import fall_row

from .outcome import DECLINED, collapse_row
from .tables import or_dash, table

CONFIG = "search-smollm2"
LR, WARMUP = 1e-4, "warmup_steps=20"
"""The recipe that degrades, by exploration; the configuration's own rate holds."""
ARMS: dict[str, tuple[float, tuple[str, ...]]] = {
    "plain": (1, ()),
    "llds": (1, ("llds=action", "llds_coefficient=0.2")),
    "half": (0.5, ()),
    "positives": (1, ("positive_only=true",)),
    "holding": (0.1, ()),
}
"""Share of LR, and what else an arm changes."""
SEEDS = {"plain": 6, "llds": 4, "half": 4, "positives": 4, "holding": 4}
"""How many runs of each: seeds from 1 on, the same questions in every arm."""
EXPLORATION = {
    "rate-5.5e-05": ("lr=5.5e-5",),
    "warm-0.0001": ("lr=1e-4", WARMUP),
    "warm-0.0001-llds": ("lr=1e-4", WARMUP, *ARMS["llds"][1]),
    "rate-0.0001": ("lr=1e-4",),
    "rate-3e-05": ("lr=3e-5",),
}
EXPLORER = 900
"""What is tried to find a recipe that degrades, and the seed that tries it: it judges nothing."""
LOOK = 60  # seconds between two looks at a run that is being made
SMOOTH = 10


def exploration() -> Iterator[tuple[str, list[str]]]:
    """(name of a run, its settings)."""
    for name, changes in EXPLORATION.items():
        yield name, [*changes, f"seed={EXPLORER}", f"name={name}"]


def plan() -> Iterator[tuple[str, list[str]]]:
    """(name of a run, its settings) in the order in which they are made: first what questions a and
    d need, each seed in all arms before the next."""
    for arms in (("plain", "llds", "half"), ("positives", "holding")):
        for seed in range(1, max(SEEDS.values()) + 1):
            for arm in arms:
                if seed <= SEEDS[arm]:
                    share, changes = ARMS[arm]
                    name, lr = f"{arm}-{seed}", LR * share
                    yield name, [f"lr={lr:g}", WARMUP, *changes, f"seed={seed}", f"name={name}"]


def command(settings: list[str], run: Path) -> list[str] | None:
    """What makes or resumes a run; None where it is finished or has collapsed."""
    train = [str(Path(sys.executable).with_name("lldscope")), "train"]
    if not (run / "run.json").is_file():
        return [*train, CONFIG, *settings, "--run", str(run)]
    status = json.loads((run / "run.json").read_text("utf-8")).get("status")
    if status == "finished" or has_collapsed(run):
        return None
    if any((run / "checkpoints").glob("step-*")):
        return [*train, "--resume", "--run", str(run)]
    raise LldscopeError(f"{run} stopped before its first checkpoint: remove it")


def has_collapsed(run: Path) -> bool:
    """Whether a run has collapsed, and so ends: what comes after is slow, and judges nothing."""
    if not (run / "run.json").is_file():
        return False
    with lldscope.open_run(run) as opened:
        return collapse_row(opened.columns()["reward"]) is not None


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
def explore(folder: Path) -> None:
    """Make or resume the runs of exploration."""
    _make(exploration(), folder)


@main.command()
@_folder
def run(folder: Path) -> None:
    """Make or resume what is missing."""
    _make(plan(), folder)


def _make(runs: Iterable[tuple[str, list[str]]], folder: Path) -> None:
    for name, settings in runs:
        if line := command(settings, folder / name):
            click.echo(" ".join(line))
            process = subprocess.Popen(line)
            while process.poll() is None and not has_collapsed(folder / name):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK)
            if process.poll() is None:
                process.terminate()
                process.wait()
            elif process.returncode:
                sys.exit(process.returncode)


@main.command()
@_folder
def report(folder: Path) -> None:
    """The tables, from whatever has run."""
    rows, actions, pieces = [], [], []
    for name, _ in (*exploration(), *plan()):
        path = folder / name
        if not (path / "run.json").is_file():
            continue
        opened = lldscope.open_run(path)
        signals = opened.signals().dropna(subset="time")
        turns = events(signals)
        reward = signals["reward"].to_numpy(float)
        scores = opened.sql("SELECT value FROM evals WHERE metric = 'em_greedy' ORDER BY step")
        alarms = sorted({alert.rule for alert in opened.assess().alerts})
        done = len(signals)
        rows.append([
            name, str(done), or_dash(fall_row(reward, DECLINED)), or_dash(collapse_row(reward)),
            *(or_dash(step) for step in turns.values()),
            f"{signals['good_first_action_share'].mean():.2f}",
            " → ".join(f"{v:.2f}" for v in scores["value"]), ", ".join(alarms) or "–",
        ])
        actions += _actions(opened, name)
        counts = token_counts(opened, load_tokenizer())
        head_of_counts = tuple(counts)
        pieces.append([name, *map(str, counts.values())])
    head = ("run", "steps", "degrades", "collapses", "reward turns", "Δ", "retention", "entropy",
            "gradient norm", "good first actions", "held-out EM", "alarms")
    click.echo(table(head, rows))
    click.echo(table(("run", "action", "Δ of correct, nats/response"), actions))
    click.echo(table(("run", *head_of_counts), pieces))


def _actions(opened: lldscope.Run, name: str) -> list[list[str]]:
    values = opened.action_signals()
    values = values[values["correct"].astype(bool)].groupby("action_index")["delta"].mean()
    return [[name, str(index), f"{value:+.3f}"] for index, value in values.items()]


def load_tokenizer() -> Any:
    """The configuration's tokenizer, as the trainer converted it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(converted(load_config(CONFIG).model))


def token_counts(opened: lldscope.Run, tokenizer: Any) -> dict[str, int]:
    """What the tokenizer does in the rollouts whose tokens were recorded."""
    frame = opened.sql(
        "SELECT step, response_id, coalesce(action_index, -1) AS action, token_id FROM tokens "
        "ORDER BY step, response_id, position"
    )
    counts = dict.fromkeys(
        ("rollouts", "actions", "written in other tokens than their text is encoded to",
         "boundaries", "merged if encoded as one text", "control tokens in actions, ends not",
         "tokens of actions", "that are part of a character"), 0,
    )
    control = set(tokenizer.all_special_ids)

    def encode(ids: list[int]) -> list[int]:
        text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    for _, rollout in frame.groupby(["step", "response_id"]):
        number = (rollout["action"] != rollout["action"].shift()).cumsum()
        parts = [(int(p["action"].iloc[0]), p["token_id"].tolist())
                 for _, p in rollout.groupby(number)]
        by_policy = [ids for action, ids in parts if action >= 0]
        values = (
            1, len(by_policy), sum(encode(ids) != ids for ids in by_policy), len(parts) - 1,
            sum(encode(a + b) != encode(a) + encode(b)
                for (_, a), (_, b) in itertools.pairwise(parts)),
            sum(token in control for ids in by_policy for token in ids[:-1]),
            sum(map(len, by_policy)),
            sum("\ufffd" in tokenizer.decode([token]) for ids in by_policy for token in ids),
        )
        for name, value in zip(counts, values, strict=True):
            counts[name] += value
    return counts


if __name__ == "__main__":
    main()
