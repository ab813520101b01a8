"""Rollouts for a person to read: which, their text, their tokens with log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .batch import Batch, Scores

Columns = dict[str, Any]


class TokenSamples:
    """Texts and tokens of some rollouts of a batch that has a `decode`.

    action (N, T): number of each token's action, −1 off the actions.
    """

    def __init__(self, batch: Batch, action: np.ndarray) -> None:
        self._batch, self._action = batch, action

    def largest_drops(self, n: int) -> list[int]:
        """Up to `n` rollouts with a measured Δ: the correct ones that lost most likelihood, and the
        incorrect one that lost most."""
        b = self._batch
        if b.old is None or b.post is None:
            return []
        delta = np.where(b.mask, b.post.values - b.old.values, 0).sum(1)
        has_delta = b.old.rows & b.post.rows
        order = [int(i) for i in np.argsort(delta, kind="stable") if has_delta[i]]
        correct = [i for i in order if b.correct[i]]
        others = [i for i in order if not b.correct[i]]
        return sorted(correct[: n - 1] + others[:1])

    def texts(self, indices: Sequence[int]) -> list[str | None]:
        """The text of the chosen rollouts, prompt included; None for the others."""
        index_set = set(indices)
        n = len(self._batch.rewards)
        return [self._decode(self._ids(i)) if i in index_set else None for i in range(n)]

    def tokens(self, indices: Sequence[int]) -> Columns:
        """One row per token of the chosen rollouts, prompt and tool text included."""
        parts = [self._tokens_of(i) for i in indices]
        return {name: [value for part in parts for value in part[name]] for name in parts[0]} | {
            "step": self._batch.step
        }

    def _tokens_of(self, i: int) -> Columns:
        b, ids = self._batch, self._ids(i)
        n_prompt, n_completion = len(b.prompt_ids[i]), len(b.completion_ids[i])
        emitted = b.mask[i, :n_completion]

        def column(values: Any) -> list[Any]:
            if isinstance(values, Scores):
                values = values.values if values.rows[i] else None
            if values is None:
                return [None] * len(ids)
            pairs = zip(values[i, :n_completion].tolist(), emitted, strict=True)
            return [None] * n_prompt + [value if mine else None for value, mine in pairs]

        return {
            "response_id": [int(b.response_ids[i])] * len(ids),
            "position": list(range(len(ids))),
            "action_index": column(self._action),
            "token_id": ids,
            "text": [self._decode([token]) for token in ids],
            # The engine did not score a token that is NaN.
            "logp_behaviour": [None if v != v else v for v in column(b.behaviour)],
            "logp_old": column(b.old),
            "logp_post": column(b.post),
            "entropy": column(b.entropy),
        }

    def _ids(self, i: int) -> list[int]:
        return [*self._batch.prompt_ids[i], *self._batch.completion_ids[i]]

    def _decode(self, ids: list[int]) -> str | None:
        return None if self._batch.decode is None else str(self._batch.decode(ids))
