"""What becomes of a rollout batch of TRL after the last update that used it: Δ, and its rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from ..recording.columns import tables
from ..recording.guarded import FailOpen
from ..recording.rescore import rescored
from .rollouts import Rollouts
from .scoring import has_images, score
from .trl_batch import batch_of, step_columns, update_columns


class StepWriter:
    """`scorer`: the trainer's own scoring method. rescore_share: share of the rollouts that is
    scored again. tokens_every: steps between texts and tokens, 0 is never."""

    def __init__(
        self,
        trainer: Any,
        recorder: Any,
        guard: FailOpen,
        scorer: Callable[..., Any],
        *,
        rescore_share: float,
        tokens_every: int,
    ) -> None:
        self._trainer, self._recorder, self._guard = trainer, recorder, guard
        self._scorer = scorer
        self._share, self._tokens_every = rescore_share, tokens_every

    def write(self, rollouts: Rollouts) -> None:
        with self._guard("a step"):
            if rollouts.updates and self._share > 0:
                self._rescore(rollouts)
            tokenizer = self._trainer.processing_class
            tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
            batch = batch_of(rollouts, tokenizer, self._ends(tokenizer))
            keep = bool(self._tokens_every) and rollouts.step % self._tokens_every == 0
            found = tables(batch, with_tokens=keep)
            sums = found.pop("steps") | step_columns(rollouts)
            if rollouts.updates:
                found["updates"] = update_columns(rollouts)
            for table, columns in found.items():
                getattr(self._recorder, table)(**columns)
            self._recorder.step(**sums, seconds_record=self._guard.take())

    def _rescore(self, r: Rollouts) -> None:
        if self._share == 1 or has_images(r.inputs):
            rows = None
        else:
            s = r.samples
            groups = [(s.first + i) // r.group_size for i in range(len(r.mask))]
            rng = random.Random(f"{r.step} {s.first}")  # none of the training's
            rows = torch.tensor(rescored(s.correct, groups, self._share, rng), device=r.mask.device)
        post = score(self._scorer, self._trainer, r.inputs, rows)[0]
        r.set_post(torch.arange(len(r.mask), device=r.mask.device) if rows is None else rows, post)

    def _ends(self, tokenizer: Any) -> list[int]:
        """The tokens at which TRL counts a completion as ended, not truncated."""
        ends = list(getattr(self._trainer, "eos_token_ids", [tokenizer.eos_token_id]))
        return [*ends, tokenizer.pad_token_id]
