"""What TRL's reward functions were asked about the rollouts of a batch, and what they said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import LldscopeError

Correct = Callable[..., list[bool | None]]


@dataclass(frozen=True)
class Samples:
    """What TRL handed to the reward functions, and what came back: N of each, of this rank.

    rewards: the total, Σ weight · reward over the functions that gave one; NaN where none did.
    first: number of row 0 among the rows of all ranks.
    """

    examples: list[dict[str, Any]]
    completions: list[Any]
    completion_ids: list[list[int]]
    rewards: list[float]
    correct: list[bool | None]
    first: int


def judge(
    trainer: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    per_function: Tensor,
    n: int,
    correct: Correct,
) -> Samples:
    """The samples behind the `n` rows of a rollout batch, their total rewards and correctness.

    args, kwargs: of the trainer's `_calculate_rewards`; per_function (rows of all ranks, functions)
    what it returned. Raises LldscopeError where the rows are not those that were rewarded.
    """
    names = ("inputs", "prompts", "completions", "completion_ids_list")
    given = dict(zip(names, args, strict=False)) | kwargs
    examples = given["inputs"]
    if len(examples) != n:
        raise LldscopeError(f"{len(examples)} rollouts were rewarded, and {n} are trained on")
    total = (per_function * trainer.reward_weights.to(per_function.device)).nansum(1).double()
    total[per_function.isnan().all(1)] = torch.nan
    first = trainer.accelerator.process_index * n
    rewards = total[first : first + n].tolist()
    columns = {
        name: [example.get(name) for example in examples]
        for name in examples[0]
        if name not in ("prompt", "completion", "completion_ids")
    }
    found = correct(
        prompts=given["prompts"], completions=given["completions"],
        completion_ids=given["completion_ids_list"], rewards=rewards, **columns,
    )  # fmt: skip
    if len(found) != n:
        raise LldscopeError(f"correct= gave {len(found)} answers for {n} rollouts")
    return Samples(
        examples, given["completions"], given["completion_ids_list"], rewards,
        [None if c is None else bool(c) for c in found], first,
    )  # fmt: skip
