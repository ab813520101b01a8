"""From tensors to the recorder's columns: the one place where the trainer meets the registry.

Sums are over the action tokens named by the column, at the grain of the table (lldscope schema);
what was not measured is None or masked (NULL). NaN and Inf are passed on as they came.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .algorithms.update import UpdateStats
from .policy.model import Policy
from .rollout.batch import Batch
from .rollout.tokens import Rollout, retokenisation_drift

Columns = dict[str, Any]

READ_PER_STEP = 4
"""Rollouts whose tokens are kept in a step that keeps any."""


def response_ids(groups: Sequence[int], group_size: int) -> np.ndarray:
    """Numbers of rollouts from those of their groups: unique over the ranks, so that tools which
    know no ranks can join on them."""
    return np.array(groups) * group_size + np.arange(len(groups)) % group_size


def prompt_hash(rollout: Rollout) -> str:
    """Eight hexadecimal digits of the token ids before the first action."""
    n = next((t for t, a in enumerate(rollout.action) if a >= 0), len(rollout.action))
    return hashlib.blake2s(np.array(rollout.ids[:n]).tobytes(), digest_size=4).hexdigest()


class StepRows:
    """The rows of one step, of this rank. `groups` has the group number of each rollout, counted
    over all ranks; a group's `group_size` rollouts follow each other."""

    def __init__(
        self,
        step: int,
        rollouts: Sequence[Rollout],
        batch: Batch,
        groups: Sequence[int],
        group_size: int,
    ) -> None:
        self.step = step
        self._rollouts = rollouts
        self._batch = batch
        self._groups = groups
        self._rewards = np.array([r.episode.reward for r in rollouts])
        self._correct = np.array([r.episode.correct for r in rollouts])
        self._ids = response_ids(groups, group_size)
        self._mask = batch.mask.cpu().numpy().astype(bool)
        self._old = batch.old.cpu().numpy()
        self._post = batch.post.cpu().numpy()
        self._entropy = batch.entropy.cpu().numpy()
        self._rescored = batch.rescored.numpy()
        # The flat order below is the order in which rollouts, and in them tokens, come.
        action = np.concatenate([np.array(r.action) for r in rollouts])
        row = np.repeat(np.arange(len(rollouts)), batch.lengths)[action >= 0]
        action = action[action >= 0]
        self._starts = np.flatnonzero(
            np.diff(row, prepend=-1).astype(bool) | np.diff(action, prepend=-1).astype(bool)
        )
        self._row, self._action = row[self._starts], action[self._starts]
        self._n_tokens = np.diff(self._starts, append=len(row))

    def _per_action(self, values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, self._starts)

    def _sums(self, tokens: Tensor | None) -> np.ndarray | None:
        """Per-action sums of a (rows, positions) measurement; None if it was not made."""
        if tokens is None:
            return None
        values = tokens.cpu().numpy()[self._mask]
        return self._per_action(values if values.dtype == bool else values.astype(np.float64))

    def steps(self) -> Columns:
        """Counts and sums of the whole batch."""
        return {
            "step": self.step,
            "n_responses": len(self._rollouts),
            "n_correct": int(self._correct.sum()),
            "reward_sum": float(self._rewards.sum()),
            "reward_sq_sum": float(np.square(self._rewards).sum()),
            "n_tokens": int(self._mask.sum()),
            "entropy_sum": float(self._batch.entropy.sum(dtype=torch.float64)),
            "kl_sum": _k3_sum(self._batch),
        }

    def responses(self, policy: Policy, texts_of: Sequence[int]) -> Columns:
        """One row per rollout; the text only of the rollouts in `texts_of`."""
        kept = set(texts_of)
        rollouts = self._rollouts
        actions = [r.episode.actions for r in rollouts]
        return {
            "step": self.step,
            "response_id": self._ids,
            "group_id": np.array(self._groups),
            "data_source": [r.episode.question.data_source for r in rollouts],
            "prompt_hash": [prompt_hash(r) for r in rollouts],
            "reward": self._rewards,
            "advantage": self._batch.advantages.cpu().numpy(),
            "correct": self._correct,
            "n_actions": np.array([len(a) for a in actions]),
            "n_tokens": self._mask.sum(1),
            "n_searches": np.array([sum(x.kind == "search" for x in a) for a in actions]),
            "n_invalid": np.array([sum(x.kind == "invalid" for x in a) for a in actions]),
            "answered": np.array([a[-1].kind == "answer" for a in actions]),
            "truncated": np.array([r.truncated for r in rollouts]),
            "text": [policy.decode(r.ids) if i in kept else None for i, r in enumerate(rollouts)],
        }

    def actions(self) -> Columns:
        """One row per action; Δ-related columns only where the rollout was scored again."""
        old, post = self._old[self._mask], self._post[self._mask]
        taken = [
            self._rollouts[i].episode.actions[j]
            for i, j in zip(self._row, self._action, strict=True)
        ]
        unmeasured = ~self._rescored[self._row]
        down = self._per_action((post < old).astype(np.int64))
        gated = self._sums(self._batch.gate_open)
        return {
            "step": self.step,
            "response_id": self._ids[self._row],
            "action_index": self._action,
            "kind": [action.kind for action in taken],
            "n_tokens": self._n_tokens,
            "logp_behaviour_sum": self._sums(self._batch.behaviour),
            "logp_old_sum": self._per_action(old),
            "logp_inner_sum": self._sums(self._batch.inner),
            "logp_post_sum": np.ma.array(self._per_action(post), mask=unmeasured),
            "logp_ref_sum": self._sums(self._batch.ref),
            "n_tokens_down": np.ma.array(down, mask=unmeasured),
            "drop_sum": np.ma.array(self._per_action(np.maximum(old - post, 0)), mask=unmeasured),
            "entropy_sum": self._sums(self._batch.entropy),
            "error_norm_sum": self._sums(self._batch.error_norm),
            "logp_min": np.minimum.reduceat(old, self._starts),
            "llds_gate": None if gated is None else gated > 0,
            "llds_sum": self._sums(self._batch.penalty),
            "tool_ok": [action.tool_ok for action in taken],
            "docs_hash": [action.docs_hash for action in taken],
        }

    def tokens(self, policy: Policy, chosen: Sequence[int]) -> Columns:
        """One row per token, prompt and tool text included, of the chosen rollouts."""
        parts = [self._tokens_of(policy, i) for i in chosen]
        return {name: _concatenate([p[name] for p in parts]) for name in parts[0]} | {
            "step": self.step
        }

    def _tokens_of(self, policy: Policy, i: int) -> Columns:
        r = self._rollouts[i]
        n = len(r.ids)
        tool = ~self._mask[i, :n]
        return {
            "response_id": np.full(n, self._ids[i]),
            "position": np.arange(n),
            "action_index": np.ma.array(r.action, mask=tool),
            "token_id": np.array(r.ids),
            "text": [policy.decode([token]) for token in r.ids],
            "logp_old": np.ma.array(self._old[i, :n], mask=tool),
            "logp_post": np.ma.array(self._post[i, :n], mask=tool | ~self._rescored[i]),
            "entropy": np.ma.array(self._entropy[i, :n], mask=tool),
        }

    def probes(self, policy: Policy) -> Columns:
        """The share of actions that decoding and encoding again would have changed (tokens.py)."""
        changed, n = retokenisation_drift(policy, self._rollouts)
        return {
            "step": self.step,
            "probe": "retokenisation_drift",
            "value": changed / n if n else None,
        }

    def worth_reading(self, n: int) -> list[int]:
        """Up to `n` re-scored rollouts for a person to read: the correct ones that lost most
        likelihood, and the incorrect one that lost most."""
        delta = np.where(self._mask, self._post - self._old, 0).sum(1)
        order = [int(i) for i in np.argsort(delta, kind="stable") if self._rescored[i]]
        correct = [i for i in order if self._correct[i]]
        incorrect = [i for i in order if not self._correct[i]]
        return sorted(correct[: n - 1] + incorrect[:1])


