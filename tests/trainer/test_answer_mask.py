"""Which tokens are those of the answer: against a slow twin, with tokens that straddle anything."""

from __future__ import annotations

import random

import pytest
import torch
from lldscope_trainer.data.datasets import Question
from lldscope_trainer.environment.protocol import Action, Episode
from lldscope_trainer.environment.reward import ANSWER
from lldscope_trainer.policy.model import Policy, load_policy
from lldscope_trainer.rollout.batch import answer_mask
from lldscope_trainer.rollout.tokens import Rollout
from tiny_policy import byte_tokenizer

PIECES = ["a ", "é", "日本", "😀", "<think>", "</think>", "Chad", " ", "\n"]


def twin(policy: Policy, ids: list[int]) -> list[int]:
    """Token by token: does it hold a character of the span?"""
    ends = [len(policy.decode(ids[: k + 1])) for k in range(len(ids))]
    span = list(ANSWER.finditer(policy.decode(ids)))[-1]
    pairs = zip([0, *ends], ends, strict=False)
    return [int(end > span.start(1) and start < span.end(1)) for start, end in pairs]


def byte_policy() -> Policy:
    return Policy(load_policy("tiny", torch.device("cpu")).model, byte_tokenizer())


def turn(rng: random.Random) -> str:
    def some(most: int) -> str:
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(most)))

    earlier = rng.choice(["", f"<answer>{some(3)}</answer>"])
    inside = some(5).replace("<think>", "").replace("</think>", "")
    return f"{some(9)}{earlier}{some(3)}<answer>{inside}</answer>"


@pytest.mark.parametrize("make", [byte_policy, lambda: load_policy("tiny", torch.device("cpu"))])
def test_twin(make):
    policy, rng = make(), random.Random(0)
    marked = 0
    for _ in range(150):
        ids = policy.encode(turn(rng))
        if rng.random() < 0.3:  # what a policy may write: pieces of characters
            ids = [rng.randrange(20, 250) for _ in range(rng.randrange(6))] + ids
        if not ANSWER.search(policy.decode(ids)):
            continue
        episode = Episode(Question("q", ("x",), "made", "0"))
        episode.actions = [Action("search", "x"), Action("answer", "x")]
        before = [5, 6, 7, 8]
        rollout = Rollout(episode, before + ids, [-1, 0, 0, -1] + [1] * len(ids))
        shape = torch.Size((1, len(before) + len(ids) + 2))
        row = answer_mask(policy, [rollout], shape)[0].tolist()
        assert row == [0] * 4 + twin(policy, ids) + [0, 0]
        marked += sum(row)
    assert marked > 300
