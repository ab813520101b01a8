"""The statistics of the report: small samples, so exact where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

CLEAR = 0.05
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % points of Student's t with 1 to 9 degrees of freedom."""


@dataclass(frozen=True)
class Paired:
    """Differences over seeds, first minus second."""

    n: int
    mean: float
    low: float  # 95 % t interval of the mean
    high: float
    above: int  # seeds in which the first is higher
    p_above: float  # one-sided, of "the first is higher"
    p_below: float

    @property
    def p(self) -> float:
        """One-sided, of the side on which the mean lies."""
        return min(self.p_above, self.p_below)

    @property
    def verdict(self) -> int:
        """1: the first is clearly higher, −1: clearly lower, 0: neither can be claimed."""
        if self.p > CLEAR:
            return 0
        return 1 if self.p_above < self.p_below else -1


def paired(differences: Sequence[float]) -> Paired:
    """The exact sign-flip test of the mean difference, and a t interval, for 2 to 10 seeds.

    Under "no difference" each difference is as likely with the other sign: p is the share of the
    2ⁿ sign patterns whose mean is at least as high. With n seeds it cannot go under 2⁻ⁿ. The
    interval takes the differences as normal; a bootstrap of so few is too narrow.
    """
    d = np.asarray(differences, dtype=np.float64)
    flips = np.array(list(product((1.0, -1.0), repeat=len(d))))
    means = flips @ d / len(d)
    half = T975[len(d) - 2] * float(d.std(ddof=1)) / len(d) ** 0.5
    slack = 1e-12  # sums of the same numbers in another order
    return Paired(
        n=len(d),
        mean=float(d.mean()),
        low=float(d.mean()) - half,
        high=float(d.mean()) + half,
        above=int((d > 0).sum()),
        p_above=float((means >= d.mean() - slack).mean()),
        p_below=float((means <= d.mean() + slack).mean()),
    )


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's p-values, corrected for the number of tests (Scand. J. Stat. 6, 1979)."""
    result = [1.0] * len(ps)
    reached = 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        reached = max(reached, min(1.0, (len(ps) - rank) * ps[i]))
        result[i] = reached
    return result
