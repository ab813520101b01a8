"""The statistics of the report: small samples, so exact where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

RESAMPLES = 10_000
CLEAR = 0.05


@dataclass(frozen=True)
class Paired:
    """Differences over seeds, first minus second."""

    n: int
    mean: float
    low: float  # 95 % bootstrap percentile interval of the mean
    high: float
    above: int  # seeds in which the first is higher
    p_above: float  # one-sided, of "the first is higher"
    p_below: float

    @property
    def verdict(self) -> int:
        """1: the first is clearly higher, −1: clearly lower, 0: neither can be claimed."""
        if self.p_above <= CLEAR:
            return 1
        return -1 if self.p_below <= CLEAR else 0


def paired(differences: Sequence[float]) -> Paired:
    """The exact sign-flip test of the mean difference, and a bootstrap interval (seed 0).

    Under "no difference" each difference is as likely with the other sign: p is the share of the
    2ⁿ sign patterns whose mean is at least as high. With n seeds it cannot go under 2⁻ⁿ.
    """
    d = np.asarray(differences, dtype=np.float64)
    flips = np.array(list(product((1.0, -1.0), repeat=len(d))))
    means = flips @ d / len(d)
    draws = np.random.default_rng(0).integers(len(d), size=(RESAMPLES, len(d)))
    low, high = np.quantile(d[draws].mean(axis=1), (0.025, 0.975))
    slack = 1e-12  # sums of the same numbers in another order
    return Paired(
        n=len(d),
        mean=float(d.mean()),
        low=float(low),
        high=float(high),
        above=int((d > 0).sum()),
        p_above=float((means >= d.mean() - slack).mean()),
        p_below=float((means <= d.mean() + slack).mean()),
    )
