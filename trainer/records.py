"""Converts a step of the trainer into a `lldscope.recording.batch.Batch`, from which
`lldscope.recording.columns` makes rows, as for every other trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from lldscope.recording import batch as recording
from lldscope.recording.columns import weighted_mean
from lldscope.recording.transcripts import Turn

from .algorithms.update import UpdateStats
from .policy.model import Policy
from .rollout.batch import RolloutBatch
from .rollout.tokens import Rollout
from .task import Draw

Columns = dict[str, Any]


def response_ids(groups: Sequence[int], group_size: int) -> np.ndarray:
    """Rollout numbers derived from group numbers: unique over the ranks, so that tools that ignore
    ranks can join on them."""
    return np.array(groups) * group_size + np.arange(len(groups)) % group_size


def recorded_batch(
    draw: Draw,
    rollouts: Sequence[Rollout],
    batch: RolloutBatch,
    group_size: int,
    policy: Policy,
) -> recording.Batch:
    """This rank's rollouts of one step. Group numbers are counted over all ranks; a group's
    `group_size` rollouts follow each other."""
    of_policy = batch.mask.numpy(force=True) != 0  # (N, T)
    starts = np.where(of_policy.any(1), of_policy.argmax(1), batch.lengths).tolist()
    ends = list(zip(starts, batch.lengths, strict=True))  # of prompts, and of rollouts
    shape = (len(ends), max(end - start for start, end in ends))

    def completions(tensor: Tensor | None) -> np.ndarray | None:
        """(N, positions) without the prompts."""
        if tensor is None:
            return None
        table = np.zeros(shape, float if tensor.is_floating_point() else int)
        for to, row, (start, end) in zip(table, tensor.numpy(force=True), ends, strict=True):
            to[: end - start] = row[start:end]
        return table

    episodes = [r.episode for r in rollouts]
    return recording.Batch(
        step=draw.step,
        policy_version=draw.policy_version,
        mask=completions(batch.mask),
        action=completions(batch.action),
        prompt_ids=[r.ids[:a] for r, a in zip(rollouts, starts, strict=True)],
        completion_ids=[r.ids[a:] for r, a in zip(rollouts, starts, strict=True)],
        rewards=np.array([e.reward for e in episodes], float),
        correct=[bool(e.correct) for e in episodes],
        group_ids=draw.groups,
        response_ids=response_ids(draw.groups, group_size),
        advantages=batch.advantages,
        old=completions(batch.old),
        inner=completions(batch.inner) if batch.skipped is None
        else recording.Scores(completions(batch.inner), ~batch.skipped),
        post=recording.Scores(completions(batch.post), batch.rescored),
        behaviour=completions(batch.behaviour),
        reference=completions(batch.ref),
        entropy=completions(batch.entropy),
        error_norm=completions(batch.error_norm),
        llds_gate=completions(batch.gate_open),
        llds_penalty=completions(batch.penalty),
        turns=[[Turn(a.kind, a.tool_ok, a.docs_hash) for a in e.actions] for e in episodes],
        protocol="tags",
        truncated=[r.truncated for r in rollouts],
        data_source=[e.question.data_source for e in episodes],
        decode=policy.decode,
        questions=[e.question.text for e in episodes],
        golden=[e.question.golds for e in episodes],
    )


def loss_columns(updates: Sequence[UpdateStats]) -> Columns:
    """The step's losses, before their coefficients."""
    return {
        name: weighted_mean([getattr(u, name) for u in updates], [u.n_tokens for u in updates])
        for name in ("loss_policy", "loss_llds", "loss_kl")
    }


def update_columns(updates: Sequence[UpdateStats]) -> Columns:
    """One row per optimizer update."""
    names = ("grad_norm", "skipped", "ratio_max", "ratio_p99", "n_clipped", "n_tokens")
    columns: Columns = {name: [getattr(u, name) for u in updates] for name in names}
    return columns | {"grad_finite": [not u.skipped for u in updates]}
