"""How much of a rollout repeats itself, from its token ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

N = 4  # tokens of an n-gram
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: spreads the codes


def repeated_share(ids: Sequence[Sequence[int]], action: np.ndarray) -> np.ma.MaskedArray:
    """(N,) share of a rollout's 4-grams that repeat an earlier one: 1 − distinct / all, seq-rep-4
    (Welleck et al., arXiv 1908.04319), over 4-grams within one action. Masked for a rollout without
    4-grams.

    ids: token ids of each completion. action (N, T): number of each token's action, −1 off the
    actions.
    """
    share = np.full(len(action), np.nan)
    for i, (row, numbers) in enumerate(zip(ids, action, strict=True)):
        codes = _codes(np.asarray(row, dtype=np.int64), numbers[: len(row)])
        if len(codes):
            codes.sort()  # several times faster than np.unique for so few
            share[i] = 1.0 - (1 + np.count_nonzero(codes[1:] != codes[:-1])) / len(codes)
    return np.ma.masked_invalid(share)


def _codes(ids: np.ndarray, action: np.ndarray) -> np.ndarray:
    """A 64-bit number for each n-gram within one action; both (T,)."""
    n = max(len(action) - N + 1, 0)
    tokens, inside = ids.astype(np.uint64), action[:n] >= 0
    out = np.zeros(n, np.uint64)
    for k in range(N):
        inside &= action[k : k + n] == action[:n]
        out = (out + tokens[k : k + n] + np.uint64(1)) * _ODD
        out ^= out >> np.uint64(29)
    return out[inside]