def record_tables(
    recorder: Any,
    rows: StepRows,
    updates: Sequence[UpdateStats],
    policy: Policy,
    *,
    with_tokens: bool,
) -> float:
    """Hand the recorder everything but the row of `steps`, which must come last; returns the
    seconds its calls took. `with_tokens`: texts and tokens of some rollouts, too."""
    read = rows.worth_reading(READ_PER_STEP) if with_tokens else []
    tables: dict[str, Columns] = {
        "updates": update_columns(updates) | {"step": rows.step},
        "responses": rows.responses(policy, read),
        "actions": rows.actions(),
    }
    if read:
        tables |= {"tokens": rows.tokens(policy, read), "probes": rows.probes(policy)}
    started = time.perf_counter()
    for table, columns in tables.items():
        getattr(recorder, table)(**columns)
    return time.perf_counter() - started


def loss_columns(updates: Sequence[UpdateStats]) -> Columns:
    """The step's losses, before their coefficients: token-weighted means over its updates, None
    where a loss was not computed."""
    total = sum(u.n_tokens for u in updates)
    columns: Columns = {}
    for name in ("loss_policy", "loss_llds", "loss_kl"):
        values = [getattr(u, name) for u in updates]
        computed = total > 0 and None not in values
        columns[name] = (
            sum(v * u.n_tokens for v, u in zip(values, updates, strict=True)) / total
            if computed
            else None
        )
    return columns


def update_columns(updates: Sequence[UpdateStats]) -> Columns:
    """One row per optimizer update."""
    names = ("grad_norm", "skipped", "ratio_max", "ratio_p99", "n_clipped", "n_tokens")
    columns: Columns = {name: [getattr(u, name) for u in updates] for name in names}
    columns["grad_finite"] = [not u.skipped for u in updates]
    return columns | {"update": list(range(len(updates)))}


def _k3_sum(batch: Batch) -> float | None:
    if batch.ref is None:
        return None
    gap = (batch.ref - batch.old)[batch.mask.bool()].double()
    return float((gap.exp() - gap - 1).sum())


def _concatenate(parts: list[Any]) -> Any:
    if isinstance(parts[0], list):
        return [value for part in parts for value in part]
    if isinstance(parts[0], np.ma.MaskedArray):
        return np.ma.concatenate(parts)
    return np.concatenate(parts)
