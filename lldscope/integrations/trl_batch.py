"""A rollout batch of TRL and its updates, as the tables have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..recording.batch import Batch, Scores
from ..recording.columns import Columns
from ..recording.turns import message_turns
from .rollouts import Rollouts, Update


def batch_of(r: Rollouts, tokenizer: Any, ends: Sequence[int]) -> Batch:
    """`ends`: the tokens at which a rollout may end."""
    s, x = r.samples, r.inputs
    n = len(r.mask)
    ids = s.first + np.arange(n)
    has_old, mask = r.has_old.cpu().numpy(), r.mask.cpu().numpy()
    truncated = [not c or c[-1] not in ends for c in s.completion_ids]
    tools = x.get("tool_mask") is not None
    turns = [
        message_turns(mask[i, : len(c)], s.completions[i], truncated=truncated[i])
        for i, c in enumerate(s.completion_ids)
    ]
    return Batch(
        step=r.step,
        mask=mask,
        prompt_ids=[x["prompt_ids"][i][x["prompt_mask"][i].bool()].tolist() for i in range(n)],
        completion_ids=s.completion_ids,
        rewards=np.array(s.rewards),
        correct=s.correct,
        group_ids=ids // r.group_size,
        response_ids=ids,
        advantages=x["advantages"],
        old=Scores(r.old, has_old),
        inner=Scores(r.inner, r.has_inner),
        post=None if r.post is None else Scores(r.post, r.has_post),
        behaviour=x.get("sampling_per_token_logps"),
        reference=x.get("ref_per_token_logps"),
        entropy=Scores(r.entropy, has_old),
        llds_gate=r.llds_gate,
        llds_penalty=r.llds_penalty,
        turns=turns if tools else None,
        protocol="tools" if tools else None,
        truncated=truncated,
        data_source=[e.get("data_source") for e in s.examples],
        decode=tokenizer.decode,
    )


def step_columns(r: Rollouts) -> Columns:
    """What the batch does not tell of its step."""
    return {
        "policy_version": r.policy_version,
        "loss_policy": _mean_loss(r.updates, lambda u: u.mean(u.losses)),
        "loss_llds": _mean_loss(r.updates, lambda u: u.mean(u.llds)),
        "loss_kl": _mean_loss(r.updates, _kl),
        "lr": r.updates[-1].lr if r.updates else None,
        "seconds_rollout": r.seconds_rollout,
        "seconds_update": r.seconds_update,
    }


def update_columns(r: Rollouts) -> Columns:
    """One row per optimizer update that used rollouts of this batch."""
    ratios = [torch.cat(u.ratios).float() for u in r.updates]
    norms = [u.grad_norm for u in r.updates]
    return {
        "step": r.step,
        "update": list(range(len(norms))),
        "grad_norm": norms,
        "grad_finite": [None if g is None else bool(np.isfinite(g)) for g in norms],
        "skipped": [u.skipped for u in r.updates],
        "ratio_max": [x.max().item() if len(x) else None for x in ratios],
        # numpy: torch.quantile takes no more than 16 million values.
        "ratio_p99": [float(np.quantile(x.cpu(), 0.99)) if len(x) else None for x in ratios],
        "n_clipped": [
            int(sum(int(c) for c in u.clipped)) if u.clipped else None for u in r.updates
        ],
        "n_tokens": [u.n_tokens for u in r.updates],
    }


def _mean_loss(updates: Sequence[Update], value: Any) -> float | None:
    """Token-weighted mean over the updates; None where one did not compute it."""
    values, total = [value(u) for u in updates], sum(u.n_tokens for u in updates)
    if total == 0 or None in values:
        return None
    return sum(v * u.n_tokens for v, u in zip(values, updates, strict=True)) / total


def _kl(update: Update) -> float | None:
    if not update.kl_sums:
        return None
    return float(torch.stack(update.kl_sums).double().sum()) / max(1, update.n_tokens)
