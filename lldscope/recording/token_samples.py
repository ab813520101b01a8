"""Rollouts to read, from a batch that has a `decode`: the choice of rollouts, their text, and their
tokens with log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .batch import Batch, Scores

Columns = dict[str, Any]


def largest_drops(batch: Batch, n: int) -> list[int]:
    """Up to `n` rollouts with a measured Δ: the correct ones that lost most likelihood, and the
    incorrect one that lost most."""
    b = batch
    if b.old is None or b.post is None:
        return []
    delta = np.where(b.mask, b.post.values - b.old.values, 0).sum(1)
    has_delta = b.old.rows & b.post.rows
    order = [int(i) for i in np.argsort(delta, kind="stable") if has_delta[i]]
    correct = [i for i in order if b.correct[i]]
    others = [i for i in order if not b.correct[i]]
    return sorted(correct[: n - 1] + others[:1])


def texts_of(batch: Batch, indices: Sequence[int]) -> list[str | None]:
    """The text of the chosen rollouts, prompt included; None for the others."""
    texts: list[str | None] = [None] * len(batch.rewards)
    for i in indices:
        texts[i] = _text(batch, _ids(batch, i))
    return texts


def tokens_of(batch: Batch, action: np.ndarray, indices: Sequence[int]) -> Columns:
    """One row per token of the chosen rollouts, prompt and tool text included.

    action (N, T): number of each token's action, −1 off the actions.
    """
    parts = [_tokens(batch, action, i) for i in indices]
    return {name: [value for part in parts for value in part[name]] for name in parts[0]} | {
        "step": batch.step
    }


def _tokens(b: Batch, action: np.ndarray, i: int) -> Columns:
    ids = _ids(b, i)
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
        "action_index": column(action),
        "token_id": ids,
        "text": [_text(b, [token]) for token in ids],
        # The engine did not score a token that is NaN.
        "logp_behaviour": [None if v != v else v for v in column(b.behaviour)],
        "logp_old": column(b.old),
        "logp_post": column(b.post),
        "entropy": column(b.entropy),
    }


def _text(batch: Batch, ids: list[int]) -> str:
    assert batch.decode is not None
    return str(batch.decode(ids))


def _ids(batch: Batch, i: int) -> list[int]:
    return [*batch.prompt_ids[i], *batch.completion_ids[i]]
