"""How the importance ratios of two policies are distributed over each action's tokens."""

from __future__ import annotations

import numpy as np

from .token_samples import Columns

MAX_LOG_RATIO = 20.0
"""In a ratio, its logarithm counts as this at most, as in verl 0.9.1: what is finite stays so."""
FAR = 2.0
"""A token's probability more than this many times the other, or less than its inverse."""


def ratio_sums(
    pair: str, top: np.ndarray, bottom: np.ndarray, starts: np.ndarray, scored: np.ndarray
) -> Columns:
    """Columns of `actions` for r = exp(top − bottom), log-probabilities of tokens.

    pair: what the columns' names call the two. starts: each action's first token. scored: the
    actions in which both were measured; the others are masked. NaN and Inf pass.
    """
    with np.errstate(invalid="ignore"):
        log_ratio = top - bottom
        excess = np.expm1(np.minimum(log_ratio, MAX_LOG_RATIO))  # r − 1, with a small one's digits
        ratio = excess + 1
        is_far = (ratio > FAR) | (ratio < 1 / FAR)
        sums = {
            f"{pair}_k3_sum": excess - log_ratio,
            f"{pair}_ratio_sq_sum": np.square(ratio),
            f"n_tokens_{pair}_far": is_far.astype(np.int64),
        }
    return {
        name: np.ma.array(np.add.reduceat(of_tokens, starts) if len(top) else top, mask=~scored)
        for name, of_tokens in sums.items()
    }
