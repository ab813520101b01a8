"""The tensors of one rollout batch, and scoring them under a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .rollout import Rollout
from .scoring import action_logps, by_length, pad


@dataclass
class Batch:
    """N rollouts, T positions. `old` are the sampler's log-probabilities; the measurements beside
    it are filled in as the step goes on and hold NaN where nothing was measured."""

    ids: Tensor
    mask: Tensor
    old: Tensor
    advantages: Tensor
    lengths: list[int]
    inner: Tensor
    post: Tensor
    ref: Tensor
    gate_open: Tensor
    penalty: Tensor

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], advantages: Tensor, device: torch.device) -> Batch:
        """Pad the rollouts to the right; `advantages` has shape (N,)."""
        mask = pad([[int(a >= 0) for a in r.action] for r in rollouts], 0, device)
        old = pad([r.logp for r in rollouts], 0.0, device)
        nothing = [torch.full_like(old, torch.nan) for _ in range(5)]
        ids = pad([r.ids for r in rollouts], 0, device)
        return cls(ids, mask, old, advantages.to(device), [len(r.ids) for r in rollouts], *nothing)

    def score(self, model: Any, rows: Sequence[int], n_buckets: int) -> Tensor:
        """(len(rows), T) log π of the rows' action tokens under `model`, 0 elsewhere.

        Buckets of similar length go through the model one after the other: with rows of very
        different lengths most of one padded batch would be padding.
        """
        width = self.ids.shape[1]
        parts, order = [], []
        for bucket in by_length([self.lengths[i] for i in rows], n_buckets):
            where = torch.tensor([rows[k] for k in bucket], device=self.ids.device)
            longest = max(self.lengths[rows[k]] for k in bucket)
            logps = action_logps(model, self.ids[where, :longest], self.mask[where, :longest])
            parts.append(torch.nn.functional.pad(logps, (0, width - longest)))
            order += bucket
        return torch.cat(parts)[torch.tensor(order, device=self.ids.device).argsort()]
