"""LLDS in TRL's loss: λ·L_LLDS of `lldscope.losses.llds`, normalized over a whole update.

The mean is one over the preserving set of all micro-batches of an optimizer update and all ranks
(arXiv 2512.04220 v2, Eq. 4 and 6). TRL sums the micro-batches' losses, and the gradients of the
ranks are averaged: a micro-batch's share is Σ penalty / N · ranks, with N counted before the
update's first backward pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...core.errors import LldscopeError
from ...losses.llds import GATES, LLDS, llds_loss
from .rollouts import Inputs, action_mask, micro_batches


class Regularizer:
    """Computes the term of each micro-batch; `next_update` follows every optimizer step."""

    def __init__(self, trainer: Any, gate: str, coefficient: float) -> None:
        if gate not in GATES:
            raise ValueError(f"llds must be one of {', '.join(GATES)}, got {gate!r}")
        self._trainer, self._gate, self._coefficient = trainer, gate, coefficient
        self._count: Tensor | None = None
        args = trainer.args
        if args.gradient_accumulation_steps % micro_batches(trainer) == 0:
            raise LldscopeError(
                "LLDS would do nothing here: TRL makes one optimizer step per rollout batch "
                f"(gradient_accumulation_steps={args.gradient_accumulation_steps}, "
                f"steps_per_generation={args.steps_per_generation}, "
                f"num_iterations={trainer.num_iterations}), so old and new policy are the same "
                "when the loss is computed, and every gate is closed. Raise steps_per_generation "
                "or num_iterations, so that a rollout batch serves several steps."
            )

    def __call__(self, inputs: Inputs, logps: Tensor) -> LLDS:
        """The micro-batch's share of the update's loss: `loss` with λ, `unweighted` without."""
        part = self._llds(inputs, logps)
        share = part.count / self._window_count().clamp(min=1)
        share = share * self._trainer.accelerator.num_processes
        return replace(part, loss=part.loss * share, unweighted=part.unweighted * share)

    def next_update(self) -> None:
        self._count = None

    def _llds(self, inputs: Inputs, logps: Tensor) -> LLDS:
        return llds_loss(
            logps, inputs["old_per_token_logps"], action_mask(inputs).long(),
            inputs["advantages"], gate=self._gate, coefficient=self._coefficient,
        )

    def _window_count(self) -> Tensor:
        """N, over the update's micro-batches and all ranks."""
        if self._count is not None:
            return self._count
        t = self._trainer
        window = t.current_gradient_accumulation_steps
        buffered = t.args.steps_per_generation
        every = micro_batches(t)
        if t._step % every + window <= every:
            parts = [t._buffered_inputs[(t._step + j) % buffered] for j in range(window)]
            self._count = self._preserved(parts)
            return self._count
        # The update continues with a rollout batch that is not sampled yet: N is estimated from
        # the current one, as TRL's own normalizers are (`num_items_in_batch` in its loss).
        return self._preserved(t._buffered_inputs) * (window / buffered)

    def _preserved(self, parts: list[Inputs]) -> Tensor:
        counts = [self._llds(part, part["old_per_token_logps"]).count for part in parts]
        return self._trainer.accelerator.reduce(torch.stack(counts).sum(), reduction="sum")
