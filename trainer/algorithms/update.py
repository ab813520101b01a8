"""The optimizer updates of one RL step: minibatches -> micro-batches -> losses -> gradients.

Each term of the loss is a sum divided by a count (tokens, responses, preserved tokens). The counts
of an update are summed over its micro-batches and all ranks before the first forward pass, and
every micro-batch divides by them: the sum of all gradients is that of one process with the whole
minibatch, however it is split.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lldscope.core.errors import LldscopeError
from lldscope.losses.advantages import positive_part
from lldscope.losses.correction import importance_weights
from lldscope.losses.llds import LLDS, llds_loss
from lldscope.losses.objectives import PolicyLoss, entropy_bonus, kl_k3, policy_loss

from ..config import TrainConfig
from ..guard import Cures
from ..optim.optimizer import Optimizer
from ..optim.processes import Processes
from ..policy.logprobs import by_tokens
from ..rollout.batch import RolloutBatch


@dataclass
class UpdateStats:
    """Measurements of one update, on this rank.

    Losses are before their coefficients; None if not computed. They are this rank's share of the
    loss over all ranks, scaled so that their mean over ranks, weighted by `n_tokens`, is that loss.
    `ratio_max`, `ratio_p99`, `n_clipped` and `n_tokens` are of this rank's own tokens, the ratios
    of those that went through a pass (`skip_constant_groups`). `grad_norm`
    (before clipping) and `skipped` are of the whole gradient and the same on every rank.
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


@dataclass
class _Counts:
    """What the terms of a loss divide by, of one micro-batch or over all of an update."""

    policy: int
    llds: int
    tokens: int


@dataclass
class _Sums:
    """The micro-batches of an update so far, on this rank: (mean loss, its share) of each, and per
    token. They are read once, after the last backward pass: a GPU need not be waited for before."""

    loss_policy: list[tuple[Tensor, float]] = field(default_factory=list)
    loss_llds: list[tuple[Tensor, float]] = field(default_factory=list)
    loss_kl: list[tuple[Tensor, float]] = field(default_factory=list)
    ratios: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    clipped: list[Tensor] = field(default_factory=list)


