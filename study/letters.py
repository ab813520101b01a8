"""A task without tools: sort the letters of a question. Its files, its teacher, its warm start.

    python -m study.letters --out DIR --seed 1 [--long]

The policy thinks one letter after another and answers with all of them. The teacher makes a mistake
in half of its demonstrations, as that of the built-in world does, and skips its thoughts in some.
The letter a is left out: exact match drops it as an article.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import click
import torch
from lldscope_trainer.environment.protocol import prompt_text
from lldscope_trainer.policy.logprobs import pad
from lldscope_trainer.policy.model import Policy
from torch import Tensor

from .tiny import new_policy
from .warm_start import train_supervised

LETTERS = "bcdefghijklmnopqrstuvwxyz"
SHORT, LONG = (4, 8), (8, 12)  # how many letters, at least and at most
STEPS = 600
BATCH = 64
FAULT_SHARE = 0.5
SILENT_SHARE = 0.2
N_TRAIN, N_EVAL = 8000, 512
SEED = 7

_ASK = ("Sort these letters: {s}", "Put {s} in order", "What is {s} in the order of the alphabet?")
_FIRST = ("first {x}", "{x} comes first", "the smallest is {x}", "begin with {x}")
_NEXT = ("then {x}", "next {x}", "now {x}", "after it {x}")
_LAST = ("last {x}", "{x} is left", "and {x}")


def question(rng: random.Random, lengths: tuple[int, int] = SHORT) -> tuple[str, list[str]]:
    """A question and the letters in order."""
    letters = rng.sample(LETTERS, rng.randint(*lengths))
    return rng.choice(_ASK).format(s=" ".join(letters)), sorted(letters)


def write_files(folder: Path, lengths: tuple[int, int] = SHORT) -> tuple[Path, Path, Path]:
    """Training questions, others to evaluate on, and a corpus of one document for a tool that there
    is no use for. Written once."""
    files = folder / "train.jsonl", folder / "eval.jsonl", folder / "corpus.jsonl"
    if not all(file.is_file() for file in files):
        folder.mkdir(parents=True, exist_ok=True)
        rng = random.Random(SEED)
        questions: dict[str, list[str]] = {}
        while len(questions) < N_TRAIN + N_EVAL:
            text, answer = question(rng, lengths)
            questions[text] = answer
        rows = [
            json.dumps({"question": q, "answers": [" ".join(a)], "data_source": "letters"})
            for q, a in questions.items()
        ]
        files[0].write_text("\n".join(rows[:N_TRAIN]) + "\n", "utf-8")
        files[1].write_text("\n".join(rows[N_TRAIN:]) + "\n", "utf-8")
        document = {"id": "0", "contents": '"Letters"\nThe alphabet has an order.'}
        files[2].write_text(json.dumps(document) + "\n", "utf-8")
    return files


def demonstration(letters: list[str], rng: random.Random) -> str:
    """What the teacher writes for letters in their order."""
    letters = list(letters)
    if rng.random() < FAULT_SHARE:
        at = rng.randrange(len(letters) - 1)
        fault = rng.choice(("swap", "drop", "repeat", "other"))
        if fault == "swap":
            letters[at : at + 2] = letters[at + 1], letters[at]
        elif fault == "drop":
            del letters[at]
        elif fault == "repeat":
            letters[at] = letters[at + 1]
        else:
            letters[at] = rng.choice(LETTERS)
    thoughts = []
    if rng.random() >= SILENT_SHARE:
        for i, x in enumerate(letters):
            templates = _FIRST if i == 0 else _LAST if i == len(letters) - 1 else _NEXT
            thoughts.append(rng.choice(templates).format(x=x))
    return f"<think> {', '.join(thoughts)}</think><answer> {' '.join(letters)}</answer>"


def batches(
    policy: Policy, seed: int, lengths: tuple[int, int] = SHORT
) -> Iterator[tuple[Tensor, Tensor]]:
    """(ids, action_mask), each (BATCH, T), without end."""
    rng = random.Random(seed)
    while True:
        rows, masks = [], []
        for _ in range(BATCH):
            text, letters = question(rng, lengths)
            prompt = policy.encode(prompt_text(text))
            tokens = policy.encode(demonstration(letters, rng))
            rows.append([*prompt, *tokens])
            masks.append([0] * len(prompt) + [1] * len(tokens))
        yield pad(rows, policy.tokenizer.pad_token_id, policy.device), pad(masks, 0, policy.device)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory to write.")
@click.option("--seed", default=1, show_default=True)
@click.option("--steps", default=STEPS, show_default=True)
@click.option("--hidden", default=96, show_default=True, help="Width of the policy.")
@click.option("--layers", default=3, show_default=True)
@click.option("--long", is_flag=True, help="More letters.")
def main(out: Path, seed: int, steps: int, hidden: int, layers: int, long: bool) -> None:
    """Train a tiny policy to sort letters as its teacher does, and save it."""
    torch.set_num_threads(1)
    policy = new_policy(seed=seed, hidden=hidden, layers=layers)

    def show(step: int, loss: float) -> None:
        if (step + 1) % 100 == 0:
            click.echo(f"step {step + 1} of {steps}, loss {loss:.3f}")

    data = batches(policy, seed, LONG if long else SHORT)
    train_supervised(policy, data, steps=steps, on_step=show)
    policy.save(out)


if __name__ == "__main__":
    main()
