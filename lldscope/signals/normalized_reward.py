"""What a loss is told as a share of: the reward, counted from the least it can be.

"Half of its best" means something only where 0 is the least there is. Rewards of −1 and 1, or with
penalties, are not of that kind.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-6
LEAST = -1.0  # of a reward that can be negative, until a step has shown less

Series = NDArray[np.float64]


def normalized_reward(reward: Series, success: Series) -> tuple[Series, int | None]:
    """(series, row from which on it is not the reward as it is; None if it always is).

    `reward` is the mean reward and `success` the share of correct responses, one number per step,
    NaN where not measured. A mean under the share of correct responses shows that wrong ones are
    paid less than 0, or right ones less than 1: from there on the series is that share. A mean
    under 0 that was followed by a new best shows that the scale goes below 0: from that best on the
    series is that share, too, and where it was not measured the reward less LEAST, or less the
    lowest mean so far. A mean under 0 after the best is a fall like any other. Causal.
    """
    with np.errstate(invalid="ignore"):
        best = np.fmax.accumulate(np.concatenate([[-np.inf], reward]))[:-1]
        after = np.concatenate([[False], np.logical_or.accumulate(reward < 0.0)])[:-1]
        rows = np.flatnonzero((reward < success - ROUNDING) | (after & (reward > best)))
        if not len(rows):
            return reward, None
        first = int(rows[0])
        if np.isnan(success[first]):
            rest = (reward - np.fmin(np.fmin.accumulate(reward), LEAST))[first:]
        else:
            rest = success[first:]
    return np.concatenate([reward[:first], rest]), first
