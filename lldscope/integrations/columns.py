"""From a rollout batch of TRL to the recorder's columns.

Sums are over action tokens, at the grain of the table (lldscope.schema); what was not measured is
None or masked. NaN and Inf are passed on as they came.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .rollouts import Rollouts, Update
from .turns import turns

Columns = dict[str, Any]

READ_PER_STEP = 4
"""Rollouts whose text and tokens are kept in a step that keeps any."""


class StepRows:
    """The rows of one step, of this rank. `ends`: the tokens at which a rollout may end."""

    def __init__(self, rollouts: Rollouts, tokenizer: Any, ends: Sequence[int]) -> None:
        self._r, self._tokenizer = rollouts, tokenizer
        self._samples = rollouts.samples
        self._mask = rollouts.mask.cpu().numpy()
        n = len(self._mask)
        self._ids = self._samples.first + np.arange(n)
        self._old = rollouts.old.double().cpu().numpy()
        self._has_old = rollouts.has_old.cpu().numpy()
        self._measured = self._has_old & (rollouts.post is not None)
        post = self._old if rollouts.post is None else rollouts.post.double().cpu().numpy()
        self._post = np.where(self._measured[:, None], post, np.nan)
        self._entropy = rollouts.entropy.double().cpu().numpy()
        self._truncated = [not ids or ids[-1] not in ends for ids in self._samples.completion_ids]
        # An action is a maximal run of ones (arXiv 2512.04220 v2, §3): it starts where the token
        # before is none of the policy's. The flat order is that of rows, and in them of tokens.
        before = np.pad(self._mask, ((0, 0), (1, 0)))[:, :-1]
        begins = self._mask & ~before
        self._action = np.where(self._mask, begins.cumsum(1) - 1, -1)
        self._starts = np.flatnonzero(begins[self._mask])
        self._row = np.nonzero(begins)[0]
        self._index = self._action[begins]
        self._n_actions = begins.sum(1)
        self._turns = [
            turns(
                own=self._mask[i, : len(ids)],
                completion=self._samples.completions[i],
                truncated=self._truncated[i],
                with_tools=self._has_tools,
            )
            for i, ids in enumerate(self._samples.completion_ids)
        ]

    # -- tables -----------------------------------------------------------------------------------

    def steps(self) -> Columns:
        """Counts and sums of the whole batch."""
        r, rewards = self._r, np.array(self._samples.rewards)
        known = rewards[~np.isnan(rewards)]
        correct = self._samples.correct
        return {
            "step": r.step,
            "policy_version": r.policy_version,
            "n_responses": len(rewards),
            "n_correct": None if None in correct else sum(map(bool, correct)),
            "reward_sum": float(known.sum()),
            "reward_sq_sum": float(np.square(known).sum()),
            "n_tokens": int(self._mask.sum()),
            "entropy_sum": float(self._entropy[self._mask].sum()) if self._has_old.all() else None,
            "kl_sum": self._k3_sum(),
            "loss_policy": _mean_loss(r.updates, lambda u: u.mean(u.losses)),
            "loss_llds": _mean_loss(r.updates, lambda u: u.mean(u.llds)),
            "loss_kl": _mean_loss(r.updates, _kl),
            "lr": r.updates[-1].lr if r.updates else None,
            "seconds_rollout": r.seconds_rollout,
            "seconds_update": r.seconds_update,
        }

    def updates(self) -> Columns:
        """One row per optimizer update that used rollouts of this batch."""
        ratios = [torch.cat(u.ratios).float() for u in self._r.updates]
        norms = [u.grad_norm for u in self._r.updates]
        return {
            "step": self._r.step,
            "update": list(range(len(norms))),
            "grad_norm": norms,
            "grad_finite": [None if g is None else bool(np.isfinite(g)) for g in norms],
            "skipped": [u.skipped for u in self._r.updates],
            "ratio_max": [x.max().item() if len(x) else None for x in ratios],
            # numpy: torch.quantile takes no more than 16 million values.
            "ratio_p99": [float(np.quantile(x.cpu(), 0.99)) if len(x) else None for x in ratios],
            "n_clipped": [
                int(sum(int(c) for c in u.clipped)) if u.clipped else None for u in self._r.updates
            ],
            "n_tokens": [u.n_tokens for u in self._r.updates],
        }

    def responses(self, texts_of: Sequence[int]) -> Columns:
        """One row per rollout; the text only of those in `texts_of`."""
        s, n = self._samples, len(self._mask)
        advantages = self._r.inputs["advantages"].float().cpu().numpy()
        if advantages.ndim == 2:  # one per token, as subclasses may have it
            total = np.where(self._mask, advantages, 0).sum(1)
            advantages = total / np.maximum(self._mask.sum(1), 1)
        tools = self._has_tools
        return {
            "step": self._r.step,
            "response_id": self._ids,
            "group_id": self._ids // self._r.group_size,
            "data_source": [e.get("data_source") for e in s.examples],
            "prompt_hash": [self._prompt_hash(i) for i in range(n)],
            "reward": np.array(s.rewards),
            "advantage": advantages,
            "correct": list(s.correct),
            "n_actions": self._n_actions,
            "n_tokens": self._mask.sum(1),
            "n_searches": [sum(t.kind == "search" for t in x) for x in self._turns]
            if tools
            else None,
            "answered": [bool(x) and x[-1].kind == "answer" for x in self._turns]
            if tools
            else None,
            "truncated": self._truncated,
            "text": [self._decode(self._sequence(i)[0]) if i in texts_of else None
                     for i in range(n)],
        }  # fmt: skip

    def actions(self) -> Columns:
        """One row per action; Δ only where the rollout was scored before and after."""
        old, post = self._old[self._mask], self._post[self._mask]
        taken = [self._turns[i][j] for i, j in zip(self._row, self._index, strict=True)]
        r, unmeasured = self._r, ~self._measured[self._row]
        unscored = ~self._has_old[self._row]
        with np.errstate(invalid="ignore"):
            down = self._per_action((post < old).astype(np.int64))
        behaviour = self._sums(r.inputs.get("sampling_per_token_logps"))
        gate = self._sums(r.llds_gate)
        return {
            "step": r.step,
            "response_id": self._ids[self._row],
            "action_index": self._index,
            "kind": [t.kind for t in taken],
            "n_tokens": np.diff(self._starts, append=len(old)),
            # NaN is a token that the engine did not score, so the sum was not measured.
            "logp_behaviour_sum": None if behaviour is None else np.ma.masked_invalid(behaviour),
            "logp_old_sum": np.ma.array(self._per_action(old), mask=unscored),
            "logp_inner_sum": self._where(r.inner, r.has_inner),
            "logp_post_sum": np.ma.array(self._per_action(post), mask=unmeasured),
            "logp_ref_sum": self._sums(r.inputs.get("ref_per_token_logps")),
            "n_tokens_down": np.ma.array(down, mask=unmeasured),
            "drop_sum": np.ma.array(self._per_action(np.maximum(old - post, 0)), mask=unmeasured),
            "entropy_sum": np.ma.array(
                self._per_action(self._entropy[self._mask]), mask=unscored
            ),
            "logp_min": np.ma.array(
                np.minimum.reduceat(old, self._starts) if len(old) else old, mask=unscored
            ),
            "llds_gate": None if gate is None else gate > 0,
            "llds_sum": self._sums(r.llds_penalty),
            "tool_ok": [t.tool_ok for t in taken],
            "docs_hash": [t.docs_hash for t in taken],
        }  # fmt: skip

    def tokens(self, chosen: Sequence[int]) -> Columns:
        """One row per token, prompt and tool text included, of the chosen rollouts."""
        parts = [self._tokens_of(i) for i in chosen]
        return {name: [value for part in parts for value in part[name]] for name in parts[0]} | {
            "step": self._r.step
        }

    def worth_reading(self, n: int) -> list[int]:
        """Up to `n` rollouts for a person to read: the correct ones that lost most likelihood, and
        the incorrect one that lost most."""
        delta = np.where(self._mask, self._post - self._old, 0).sum(1)
        order = [int(i) for i in np.argsort(delta) if self._measured[i]]
        correct = [i for i in order if self._samples.correct[i]]
        rest = [i for i in order if not self._samples.correct[i]]
        return sorted(correct[: n - 1] + rest[:1])

    # -- inside -----------------------------------------------------------------------------------

    @property
    def _has_tools(self) -> bool:
        return self._r.inputs.get("tool_mask") is not None

    def _per_action(self, values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, self._starts) if len(values) else values

    def _sums(self, tokens: Tensor | None) -> np.ndarray | None:
        """Per-action sums of an (N, T) measurement; None if it was not made."""
        if tokens is None:
            return None
        values = tokens.cpu().numpy() if tokens.dtype == torch.bool else tokens.double().cpu()
        return self._per_action(np.asarray(values)[self._mask])

    def _where(self, tokens: Tensor, known: Tensor) -> np.ma.MaskedArray:
        return np.ma.array(self._sums(tokens), mask=~known.cpu().numpy()[self._row])

    def _k3_sum(self) -> float | None:
        reference = self._r.inputs.get("ref_per_token_logps")
        if reference is None or not self._has_old.all():
            return None
        gap = reference.double().cpu().numpy()[self._mask] - self._old[self._mask]
        return float((np.exp(gap) - gap - 1).sum())

    def _prompt_hash(self, i: int) -> str:
        """Eight hexadecimal digits of the prompt's token ids."""
        ids = np.array(self._sequence(i)[0][: self._sequence(i)[1]])
        return hashlib.blake2s(ids.tobytes(), digest_size=4).hexdigest()

    def _sequence(self, i: int) -> tuple[list[int], int]:
        """(token ids without padding, how many of them are the prompt)."""
        x = self._r.inputs
        prompt = x["prompt_ids"][i][x["prompt_mask"][i].bool()].tolist()
        return prompt + list(self._samples.completion_ids[i]), len(prompt)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))

    def _tokens_of(self, i: int) -> Columns:
        ids, before = self._sequence(i)
        after = len(ids) - before
        own = self._mask[i, :after]

        def column(values: np.ndarray, known: bool) -> list[Any]:
            pairs = zip(values[i, :after].tolist(), own, strict=True)
            return [None] * before + [v if mine and known else None for v, mine in pairs]

        return {
            "response_id": [int(self._ids[i])] * len(ids),
            "position": list(range(len(ids))),
            "action_index": column(self._action, True),
            "token_id": ids,
            "text": [self._decode([token]) for token in ids],
            "logp_old": column(self._old, self._has_old[i]),
            "logp_post": column(self._post, self._measured[i]),
            "entropy": column(self._entropy, self._has_old[i]),
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
