"""One rollout batch of TRL on this rank: its samples, tokens and updates.

Rows are in the order of the prompts, before TRL shuffles them; a micro-batch names its rows by
number. Shapes: N rollouts, T completion positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...core.errors import LldscopeError

Inputs = dict[str, Any]
Correct = Callable[..., list[bool | None]]


@dataclass(frozen=True)
class Samples:
    """The arguments and results of TRL's reward functions: N of each, on this rank.

    rewards: the total, Σ weight · reward over the functions that returned one; NaN if none did.
    first: number of row 0 among the rows of all ranks. parts: reward function → its reward, if
    there are several.
    """

    examples: list[dict[str, Any]]
    completions: list[Any]
    completion_ids: list[list[int]]
    rewards: list[float]
    correct: list[bool | None]
    first: int
    parts: list[dict[str, float]]


# A call of `_calculate_rewards`: its arguments, and the rewards (rows of all ranks, functions).
Rewarded = tuple[dict[str, Any], Tensor]


def rewarded_samples(trainer: Any, call: Rewarded | None, n: int, correct: Correct) -> Samples:
    """The samples behind the `n` rows of a rollout batch, their total rewards and correctness.

    Raises LldscopeError where the rows are not those that were rewarded.
    """
    if call is None:
        raise LldscopeError("TRL did not call _calculate_rewards for these rollouts")
    params, per_function = call
    examples = params["inputs"]
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
    verdicts = correct(
        prompts=params["prompts"], completions=params["completions"],
        completion_ids=params["completion_ids_list"], rewards=rewards, **columns,
    )
    names = trainer.reward_func_names
    parts = [
        {name: v for name, v in zip(names, row, strict=True) if v == v and len(names) > 1}
        for row in per_function[first : first + n].tolist()
    ]
    return Samples(
        examples, params["completions"], params["completion_ids_list"], rewards, verdicts, first,
        parts,
    )


def of_all_ranks(accelerator: Any, correct: list[bool | None]) -> list[bool | None]:
    """The values of all ranks, in their order; a collective call."""
    codes = torch.tensor([-1 if c is None else int(c) for c in correct], device=accelerator.device)
    return [None if c < 0 else bool(c) for c in accelerator.gather(codes).tolist()]


@dataclass
class Update:
    """One optimizer update on a rollout batch, on this rank. Losses are those of its micro-batches;
    `window` counts all of the update's micro-batches, also of other rollout batches. `ratios` is
    empty if the loss hides its log-probabilities."""

    losses: list[Tensor] = field(default_factory=list)
    kl_sums: list[Tensor] = field(default_factory=list)
    llds: list[Tensor] = field(default_factory=list)
    ratios: list[Tensor] = field(default_factory=list)
    clipped: list[Tensor] = field(default_factory=list)
    n_tokens: int = 0
    window: int = 1
    grad_norm: float | None = None
    skipped: bool = False
    lr: float | None = None

    def mean(self, shares: list[Tensor]) -> float | None:
        """The update's value of a loss, from the shares of its micro-batches; None if none computed
        it."""
        if not shares:
            return None
        return float(torch.stack(shares).double().sum()) * self.window / len(shares)

    def kl(self) -> float | None:
        """Mean k3 estimate per token; None without a reference."""
        if not self.kl_sums:
            return None
        return float(torch.stack(self.kl_sums).double().sum()) / max(1, self.n_tokens)


@dataclass(eq=False)
class StepRollouts:
    """A rollout batch from its generation to the re-score after the last update on it.

    all_correct: whether each rollout of all ranks is correct, in the order of the ranks.
    """

    inputs: Inputs
    step: int
    policy_version: int
    samples: Samples
    all_correct: list[bool | None]
    group_size: int

    def __post_init__(self) -> None:
        self.mask = action_mask(self.inputs)
        zeros = torch.zeros(self.mask.shape, dtype=torch.float32, device=self.mask.device)
        no_rows = torch.zeros(len(self.mask), dtype=torch.bool, device=self.mask.device)
        self.old, self.entropy, self.inner = zeros.clone(), zeros.clone(), zeros.clone()
        self.has_old, self.has_inner, self.has_post = (no_rows.clone() for _ in range(3))
        self.post: Tensor | None = None
        self.llds_gate: Tensor | None = None
        self.llds_penalty: Tensor | None = None
        self.updates: list[Update] = []
        self.open_update: Update | None = None
        self.n_micro_batches = 0
        self.seconds_rollout = self.seconds_update = 0.0

    def set_old(self, logps: Tensor, entropy: Tensor | None) -> None:
        """π_old of all rows, measured when the rollouts were made."""
        self.old = logps.detach().float()
        self.has_old[:] = True
        self.entropy = torch.full_like(self.old, math.nan) if entropy is None else entropy.float()

    def set_post(self, rows: Tensor, logps: Tensor) -> None:
        """Log-probabilities of the rows after the last update; Δ of the others is not measured."""
        self.post = torch.zeros_like(self.old)
        self.post[rows] = logps.detach().float()
        self.has_post[rows] = True

    def add_micro_batch(self, rows: Tensor, logps: Tensor | None, entropy: Tensor | None) -> Update:
        """Store the inputs of a micro-batch's loss, None if unknown; returns the update in
        progress."""
        if logps is not None:
            self.inner[rows] = logps.float()
            self.has_inner[rows] = True
            if not self.updates and not self.has_old[rows].any():
                # No update since the rollouts: this is π_old, at no cost.
                self.old[rows] = logps.float()
                self.entropy[rows] = math.nan if entropy is None else entropy.float()
                self.has_old[rows] = True
        self.n_micro_batches += 1
        self.open_update = self.open_update or Update()
        return self.open_update

    def add_llds(self, rows: Tensor, gate: Tensor, penalty: Tensor) -> None:
        if self.llds_gate is None or self.llds_penalty is None:
            self.llds_gate = torch.zeros_like(self.mask)
            self.llds_penalty = torch.zeros_like(self.old)
        self.llds_gate[rows] = gate
        self.llds_penalty[rows] = penalty.float()

    def close_update(self, grad_norm: float | None, is_skipped: bool, lr: float | None) -> None:
        """The optimizer has stepped."""
        if self.open_update is not None:
            self.open_update.grad_norm = grad_norm
            self.open_update.skipped, self.open_update.lr = is_skipped, lr
            self.updates.append(self.open_update)
            self.open_update = None


def micro_batches(trainer: Any) -> int:
    """The number of micro-batches of one rollout batch."""
    return int(trainer.args.steps_per_generation * trainer.num_iterations)


def action_mask(inputs: Inputs) -> Tensor:
    """(N, T) bool: what the policy itself wrote. Tool text is 0 in `tool_mask`, padding 0 in
    `completion_mask`."""
    mask = inputs["completion_mask"]
    if inputs.get("tool_mask") is not None:
        mask = mask * inputs["tool_mask"]
    return mask.bool()
