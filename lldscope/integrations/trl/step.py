"""A rollout batch of TRL after the last update that used it: the re-score, and its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...recording.batch import Batch, Scores
from ...recording.columns import record, weighted_mean
from ...recording.ratios import percentile_99
from ...recording.recorder import FailOpen
from ...recording.rescore import rescore_sample
from ...recording.retention import Retention
from ...recording.transcripts import golden_answers, golden_of, message_turns, question_of
from .rollouts import StepRollouts
from .scoring import has_images, score, score_kept


@dataclass
class StepWriter:
    """Records rollout batches. `scorer`: the trainer's own scoring method. rescore_share,
    tokens_every: as in `instrument`."""

    trainer: Any
    recorder: Any
    fail_open: FailOpen
    scorer: Callable[..., Any]
    retention: Retention
    rescore_share: float
    tokens_every: int

    def write(self, rollouts: StepRollouts) -> None:
        if rollouts.updates:
            with self.fail_open("Δ"):
                self._rescore(rollouts)
        batch = None
        with self.fail_open("a step"):
            tokenizer = self.trainer.processing_class
            tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
            # The tokens at which TRL counts a completion as ended, not truncated.
            ends = getattr(self.trainer, "eos_token_ids", [tokenizer.eos_token_id])
            batch = batch_of(rollouts, tokenizer, [*ends, tokenizer.pad_token_id])
        if batch is None:
            return
        if rollouts.updates and not has_images(rollouts.inputs):
            with self.fail_open("the likelihood of responses of earlier steps"):
                most = self.retention.most if self.trainer.accelerator.num_processes > 1 else 0
                self.retention.record(
                    self.recorder, batch,
                    lambda due: score_kept(
                        self.scorer, self.trainer, due, batch, max(most, len(due))
                    ),
                )
        with self.fail_open("a step"):
            record(
                self.recorder, batch,
                updates=update_columns(rollouts) if rollouts.updates else None,
                tokens_every=self.tokens_every, **step_columns(rollouts),
                seconds_record=self.fail_open.take,
            )

    def _rescore(self, r: StepRollouts) -> None:
        """Score this rank's part of the step's sample under the present weights."""
        n, first = len(r.mask), r.samples.first
        groups = [i // r.group_size for i in range(len(r.all_correct))]
        sample = rescore_sample(r.all_correct, groups, self.rescore_share, r.step)
        if not sample:
            return
        local = [i - first for i in sample if 0 <= i - first < n]
        # All ranks score as many rows, or sharded weights could not be gathered: the rank with the
        # largest part decides, and what the others score beside theirs is dropped.
        most = max(Counter(i // n for i in sample).values())
        others = sorted(set(range(n)) - set(local))
        selection = torch.tensor(local, dtype=torch.long, device=r.mask.device)
        if has_images(r.inputs) or most == n:
            logps = score(self.scorer, self.trainer, r.inputs)[0][selection]
        else:
            rows = torch.tensor(local + others[: most - len(local)], device=r.mask.device)
            logps = score(self.scorer, self.trainer, r.inputs, rows)[0][: len(local)]
        r.set_post(selection, logps)


def batch_of(r: StepRollouts, tokenizer: Any, ends: Sequence[int]) -> Batch:
    """`ends`: the tokens at which a rollout may end."""
    samples, inputs = r.samples, r.inputs
    n = len(r.mask)
    ids = samples.first + np.arange(n)
    has_old, mask = r.has_old.cpu().numpy(), r.mask.cpu().numpy()
    truncated = [not c or c[-1] not in ends for c in samples.completion_ids]
    tools = inputs.get("tool_mask") is not None
    return Batch(
        step=r.step,
        mask=mask,
        prompt_ids=[
            inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()].tolist() for i in range(n)
        ],
        completion_ids=samples.completion_ids,
        rewards=np.array(samples.rewards),
        correct=samples.correct,
        group_ids=ids // r.group_size,
        response_ids=ids,
        advantages=inputs["advantages"],
        old=Scores(r.old, has_old),
        inner=Scores(r.inner, r.has_inner),
        post=None if r.post is None else Scores(r.post, r.has_post),
        behaviour=inputs.get("sampling_per_token_logps"),
        reference=inputs.get("ref_per_token_logps"),
        entropy=Scores(r.entropy, has_old),
        llds_gate=r.llds_gate,
        llds_penalty=r.llds_penalty,
        turns=[
            message_turns(mask[i, : len(c)], samples.completions[i], truncated=truncated[i])
            for i, c in enumerate(samples.completion_ids)
        ]
        if tools
        else None,
        protocol="tools" if tools else None,
        truncated=truncated,
        data_source=[example.get("data_source") for example in samples.examples],
        policy_version=r.policy_version,
        decode=tokenizer.decode,
        questions=[question_of(example.get("prompt")) for example in samples.examples],
        golden=[golden_answers(golden_of(example)) for example in samples.examples],
        reward_parts=samples.parts,
    )


def step_columns(r: StepRollouts) -> dict[str, Any]:
    """Columns of `steps` that are not in the batch."""
    weights = [u.n_tokens for u in r.updates]
    return {
        "policy_version": r.policy_version,
        "loss_policy": weighted_mean([u.mean(u.losses) for u in r.updates], weights),
        "loss_llds": weighted_mean([u.mean(u.llds) for u in r.updates], weights),
        "loss_kl": weighted_mean([u.kl() for u in r.updates], weights),
        "lr": r.updates[-1].lr if r.updates else None,
        "seconds_rollout": r.seconds_rollout,
        "seconds_update": r.seconds_update,
    }


def update_columns(r: StepRollouts) -> dict[str, Any]:
    """One row per optimizer update that used rollouts of this batch."""
    ratios = [torch.cat(u.ratios).float() if u.ratios else torch.empty(0) for u in r.updates]
    norms = [u.grad_norm for u in r.updates]
    return {
        "grad_norm": norms,
        "grad_finite": [None if g is None else bool(np.isfinite(g)) for g in norms],
        "skipped": [u.skipped for u in r.updates],
        "ratio_max": [x.max().item() if len(x) else None for x in ratios],
        "ratio_p99": [percentile_99(x.numpy(force=True)) if len(x) else None for x in ratios],
        "n_clipped": [sum(int(c) for c in u.clipped) if u.clipped else None for u in r.updates],
        "n_tokens": [u.n_tokens for u in r.updates],
    }
