"""What a step of the paper's size costs the processor beside the model: rollouts to tensors, to
rows, and their texts.

2,560 rollouts of two searches and an answer, about 1,100 tokens each, of the shipped policy's
tokens. On a GPU nothing else runs meanwhile.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import torch
from lldscope_trainer.algorithms.update import UpdateStats
from lldscope_trainer.builtin.world import World
from lldscope_trainer.data.corpus import Document
from lldscope_trainer.environment.protocol import Action, Episode
from lldscope_trainer.policy.model import Policy, load_policy
from lldscope_trainer.records import recorded_batch, update_columns
from lldscope_trainer.rollout.batch import RolloutBatch
from lldscope_trainer.rollout.tokens import Rollout, Sampling, TokenProtocol
from lldscope_trainer.task import Draw

from lldscope.recording.columns import tables

GROUPS, GROUP = 512, 5
WRITTEN, SHOWN = 110, 350
"""Tokens of a turn, and of a tool's answer, in the mean."""
CPU = torch.device("cpu")


def main(groups: int = GROUPS) -> float:
    """Prints the parts; seconds of processor time in all."""
    policy = load_policy("tiny", CPU)
    rollouts = make_rollouts(policy, groups)
    draw = Draw(
        0, [r.episode.question for r in rollouts], [i // GROUP for i in range(len(rollouts))],
        torch.Generator(), random.Random(0), 0,
    )
    seconds: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = call()
        seconds[name] = time.process_time() - start
        return result

    advantages = torch.tensor([r.episode.reward - 0.5 for r in rollouts])
    protocol = TokenProtocol(policy, Sampling(turn_tokens=500, sequence_tokens=4096))
    turns = [
        [token for token, a in zip(r.ids, r.action, strict=True) if a == number]
        for r in rollouts for number in range(len(r.episode.actions))
    ]
    timed("texts of the turns", lambda: read(protocol, policy, turns))
    batch = timed("to tensors", lambda: RolloutBatch.of(rollouts, advantages, CPU, apart=True))
    updates = [UpdateStats(0.1, 0.1, 0.1, 1.0, False, 1.0, 1.0, 0, 100) for _ in range(10)]
    record = timed("to a batch of the recorder", lambda: recorded_batch(
        draw, rollouts, batch, GROUP, policy))
    rows = update_columns(updates)
    timed("to rows", lambda: tables(record, updates=rows, tokens_every=0))
    timed("to rows, with texts", lambda: tables(record, updates=rows, tokens_every=1))
    tokens = sum(len(r.ids) for r in rollouts)
    seconds.pop("to rows")  # a step that records texts does the same
    parts = ", ".join(f"{name} {s:.2f}" for name, s in seconds.items())
    print(
        f"{len(rollouts)} rollouts, {tokens / 1e6:.1f} M tokens: {sum(seconds.values()):.2f} s of "
        f"processor time in all (at most 1.5); {parts}"
    )
    return sum(seconds.values())


def make_rollouts(policy: Policy, groups: int) -> list[Rollout]:
    """As vLLM's player leaves them."""
    rng = random.Random(0)
    questions = [q for _ in range(-(-groups // 64)) for q in World.real().questions(rng, 64)]
    words = [i for i in range(20, len(policy.tokenizer)) if policy.decode([i]).isascii()]
    opening, closing = policy.encode("<search>"), policy.encode("</search>")
    answer = policy.encode("<answer> Lima</answer>")
    rollouts = []
    for question in questions[:groups]:
        for _ in range(GROUP):
            rollout = Rollout(Episode(question), [], [], behaviour=[])
            for kind in ("search", "search", "answer"):
                observation = rng.choices(words, k=rng.randrange(SHOWN // 2, 3 * SHOWN // 2))
                message = rng.choices(words, k=rng.randrange(WRITTEN // 2, 3 * WRITTEN // 2))
                message += [*opening, *closing] if kind == "search" else answer
                number = len(rollout.episode.actions)
                rollout.ids += observation + message
                rollout.action += [-1] * len(observation) + [number] * len(message)
                rollout.behaviour += [0.0] * len(observation) + [-rng.random() for _ in message]
                documents = [Document(rng.randrange(1000), "", "")] if kind == "search" else None
                rollout.episode.actions.append(Action(kind, "", documents, bool(documents) or None))
                rollout.episode.turns.append(policy.decode(message))
            rollouts.append(rollout)
    return rollouts


def read(protocol: TokenProtocol, policy: Policy, turns: list[list[int]]) -> None:
    """What the player does to every turn: find its end, decode it."""
    for turn in turns:
        protocol.end_of_turn(turn)
        policy.decode(turn)


if __name__ == "__main__":
    main()
