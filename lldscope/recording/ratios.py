"""How the importance ratios of two policies are distributed over each action's tokens."""

from __future__ import annotations

import numpy as np

from .token_samples import Columns

MAX_LOG_RATIO = 20.0
"""In a ratio, its logarithm counts as this at most, as in verl 0.9.1: what is finite stays so."""
BLOCK = 64  # actions
FAR = 2.0
"""A token's probability more than this many times the other, or less than its inverse."""


def ratio_sums(
    pair: str, top: np.ndarray, bottom: np.ndarray, starts: np.ndarray, scored: np.ndarray
) -> Columns:
    """Columns of `actions` for r = exp(top − bottom), log-probabilities of tokens.

    pair: what the columns' names call the two. starts: each action's first token. scored: the
    actions in which both were measured; the others are masked. NaN and Inf pass.
    """
    sums = np.zeros((3, len(starts)))
    # By blocks that stay in the cache: fresh arrays of all tokens cost more than the arithmetic.
    for first in range(0, len(starts), BLOCK):
        block = slice(first, first + BLOCK)
        end = starts[first + BLOCK] if first + BLOCK < len(starts) else len(top)
        tokens, at = slice(starts[first], end), starts[block] - starts[first]
        with np.errstate(invalid="ignore"):
            log_ratio = top[tokens] - bottom[tokens]
            ratio = np.minimum(log_ratio, MAX_LOG_RATIO)
            np.expm1(ratio, out=ratio)  # r − 1, which keeps the digits of a small one
            sums[0, block] = np.add.reduceat(np.subtract(ratio, log_ratio, out=log_ratio), at)
            ratio += 1
            if not (ratio.max() <= FAR and ratio.min() >= 1 / FAR):  # seldom otherwise
                far = (ratio > FAR) | (ratio < 1 / FAR)
                sums[2, block] = np.add.reduceat(far, at, dtype=np.int64)
            np.square(ratio, out=ratio)
            sums[1, block] = np.add.reduceat(ratio, at)
    names = (f"{pair}_k3_sum", f"{pair}_ratio_sq_sum", f"n_tokens_{pair}_far")
    columns = dict(zip(names, (sums[0], sums[1], sums[2].astype(np.int64)), strict=True))
    return {name: np.ma.array(values, mask=~scored) for name, values in columns.items()}
