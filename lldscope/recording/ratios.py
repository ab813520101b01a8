"""How the importance ratios of two policies are distributed over each action's tokens."""

from __future__ import annotations

import numpy as np

from .token_samples import Columns

MAX_LOG_RATIO = 20.0
"""In a ratio, its logarithm counts as this at most, as in verl 0.9.1: what is finite stays so."""
FAR = np.log(2)
"""A token's probability more than twice, or less than half."""


def ratio_sums(
    pair: str, top: np.ndarray, bottom: np.ndarray, starts: np.ndarray, known: np.ndarray
) -> Columns:
    """Columns of `actions` for r = exp(top − bottom), log-probabilities of tokens.

    pair: what the columns' names call the two. starts: each action's first token. known: the
    actions in which both were measured; the others are masked. NaN and Inf pass.
    """
    # In place where it can be: new arrays of this size cost more than the arithmetic.
    with np.errstate(invalid="ignore"):
        log_ratio = top - bottom
        excess = np.minimum(log_ratio, MAX_LOG_RATIO)
        np.expm1(excess, out=excess)  # r − 1
        k3 = excess - log_ratio
        excess += 1
        excess *= excess
        far = np.abs(log_ratio, out=log_ratio) > FAR
        columns = {
            f"{pair}_k3_sum": np.add.reduceat(k3, starts),
            f"{pair}_ratio_sq_sum": np.add.reduceat(excess, starts),
            f"n_tokens_{pair}_far": np.add.reduceat(far.view(np.uint8), starts, dtype=np.int64),
        }
    return {name: np.ma.array(values, mask=~known) for name, values in columns.items()}
