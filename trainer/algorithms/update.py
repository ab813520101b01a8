"""The optimizer updates of one RL step: minibatches -> micro-batches -> losses -> gradients.

Each term of the loss is a sum divided by a count (tokens, responses, preserved tokens). The counts
of an update are summed over its micro-batches and all ranks before the first forward pass, and
every micro-batch divides by them: the sum of all gradients is that of one process with the whole
minibatch, however it is split.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lldscope.core.errors import LldscopeError
from lldscope.losses.llds import LLDS, llds_loss
from lldscope.losses.objectives import (
    PolicyLoss,
    entropy_bonus,
    importance_weights,
    kl_k3,
    policy_loss,
)
from lldscope.recording.ratios import percentile_99

from ..config import TrainConfig
from ..guard import Cures
from ..optim.optimizer import TorchOptimizer
from ..optim.processes import Processes
from ..policy.logprobs import by_tokens
from ..rollout.batch import RolloutBatch


@dataclass
class UpdateStats:
    """Measurements of one update, on this rank.

    Losses are before their coefficients; None if not computed. They are this rank's share of the
    loss over all ranks, scaled so that their mean over ranks, weighted by `n_tokens`, is that loss.
    `ratio_max`, `ratio_p99`, `n_clipped` and `n_tokens` are of this rank's own tokens, the ratios
    of those that went through a pass (`skip_constant_groups`). `grad_norm` (before clipping) and
    `skipped` are of the whole gradient and the same on every rank.
    """

    loss_policy: float
    loss_llds: float | None
    loss_kl: float | None
    grad_norm: float
    skipped: bool
    ratio_max: float
    ratio_p99: float
    n_clipped: int
    n_tokens: int


class _Measures(NamedTuple):
    """Measurements of one micro-batch, read after the last backward pass, so that a GPU is not
    waited for earlier.

    `losses` (3,): its share of the policy loss, LLDS and KL. `ratio`, `mask` (b, T).
    """

    losses: Tensor
    ratio: Tensor
    mask: Tensor
    n_clipped: Tensor


class Updater:
    """Splits the updates into micro-batches, and warms up the learning rate. `cures` and `config`
    may change between steps, on all ranks alike; `cures` start as configured."""

    def __init__(
        self, config: TrainConfig, optimizer: TorchOptimizer, processes: Processes
    ) -> None:
        self.config = config
        self._optimizer = optimizer
        self._processes = processes
        self.cures = Cures.of(config)
        self.n_applied = 0

    def minibatches(self, batch: RolloutBatch, rng: random.Random) -> list[list[int]]:
        """The rows of each update of a step: a random share of this rank's rollouts."""
        order = list(range(len(batch.lengths)))
        rng.shuffle(order)
        return [share.tolist() for share in np.array_split(np.array(order), self.config.updates)]

    def passes(self, batch: RolloutBatch, minibatches: Sequence[Sequence[int]]) -> list[list[int]]:
        """The rows of each forward pass that the updates make."""
        return [
            rows
            for minibatch in minibatches
            for group in self._split(batch, minibatch)
            if group
            for rows in self._parts(batch, group)
        ]

    def _split(
        self, batch: RolloutBatch, rows: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """The rows that go through the passes of an update, and the rows without a part in its
        gradient, which are skipped. At least one row remains: AdamW's moments move on with a
        gradient of 0, but not without a gradient."""
        c = self.config
        gradient = self.cures.llds != "off" or c.kl_coefficient > 0 or c.entropy_coefficient > 0
        if not c.skip_constant_groups or gradient:
            return rows, []
        constant = (batch.advantages == 0).tolist()
        skipped = [row for row in rows if constant[row]]
        if len(skipped) == len(rows):
            skipped.remove(min(rows, key=lambda row: batch.lengths[row]))
        left_out = set(skipped)
        return [row for row in rows if row not in left_out], skipped

    def run(
        self, batch: RolloutBatch, step: int, minibatches: Sequence[Sequence[int]]
    ) -> list[UpdateStats]:
        """All updates of a step, one for each minibatch. `batch` has this rank's rollouts, as many
        as every other rank's."""
        warm = min(1.0, (step + 1) / max(1, self.config.warmup_steps))
        self._optimizer.lr = self.config.lr * (warm * self.cures.lr_share)
        self._correct(batch)
        return [self._update(batch, rows) for rows in minibatches]

    def _correct(self, batch: RolloutBatch) -> None:
        """Weight the tokens for the engine that sampled them, as configured."""
        mode = self.cures.importance_sampling
        if batch.behaviour is None or mode == "off":
            return
        weights = importance_weights(
            batch.old, batch.behaviour, batch.mask, mode=mode, cap=self.config.importance_cap
        )
        batch.weights = weights if batch.weights is None else batch.weights * weights

    def _update(self, batch: RolloutBatch, minibatch: Sequence[int]) -> UpdateStats:
        rows, skipped = self._split(batch, minibatch)
        if skipped:
            if batch.skipped is None:
                batch.skipped = torch.zeros_like(batch.rescored)
            batch.skipped[skipped] = True
        parts = self._parts(batch, rows)
        n_tokens, shares = self._shares(batch, parts, skipped)
        measures = []
        for part, share in zip(parts, shares, strict=True):
            loss, measure = self._loss(batch, part, share, n_tokens)
            self._optimizer.backward(loss, last=part is parts[-1])
            measures.append(measure)
        norm, applied = self._optimizer.step()
        self.n_applied += applied
        ratios = torch.cat([m.ratio[m.mask] for m in measures]).numpy(force=True)  # (tokens,)
        n_own = len(ratios) + sum(int(batch.mask[row].sum()) for row in skipped)
        losses = torch.stack([m.losses for m in measures]).double().sum(0)  # (3,)
        policy, llds, kl = (losses * (n_tokens / max(1, n_own))).tolist()
        return UpdateStats(
            loss_policy=policy,
            loss_llds=None if self.cures.llds == "off" else llds,
            loss_kl=None if batch.ref is None else kl,
            grad_norm=norm,
            skipped=not applied,
            ratio_max=float(ratios.max()) if len(ratios) else float("nan"),
            ratio_p99=percentile_99(ratios) if len(ratios) else float("nan"),
            n_clipped=int(torch.stack([m.n_clipped for m in measures]).sum()),
            n_tokens=n_own,
        )

    def _parts(self, batch: RolloutBatch, rows: Sequence[int]) -> list[list[int]]:
        """The micro-batches of an update; under ZeRO equally many on every rank, because passes
        wait for each other."""
        parts = by_tokens(batch.lengths, rows, self.config.micro_tokens)
        if self.config.optimizer == "torch":  # whose ranks meet after the last pass only
            return parts
        most = self._processes.most(len(parts))
        while len(parts) < most:
            largest = max(parts, key=len)
            where, half = parts.index(largest), len(largest) // 2
            parts[where : where + 1] = [largest[:half], largest[half:]]
        return parts

    def _shares(
        self, batch: RolloutBatch, parts: list[list[int]], skipped: Sequence[int] = ()
    ) -> tuple[int, list[list[float]]]:
        """The number of action tokens of an update on all ranks, skipped rows included, and the
        weight of each of this rank's micro-batches in each term of the loss: policy, LLDS, and
        means over tokens. Computed from masks and advantages alone: the denominators do not depend
        on the new policy."""
        groups = [*parts, list(skipped)] if skipped else parts
        counts = torch.stack([self._count(batch, rows) for rows in groups])  # (groups, 3)
        n_rows = sum(map(len, groups))
        shape = counts.new_tensor([n_rows, n_rows**2])
        *whole, rows, squares = self._processes.sum(torch.cat([counts.sum(0), shape])).tolist()
        if squares * self._processes.size != rows**2:
            # Otherwise ranks would wait for each other forever.
            raise LldscopeError("Every process needs the same number of rollouts in an update")
        shares = [
            [n / max(1, total) for n, total in zip(count, whole, strict=True)]
            for count in counts.tolist()[: len(parts)]
        ]
        return whole[2], shares

    def _count(self, batch: RolloutBatch, rows: list[int]) -> Tensor:
        """(3,): the denominators of the terms of one micro-batch's loss."""
        where = torch.tensor(rows, device=batch.ids.device)
        policy, preserving = self._terms(batch, where, batch.old[where])
        of_llds = policy.count.new_zeros(()) if preserving is None else preserving.count
        return torch.stack([policy.count, of_llds, batch.mask[where].sum()])

    def _terms(
        self, batch: RolloutBatch, where: Tensor, new: Tensor
    ) -> tuple[PolicyLoss, LLDS | None]:
        """The terms that depend on rewards, for the rows `where` with log-probabilities `new`."""
        c = self.config
        mask, old, advantages = batch.mask[where], batch.old[where], batch.advantages[where]
        # new, mask, old: (b, T); advantages: (b,). The counts of both terms do not hang on `new`.
        # Pos-Only of arXiv 2505.18830 is not for LLDS, which preserves by the true sign.
        policy = policy_loss(
            new, old, mask, advantages.clamp(min=0) if c.positive_only else advantages,
            objective=c.objective, aggregation=c.aggregation,
            clip_low=c.clip_low, clip_high=c.clip_high, dual_clip=c.dual_clip,
            max_tokens=(c.max_turns + 1) * c.turn_tokens if c.aggregation == "dr-grpo" else None,
            weights=None if batch.weights is None else batch.weights[where],
        )
        if self.cures.llds == "off":
            return policy, None
        answers = None if batch.answer_mask is None else batch.answer_mask[where]
        preserving = llds_loss(
            new, old, mask, advantages,
            answer_mask=answers, answer_weight=batch.answer_weight,
            gate=self.cures.llds, coefficient=self.cures.llds_coefficient,
            dead_band=c.llds_dead_band, normalizer=c.llds_normalizer,
        )
        return policy, preserving

    def _loss(
        self, batch: RolloutBatch, rows: list[int], shares: Sequence[float], n_tokens: int
    ) -> tuple[Tensor, _Measures]:
        """One micro-batch's share of the loss of an update with `n_tokens` action tokens; its
        measurements per token are stored in `batch`."""
        c = self.config
        where = torch.tensor(rows, device=batch.ids.device)  # (b,)
        mask = batch.mask[where]  # (b, T)
        forward = partial(self._optimizer.forward, entropy=c.entropy_coefficient > 0)
        scores = batch.score_passes(forward, [rows], rows)
        new = scores.logp  # (b, T)
        batch.inner[where] = new.detach()
        policy, preserving = self._terms(batch, where, new)
        of_policy, of_llds, of_tokens = shares
        loss = policy.loss * of_policy
        losses = [loss.detach(), new.new_zeros(()), new.new_zeros(())]
        if preserving is not None:
            loss = loss + preserving.loss * of_llds
            losses[1] = preserving.unweighted * of_llds
            batch.file_llds(where, preserving.gate_open, preserving.penalty)
        if batch.ref is not None:
            kl = kl_k3(new, batch.ref[where], mask).sum() / max(1, n_tokens)
            loss = loss + c.kl_coefficient * kl
            losses[2] = kl.detach()
        if scores.entropy is not None:
            bonus = entropy_bonus(scores.entropy, mask)
            loss = loss - c.entropy_coefficient * bonus * of_tokens
        action = mask.bool()
        n_clipped = (policy.clipped & action).sum()
        return loss, _Measures(torch.stack(losses), policy.ratio, action, n_clipped)
