"""The optimizer updates of one RL step: minibatches -> losses -> gradients -> AdamW."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .batch import Batch
from .config import TrainConfig
from .llds import llds_loss
from .objectives import kl_k3, policy_loss


@dataclass
class UpdateStats:
    """What one update looked like. Losses are before their coefficients; None if not computed."""

    loss_policy: float
    loss_llds: float | None
    loss_kl: float | None
    grad_norm: float
    skipped: bool
    ratio_max: float
    ratio_p99: float
    n_clipped: int
    n_tokens: int


class Updater:
    """Owns the optimizer and its learning-rate warm-up."""

    def __init__(self, model: Any, config: TrainConfig) -> None:
        self._model = model
        self._config = config
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self._parameters, lr=config.lr, weight_decay=config.weight_decay
        )
        self.n_applied = 0
        self._answer_weight = 1.0
        self.lr = 0.0

    def run(
        self, batch: Batch, step: int, rng: random.Random, *, answer_weight: float
    ) -> list[UpdateStats]:
        """All updates of a step, each on its own share of the rollouts in random order.

        `answer_weight` is the step's β; other than 1 it needs the batch's answer mask.
        """
        self._answer_weight = answer_weight
        self.lr = self._config.lr * min(1.0, (step + 1) / max(1, self._config.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        order = list(range(len(batch.lengths)))
        rng.shuffle(order)
        shares = np.array_split(np.array(order), self._config.updates)
        return [self._update(batch, share.tolist()) for share in shares]

    def _update(self, batch: Batch, rows: list[int]) -> UpdateStats:
        loss, stats = self._loss(batch, rows)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._config.grad_clip))
        stats.grad_norm = norm
        # A non-finite gradient would poison the weights and AdamW's moments for good.
        stats.skipped = not np.isfinite(norm)
        if not stats.skipped:
            self.optimizer.step()
            self.n_applied += 1
        return stats

    def _loss(self, batch: Batch, rows: list[int]) -> tuple[Tensor, UpdateStats]:
        """The minibatch loss; what it saw of each token is filed in `batch`."""
        c = self._config
        where = torch.tensor(rows, device=batch.ids.device)
        mask, old, advantages = batch.mask[where], batch.old[where], batch.advantages[where]
        new = batch.score(self._model, rows, c.buckets)
        batch.inner[where] = new.detach()
        policy = policy_loss(
            new, old, mask, advantages,
            objective=c.objective, aggregation=c.aggregation,
            clip_low=c.clip_low, clip_high=c.clip_high, dual_clip=c.dual_clip,
            max_tokens=(c.max_turns + 1) * c.turn_tokens if c.aggregation == "dr-grpo" else None,
        )  # fmt: skip
        loss = policy.loss
        preserving = kl = None
        if c.llds != "off":
            answers = None if batch.answer_mask is None else batch.answer_mask[where]
            preserving = llds_loss(
                new, old, mask, advantages,
                answer_mask=answers, answer_weight=self._answer_weight,
                gate=c.llds, coefficient=c.llds_coefficient,
                dead_band=c.llds_dead_band, normalizer=c.llds_normalizer,
            )  # fmt: skip
            loss = loss + preserving.loss
            batch.file_llds(where, preserving.gate_open, preserving.penalty)
        n_tokens = int(mask.sum())
        if batch.ref is not None:
            kl = kl_k3(new, batch.ref[where], mask).sum() / max(1, n_tokens)
            loss = loss + c.kl_coefficient * kl
        ratios = policy.ratio[mask.bool()]
        return loss, UpdateStats(
            loss_policy=policy.loss.item(),
            loss_llds=None if preserving is None else preserving.unweighted.item(),
            loss_kl=None if kl is None else kl.item(),
            grad_norm=float("nan"),
            skipped=False,
            ratio_max=ratios.max().item() if n_tokens else float("nan"),
            ratio_p99=ratios.quantile(0.99).item() if n_tokens else float("nan"),
            n_clipped=int((policy.clipped & mask.bool()).sum()),
            n_tokens=n_tokens,
        )
