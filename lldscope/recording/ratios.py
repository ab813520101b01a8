"""Token by token: the distribution of a policy's importance ratios to another policy over an
action, and the rounding of its log-probabilities (a trainer that scores in bfloat16 gives multiples
of 1/32 nat between −8 and −4)."""

from __future__ import annotations

import numpy as np

from .token_samples import Columns

MAX_LOG_RATIO = 20.0
"""The cap on the logarithm of a ratio, as in verl 0.9.1: finite inputs stay finite."""
FAR = 2.0
"""A token is far if its probability is more than this many times the other, or less than the
inverse."""
LEAST = 16
"""The least number of values that must fit a number format before it is assumed."""


def percentile_99(ratios: np.ndarray) -> float:
    """The 99th percentile of ratios (T,), T > 0: one of the ratios, because interpolation beside an
    infinite one gives NaN. (torch's quantile takes at most 2²⁴ numbers.)"""
    return float(np.quantile(ratios, 0.99, method="inverted_cdf"))


def ratio_sums(
    pair: str, top: np.ndarray, bottom: np.ndarray, starts: np.ndarray, scored: np.ndarray
) -> Columns:
    """Columns of `actions` for r = exp(top − bottom), log-probabilities of tokens.

    pair: the part of the columns' names that names the two policies. starts: each action's first
    token. scored: the actions in which both were measured; other actions are masked. NaN and Inf
    pass.
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


def rounding_error_sq(values: np.ndarray) -> np.ndarray | None:
    """The expected squared rounding error of each of these log-probabilities (T,), nats²: u²/12,
    where u is the spacing of their number format at that value. None for formats other than
    bfloat16 and half precision, or if there are fewer than LEAST values."""
    numbers = values[np.isfinite(values) & (values != 0)].astype(np.float32)
    bits = _significant_bits(numbers)
    if bits is None:
        return None
    _, exponent = np.frexp(np.where(np.isfinite(values), values, 0))
    return np.where(values == 0, 0.0, np.ldexp(1.0, exponent - bits)) ** 2 / 12


def _significant_bits(numbers: np.ndarray) -> int | None:
    if len(numbers) < LEAST:
        return None
    if not (numbers.view(np.uint32) & 0xFFFF).any():
        return 8  # bfloat16
    with np.errstate(over="ignore"):
        half = numbers.astype(np.float16).astype(np.float32)
    return 11 if (half == numbers).all() else None
