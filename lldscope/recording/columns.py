"""From a rollout batch to the recorder's columns.

Sums are over action tokens, at the grain of the table (`core.schema`); what was not measured is
None or masked. NaN and Inf are passed on as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .batch import Batch, Scores
from .samples_for_readers import Texts, prompt_hash
from .turns import Turn

Columns = dict[str, Any]

READ_PER_STEP = 4
"""Rollouts whose text and tokens are kept in a step that keeps any."""


def record(
    recorder: Any,
    batch: Batch,
    *,
    updates: Mapping[str, Any] | None = None,
    with_tokens: bool = False,
    **of_step: Any,
) -> None:
    """Record one step: its responses and actions, and the row of `steps`, which comes last.

    updates: columns of the table `updates`, an entry per optimizer update. with_tokens: texts and
    tokens of READ_PER_STEP rollouts, too. of_step: columns of `steps` that the batch does not tell,
    such as `lr`.
    """
    found = tables(batch, with_tokens=with_tokens)
    sums = found.pop("steps")
    if updates is not None:
        n = len(next(iter(updates.values())))
        found["updates"] = {"step": batch.step, "update": list(range(n)), **updates}
    for table, columns in found.items():
        getattr(recorder, table)(**columns)
    recorder.step(**sums, **of_step)


def tables(batch: Batch, *, with_tokens: bool) -> dict[str, Columns]:
    """Columns by table: responses, actions, steps, and tokens where asked for."""
    rows = StepRows(batch)
    texts = Texts(batch, rows.action)
    read = texts.worth_reading(READ_PER_STEP) if with_tokens and batch.decode is not None else []
    found = {
        "responses": rows.responses() | {"text": texts.of(read)},
        "actions": rows.actions(),
        "steps": rows.sums(),
    }
    return found | ({"tokens": texts.tokens(read)} if read else {})


class StepRows:
    """The rows of one step, of this rank. `action` (N, T): number of each token's action within
    its rollout, −1 off the actions."""

    def __init__(self, batch: Batch) -> None:
        self._b = batch
        mask = batch.mask
        # An action is a maximal run of ones (arXiv 2512.04220 v2, §3): it starts where the token
        # before is none of the policy's. The flat order is that of rows, and in them of tokens.
        before = np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
        begins = mask & ~before
        self.action = np.where(mask, begins.cumsum(1) - 1, -1)
        self._starts = np.flatnonzero(begins[mask])
        self._row = np.nonzero(begins)[0]
        self._index = self.action[begins]
        self._n_actions = begins.sum(1)
        self._turns = batch.turns or [[Turn("text")] * int(n) for n in self._n_actions]

    def sums(self) -> Columns:
        """Counts and sums of the whole batch, for `steps`; None where a rollout lacks its part."""
        b = self._b
        rewarded = not np.isnan(b.rewards).any()
        whole = b.entropy is not None and b.entropy.rows.all()
        return {
            "step": b.step,
            "n_responses": len(b.rewards),
            "n_correct": None if None in b.correct else sum(map(bool, b.correct)),
            "reward_sum": float(b.rewards.sum()) if rewarded else None,
            "reward_sq_sum": float(np.square(b.rewards).sum()) if rewarded else None,
            "n_tokens": int(b.mask.sum()),
            "entropy_sum": float(b.entropy.values[b.mask].sum()) if whole else None,
            "kl_sum": self._k3_sum(),
        }

    def responses(self) -> Columns:
        """One row per rollout."""
        b, n = self._b, len(self._b.mask)
        advantages = b.advantages
        if advantages is not None and advantages.ndim == 2:
            total = np.where(b.mask, advantages, 0).sum(1)
            advantages = total / np.maximum(b.mask.sum(1), 1)
        return {
            "step": b.step,
            "response_id": b.response_ids,
            "group_id": b.group_ids,
            "data_source": b.data_source,
            "prompt_hash": [prompt_hash(b.prompt_ids[i]) for i in range(n)],
            "reward": b.rewards,
            "advantage": advantages,
            "correct": list(b.correct),
            "n_actions": self._n_actions,
            "n_tokens": b.mask.sum(1),
            "n_searches": self._count("search") if b.protocol else None,
            "n_invalid": self._count("invalid") if b.protocol == "tags" else None,
            "answered": [bool(t) and t[-1].kind == "answer" for t in self._turns]
            if b.protocol
            else None,
            "truncated": b.truncated,
        }

    def actions(self) -> Columns:
        """One row per action; Δ only where the rollout was scored before and after."""
        b = self._b
        taken = [
            self._turns[i][j] for i, j in zip(self._row.tolist(), self._index.tolist(), strict=True)
        ]
        gate = self._sums(b.llds_gate)
        behaviour = self._sums(b.behaviour)
        return {
            "step": b.step,
            "response_id": b.response_ids[self._row],
            "action_index": self._index,
            "kind": [t.kind for t in taken],
            "n_tokens": np.diff(self._starts, append=int(b.mask.sum())),
            # NaN is a token that the engine did not score, so the sum was not measured.
            "logp_behaviour_sum": None if behaviour is None else np.ma.masked_invalid(behaviour),
            "logp_old_sum": self._where(b.old),
            "logp_inner_sum": self._where(b.inner),
            "logp_post_sum": self._where(b.post, b.old),
            "logp_ref_sum": self._sums(b.reference),
            "entropy_sum": self._where(b.entropy),
            "llds_gate": None if gate is None else gate > 0,
            "llds_sum": self._sums(b.llds_penalty),
            "tool_ok": [t.tool_ok for t in taken],
            "docs_hash": [t.docs_hash for t in taken],
        } | self._drops()

    # -- inside -----------------------------------------------------------------------------------

    def _drops(self) -> Columns:
        """What was measured of π_old token by token, and of its change."""
        b = self._b
        if b.old is None:
            return {}
        old = b.old.values[b.mask]
        lowest = np.minimum.reduceat(old, self._starts) if len(old) else old
        columns: Columns = {"logp_min": np.ma.array(lowest, mask=~b.old.rows[self._row])}
        if b.post is None:
            return columns
        post, unmeasured = b.post.values[b.mask], ~(b.old.rows & b.post.rows)[self._row]
        with np.errstate(invalid="ignore"):
            down = self._per_action((post < old).astype(np.int64))
            drop = self._per_action(np.maximum(old - post, 0))
        return columns | {
            "n_tokens_down": np.ma.array(down, mask=unmeasured),
            "drop_sum": np.ma.array(drop, mask=unmeasured),
        }

    def _count(self, kind: str) -> list[int]:
        return [sum(turn.kind == kind for turn in turns) for turns in self._turns]

    def _per_action(self, values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, self._starts) if len(values) else values

    def _sums(self, tokens: np.ndarray | None) -> np.ndarray | None:
        """Per-action sums of an (N, T) measurement; None if it was not made."""
        return None if tokens is None else self._per_action(tokens[self._b.mask])

    def _where(self, scores: Scores | None, other: Scores | None = None) -> Any:
        """Per-action sums, masked in rows without a measurement (or one of `other`)."""
        if scores is None:
            return None
        known = scores.rows if other is None else scores.rows & other.rows
        return np.ma.array(self._sums(scores.values), mask=~known[self._row])

    def _k3_sum(self) -> float | None:
        """Σ of the k3 estimate of KL(π_old ‖ π_ref) over the batch."""
        b = self._b
        if b.reference is None or b.old is None or not b.old.rows.all():
            return None
        gap = b.reference[b.mask] - b.old.values[b.mask]
        return float((np.exp(gap) - gap - 1).sum())
