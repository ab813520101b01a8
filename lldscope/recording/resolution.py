"""Rounding step of the recorded log-probabilities: a trainer that scores in bfloat16 gives
multiples of 1/32 nat between −8 and −4."""

from __future__ import annotations

import numpy as np

LEAST = 16
"""Numbers that must all be of a format before it counts as theirs."""


def rounding_error_sq(values: np.ndarray) -> np.ndarray | None:
    """The squared rounding error to expect in each of these log-probabilities (T,), nats²: u²/12,
    where u is the spacing of their number format there. None where it is finer than that of
    bfloat16 and half precision, or where there are too few to tell."""
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