class Updater:
    """Splits the updates into micro-batches, and warms up the learning rate.

    `cures` and `config` may be changed between steps, on all ranks alike; the former start as
    configured.
    """

    def __init__(self, config: TrainConfig, optimizer: Optimizer, processes: Processes) -> None:
        self.config = config
        self._optimizer = optimizer
        self._processes = processes
        self.cures = Cures.of(config)
        self.n_applied = 0
        self.divided = 1  # by this micro-batches are smaller, after shortages of memory
        self.shortages: list[str] = []
        self._answer_weight = 1.0

    @property
    def lr(self) -> float:
        """The learning rate of the latest step."""
        return self._optimizer.lr

    def minibatches(self, batch: RolloutBatch, rng: random.Random) -> list[list[int]]:
        """The rows of each update of a step: a random share of this rank's rollouts."""
        order = list(range(len(batch.lengths)))
        rng.shuffle(order)
        return [share.tolist() for share in np.array_split(np.array(order), self.config.updates)]

    def passes(self, batch: RolloutBatch, minibatches: Sequence[Sequence[int]]) -> list[list[int]]:
        """The rows of each forward pass that the updates make, unless memory runs out on the
        way."""
        return [
            rows
            for minibatch in minibatches
            for group in self._split(batch, minibatch)
            if group
            for part in self._parts(batch, group)
            for rows in batch.buckets(part, self._n_buckets)
        ]

    def _split(
        self, batch: RolloutBatch, rows: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """The rows that go through the passes of an update, and those that are skipped because they
        have no part in its gradient. One stays at least: AdamW's moments move on by a gradient of
        0, not by none."""
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

    @property
    def _n_buckets(self) -> int:
        """Of a micro-batch."""
        return 1 if self.config.micro_tokens or self.config.packing else self.config.buckets

    def run(
        self,
        batch: RolloutBatch,
        step: int,
        minibatches: Sequence[Sequence[int]],
        *,
        answer_weight: float,
    ) -> list[UpdateStats]:
        """All updates of a step, one for each minibatch.

        `batch` has this rank's rollouts, as many as every other rank's. `answer_weight` is the
        step's β; other than 1 it needs the batch's answer mask.
        """
        self._answer_weight = answer_weight
        warm = min(1.0, (step + 1) / max(1, self.config.warmup_steps))
        self._optimizer.lr = self.config.lr * (warm * self.cures.lr_share)
        self._correct(batch)
        return [self._update(batch, rows) for rows in minibatches]

    def _correct(self, batch: RolloutBatch) -> None:
        """Weigh the tokens for the engine that sampled them, as configured."""
        mode = self.cures.importance_sampling
        if batch.behaviour is None or mode == "off":
            return
        weights = importance_weights(
            batch.old, batch.behaviour, batch.mask, mode=mode, cap=self.config.importance_cap
        )
        batch.weights = weights if batch.weights is None else batch.weights * weights

    def _update(self, batch: RolloutBatch, minibatch: Sequence[int]) -> UpdateStats:
        sums = None
        rows, skipped = self._split(batch, minibatch)
        if skipped:
            if batch.skipped is None:
                batch.skipped = torch.zeros_like(batch.rescored)
            batch.skipped[skipped] = True
        while sums is None:
            parts = self._parts(batch, rows)
            whole, counts = self._counts(batch, parts, skipped)
            sums = self._gradient(batch, parts, counts, whole)
        norm, applied = self._optimizer.step()
        self.n_applied += applied
        ratios = torch.cat([ratio[mask] for ratio, mask in sums.ratios]).numpy(force=True)
        n_tokens = len(ratios) + sum(int(batch.mask[row].sum()) for row in skipped)
        scale = whole.tokens / max(1, n_tokens)
        return UpdateStats(
            loss_policy=_total(sums.loss_policy) * scale,
            loss_llds=None if self.cures.llds == "off" else _total(sums.loss_llds) * scale,
            loss_kl=None if batch.ref is None else _total(sums.loss_kl) * scale,
            grad_norm=norm,
            skipped=not applied,
            ratio_max=float(ratios.max()) if len(ratios) else float("nan"),
            # torch's quantile takes at most 2²⁴ numbers.
            ratio_p99=float(np.quantile(ratios, 0.99)) if len(ratios) else float("nan"),
            n_clipped=int(torch.stack(sums.clipped).sum()),
            n_tokens=n_tokens,
        )

    def _parts(self, batch: RolloutBatch, rows: Sequence[int]) -> list[list[int]]:
        """The micro-batches of an update; under ZeRO as many on every rank, since passes wait for
        each other."""
        c = self.config
        if c.micro_tokens:
            parts = by_tokens(batch.lengths, rows, c.micro_tokens // self.divided)
            if c.optimizer == "torch":  # whose ranks meet after the last pass only
                return parts
            most = self._processes.most(len(parts))
            while len(parts) < most:
                largest = max(parts, key=len)
                where, half = parts.index(largest), len(largest) // 2
                parts[where : where + 1] = [largest[:half], largest[half:]]
            return parts
        size = -(-(c.micro_batch or len(rows)) // self.divided)
        if size < len(rows):  # little of a micro-batch of similar lengths is padding
            rows = sorted(rows, key=lambda row: batch.lengths[row])
        return [list(rows[i : i + size]) for i in range(0, len(rows), size)]

    def _gradient(
        self, batch: RolloutBatch, parts: list[list[int]], counts: list[_Counts], whole: _Counts
    ) -> _Sums | None:
        """The whole update's gradient, left with the optimizer. None where a rank ran out of
        memory: then nothing of it is left, and micro-batches are half as large from now on.

        Raises LldscopeError where they cannot be smaller, or gradients not be discarded.
        """
        sums = _Sums()
        size = max(map(len, parts))
        shortage = None
        try:
            for part, count in zip(parts, counts, strict=True):
                self._optimizer.backward(
                    self._loss(batch, part, count, whole, sums), last=part is parts[-1]
                )
        except torch.OutOfMemoryError as error:
            shortage = str(error).partition(".")[0]  # the error itself would hold on to tensors
        if not self._optimizer.can_discard:
            # Without asking the others: they wait in the middle of this update for this rank's
            # gradients, and any call that all ranks make together would wait for them.
            if shortage is not None:
                raise LldscopeError(out_of_memory(_pass(size), shortage))
            return sums
        if not self._processes.any(shortage is not None):
            return sums
        self._optimizer.discard()
        if size == 1:
            raise LldscopeError(out_of_memory(_pass(size), shortage))
        del sums
        if batch.ids.is_cuda:
            torch.cuda.empty_cache()
        self.divided *= 2
        self.shortages.append(shortage or "another rank ran out of memory")
        return None

    def _counts(
        self, batch: RolloutBatch, parts: list[list[int]], skipped: Sequence[int] = ()
    ) -> tuple[_Counts, list[_Counts]]:
        """Over all rows, skipped ones too, on all ranks, and of each of this rank's micro-batches.
        From masks and advantages alone: the counts do not depend on the new policy."""
        groups = [*parts, list(skipped)] if skipped else parts
        counts = torch.stack([self._count(batch, rows) for rows in groups])  # (groups, 3)
        n_rows = sum(map(len, groups))
        shape = counts.new_tensor([n_rows, n_rows**2])
        *whole, rows, squares = self._processes.sum(torch.cat([counts.sum(0), shape])).tolist()
        if squares * self._processes.size != rows**2:
            # Otherwise ranks would wait for each other forever.
            raise LldscopeError("Every process needs the same number of rollouts in an update")
        return _Counts(*whole), [_Counts(*each) for each in counts.tolist()[: len(parts)]]

    def _count(self, batch: RolloutBatch, rows: list[int]) -> Tensor:
        """(3,): what `_Counts` has, of one micro-batch."""
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
        policy = policy_loss(
            new, old, mask, positive_part(advantages) if c.positive_only else advantages,
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
            answer_mask=answers, answer_weight=self._answer_weight,
            gate=self.cures.llds, coefficient=self.cures.llds_coefficient,
            dead_band=c.llds_dead_band, normalizer=c.llds_normalizer,
        )
        return policy, preserving

    def _loss(
        self, batch: RolloutBatch, rows: list[int], count: _Counts, whole: _Counts, sums: _Sums
    ) -> Tensor:
        """One micro-batch's share of the loss; its measurements per token are stored in `batch`.
        `own` counts this micro-batch, `whole` the update."""
        c = self.config
        where = torch.tensor(rows, device=batch.ids.device)  # (b,)
        mask = batch.mask[where]  # (b, T)
        with_entropy = c.entropy_coefficient > 0
        scores = batch.score_passes(
            partial(self._optimizer.forward, entropy=with_entropy),
            batch.buckets(rows, self._n_buckets),
            rows,
        )
        new = scores.logp  # (b, T)
        batch.inner[where] = new.detach()
        policy, preserving = self._terms(batch, where, new)
        share = _share(count.policy, whole.policy)
        loss = policy.loss * share
        sums.loss_policy.append((policy.loss.detach(), share))
        if preserving is not None:
            share = _share(count.llds, whole.llds)
            loss = loss + preserving.loss * share
            sums.loss_llds.append((preserving.unweighted, share))
            batch.file_llds(where, preserving.gate_open, preserving.penalty)
        share = _share(count.tokens, whole.tokens)
        if batch.ref is not None:
            kl = kl_k3(new, batch.ref[where], mask).sum() / max(1, count.tokens)
            loss = loss + c.kl_coefficient * kl * share
            sums.loss_kl.append((kl.detach(), share))
        if scores.entropy is not None:
            bonus = entropy_bonus(scores.entropy, mask)
            loss = loss - c.entropy_coefficient * bonus * share
        sums.ratios.append((policy.ratio, mask.bool()))
        sums.clipped.append((policy.clipped & mask.bool()).sum())
        return loss


def _pass(size: int) -> str:
    return f"an update with {size} rollouts in a pass"


def out_of_memory(during: str, why: str | None) -> str:
    """What to say where no smaller micro-batch can help."""
    return (
        f"out of memory in {during} ({why or 'on another rank'}): lower micro_batch, micro_tokens, "
        "engine_memory or sequence_tokens, or take gradient_checkpointing=true, dtype=bfloat16 or "
        "more GPUs with optimizer=deepspeed; with checkpoints, --resume goes on"
    )


def _total(parts: list[tuple[Tensor, float]]) -> float:
    """The sum of the shares of the micro-batches' means."""
    values = torch.stack([value for value, _ in parts]).tolist()
    return sum(value * share for value, (_, share) in zip(values, parts, strict=True))


def _share(count: int, total: int) -> float:
    """Weight of a micro-batch's mean in the mean over all; exactly 1 for the only one."""
    return count / max(1, total)
