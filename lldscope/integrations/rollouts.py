"""One rollout batch of TRL on this rank: its tokens, and what the updates did with them.

Rows are in the order of the prompts, before TRL shuffles them; a micro-batch says by row numbers
which of them it has. Shapes: N rollouts, T completion positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .samples import Samples

Inputs = dict[str, Any]


@dataclass
class Update:
    """What one optimizer update saw of a rollout batch, on this rank."""

    losses: list[Tensor] = field(default_factory=list)
    kl_sums: list[Tensor] = field(default_factory=list)
    llds: list[Tensor] = field(default_factory=list)
    ratios: list[Tensor] = field(default_factory=list)
    clipped: list[Tensor] = field(default_factory=list)
    window: int = 1  # micro-batches of the update, those of other rollout batches included
    grad_norm: float | None = None
    skipped: bool = False
    lr: float | None = None

    @property
    def n_tokens(self) -> int:
        return sum(len(r) for r in self.ratios)

    def mean(self, shares: list[Tensor]) -> float | None:
        """The update's value of a loss of which each micro-batch gave its share of the whole; None
        if it was not computed."""
        if not shares:
            return None
        return float(torch.stack(shares).double().sum()) * self.window / len(shares)


class Rollouts:
    """A rollout batch from its generation to the re-score after the last update on it."""

    def __init__(
        self, inputs: Inputs, step: int, policy_version: int, samples: Samples, group_size: int
    ) -> None:
        self.inputs = inputs
        self.step, self.policy_version = step, policy_version
        self.samples, self.group_size = samples, group_size
        self.mask = action_mask(inputs)
        like = torch.zeros(self.mask.shape, dtype=torch.float32, device=self.mask.device)
        rows = torch.zeros(len(self.mask), dtype=torch.bool, device=self.mask.device)
        self.old, self.entropy, self.inner = like.clone(), like.clone(), like.clone()
        self.has_old, self.has_inner, self.has_post = rows.clone(), rows.clone(), rows.clone()
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
        """What the rows are worth after the last update; the others keep Δ unmeasured."""
        self.post = torch.zeros_like(self.old)
        self.post[rows] = logps.detach().float()
        self.has_post[rows] = True

    def file(self, rows: Tensor, logps: Tensor, entropy: Tensor | None) -> Update:
        """What a micro-batch's loss was computed from; the update under way."""
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

    def file_llds(self, rows: Tensor, gate: Tensor, penalty: Tensor) -> None:
        if self.llds_gate is None or self.llds_penalty is None:
            self.llds_gate = torch.zeros_like(self.mask)
            self.llds_penalty = torch.zeros_like(self.old)
        self.llds_gate[rows] = gate
        self.llds_penalty[rows] = penalty.float()

    def close_update(self, grad_norm: float | None, skipped: bool, lr: float | None) -> None:
        """The optimizer has taken its step."""
        if self.open_update is not None:
            self.open_update.grad_norm = grad_norm
            self.open_update.skipped, self.open_update.lr = skipped, lr
            self.updates.append(self.open_update)
            self.open_update = None


def action_mask(inputs: Inputs) -> Tensor:
    """(N, T) bool: what the policy itself wrote. Tool text is 0 in `tool_mask`, padding 0 in
    `completion_mask`."""
    mask = inputs["completion_mask"]
    if inputs.get("tool_mask") is not None:
        mask = mask * inputs["tool_mask"]
    return mask.bool()
