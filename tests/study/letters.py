"""Tasks without tools: put letters in order, or backwards. Their files, their teacher, their warm
starts.

    python -m tests.study.letters --out DIR --task sort --seed 1

In the tasks `letters` and `letters-long` the policy thinks one letter after another and answers
with all of them; in `sort` and `reverse` it answers at once, in a third of the tokens. The teacher
makes a mistake in half of its demonstrations, as that of the built-in world does, and skips its
thoughts in some. The letter a is left out: exact match drops it as an article.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
BATCH = 64
FAULT_SHARE = 0.5
N_TRAIN, N_EVAL = 8000, 512
SEED = 7

_SORT = ("Sort these letters: {s}", "Put {s} in order", "What is {s} in the order of the alphabet?")
_REVERSE = ("Write {s} backwards", "Reverse {s}", "What is {s} from its end?")
_FIRST = ("first {x}", "{x} comes first", "the smallest is {x}", "begin with {x}")
_NEXT = ("then {x}", "next {x}", "now {x}", "after it {x}")
_LAST = ("last {x}", "{x} is left", "and {x}")


@dataclass(frozen=True)
class Task:
    """How it is asked, what is right, how many letters there are (at least and at most), in which
    share of its demonstrations the teacher skips its thoughts, and steps of the warm start."""

    asks: tuple[str, ...]
    answer: Callable[[list[str]], list[str]]
    lengths: tuple[int, int] = (4, 8)
    silent_share: float = 1.0
    steps: int = 900


TASKS = {
    "letters": Task(_SORT, sorted, silent_share=0.2, steps=600),
    "letters-long": Task(_SORT, sorted, (8, 12), silent_share=0.2, steps=600),
    "sort": Task(_SORT, sorted),
    "reverse": Task(_REVERSE, lambda letters: letters[::-1], steps=1500),
}


def question(rng: random.Random, task: Task) -> tuple[str, list[str]]:
    """A question and the letters of its answer."""
    letters = rng.sample(LETTERS, rng.randint(*task.lengths))
    return rng.choice(task.asks).format(s=" ".join(letters)), task.answer(letters)


def write_files(folder: Path, task: Task) -> tuple[Path, Path, Path]:
    """Training questions, others to evaluate on, and a corpus of one document for a tool that there
    is no use for. Written once."""
    files = folder / "train.jsonl", folder / "eval.jsonl", folder / "corpus.jsonl"
    if not all(file.is_file() for file in files):
        folder.mkdir(parents=True, exist_ok=True)
        rng = random.Random(SEED)
        questions: dict[str, list[str]] = {}
        while len(questions) < N_TRAIN + N_EVAL:
            text, answer = question(rng, task)
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


def demonstration(letters: list[str], rng: random.Random, task: Task) -> str:
    """What the teacher writes for the letters of an answer."""
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
    if rng.random() >= task.silent_share:
        for i, x in enumerate(letters):
            templates = _FIRST if i == 0 else _LAST if i == len(letters) - 1 else _NEXT
            thoughts.append(rng.choice(templates).format(x=x))
    return f"<think> {', '.join(thoughts)}</think><answer> {' '.join(letters)}</answer>"


def batches(policy: Policy, seed: int, task: Task) -> Iterator[tuple[Tensor, Tensor]]:
    """(ids, action_mask), each (BATCH, T), without end."""
    rng = random.Random(seed)
    while True:
        rows, masks = [], []
        for _ in range(BATCH):
            text, letters = question(rng, task)
            prompt = policy.encode(prompt_text(text))
            tokens = policy.encode(demonstration(letters, rng, task))
            rows.append([*prompt, *tokens])
            masks.append([0] * len(prompt) + [1] * len(tokens))
        yield pad(rows, policy.tokenizer.pad_token_id, policy.device), pad(masks, 0, policy.device)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory to write.")
@click.option("--task", "name", type=click.Choice(list(TASKS)), required=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--steps", type=int, help="Default: those of the task.")
@click.option("--hidden", default=96, show_default=True, help="Width of the policy.")
@click.option("--layers", default=3, show_default=True)
def main(out: Path, name: str, seed: int, steps: int | None, hidden: int, layers: int) -> None:
    """Train a tiny policy to answer as the task's teacher does, and save it."""
    torch.set_num_threads(1)
    policy = new_policy(seed=seed, hidden=hidden, layers=layers)
    steps = steps or TASKS[name].steps

    def show(step: int, loss: float) -> None:
        if (step + 1) % 100 == 0:
            click.echo(f"step {step + 1} of {steps}, loss {loss:.3f}")

    data = batches(policy, seed, TASKS[name])
    train_supervised(policy, data, steps=steps, on_step=show)
    policy.save(out)


if __name__ == "__main__":
    main()
