"""Rollouts for a person to read: which, their text, and their tokens with log-probabilities."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .batch import Batch, Scores

Columns = dict[str, Any]


def prompt_hash(ids: Sequence[int]) -> str:
    """Eight hexadecimal digits of the prompt's token ids."""
    return hashlib.blake2s(np.array(ids).tobytes(), digest_size=4).hexdigest()


class Texts:
    """`action` (N, T): number of each token's action, −1 off the actions."""

    def __init__(self, batch: Batch, action: np.ndarray) -> None:
        self._b, self._action = batch, action

    def worth_reading(self, n: int) -> list[int]:
        """Up to `n` rollouts with a measured Δ: the correct ones that lost most likelihood, and the
        incorrect one that lost most."""
        b = self._b
        if b.old is None or b.post is None:
            return []
        delta = np.where(b.mask, b.post.values - b.old.values, 0).sum(1)
        measured = b.old.rows & b.post.rows
        order = [int(i) for i in np.argsort(delta, kind="stable") if measured[i]]
        correct = [i for i in order if b.correct[i]]
        rest = [i for i in order if not b.correct[i]]
        return sorted(correct[: n - 1] + rest[:1])

    def of(self, chosen: Sequence[int]) -> list[str | None]:
        """The text of the chosen rollouts, prompt included, None for the others."""
        kept = set(chosen)
        return [
            self._decode(self._sequence(i)) if i in kept else None for i in range(len(self._b.mask))
        ]

    def tokens(self, chosen: Sequence[int]) -> Columns:
        """One row per token, prompt and tool text included, of the chosen rollouts."""
        parts = [self._tokens_of(i) for i in chosen]
        return {name: [value for part in parts for value in part[name]] for name in parts[0]} | {
            "step": self._b.step
        }

    def _tokens_of(self, i: int) -> Columns:
        b, ids = self._b, self._sequence(i)
        before, after = len(b.prompt_ids[i]), len(b.completion_ids[i])
        own = b.mask[i, :after]

        def column(values: np.ndarray) -> list[Any]:
            pairs = zip(values[i, :after].tolist(), own, strict=True)
            return [None] * before + [v if mine else None for v, mine in pairs]

        def measured(scores: Scores | None) -> list[Any]:
            if scores is None or not scores.rows[i]:
                return [None] * len(ids)
            return column(scores.values)

        return {
            "response_id": [int(b.response_ids[i])] * len(ids),
            "position": list(range(len(ids))),
            "action_index": column(self._action),
            "token_id": ids,
            "text": [self._decode([token]) for token in ids],
            "logp_old": measured(b.old),
            "logp_post": measured(b.post),
            "entropy": measured(b.entropy),
        }

    def _sequence(self, i: int) -> list[int]:
        return [*self._b.prompt_ids[i], *self._b.completion_ids[i]]

    def _decode(self, ids: list[int]) -> str | None:
        return None if self._b.decode is None else str(self._b.decode(ids))
