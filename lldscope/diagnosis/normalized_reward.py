"""The reward on a scale that begins at 0, so that a share of its best has a meaning.

"Half of its best" means nothing for rewards of −1 and 1, or with penalties.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-6
LEAST = -1.0  # assumed minimum of a reward that can be negative, until a lower one is seen

Series = NDArray[np.float64]


def normalized_reward(reward: Series, success: Series) -> tuple[Series, int | None]:
    """(series, row from which it is no longer the raw reward; None if it always is). Causal.

    `reward` is the mean reward and `success` the share of correct responses, one number per step,
    NaN where not measured. The series switches from the reward to the share of correct responses

    - at a mean under that share: a wrong response then counts less than 0, or a correct one less
      than 1;
    - at a new best after a mean under 0: the scale then begins below 0. Where the share was not
      measured, the series is the reward minus LEAST, or minus the lowest mean so far.

    A mean under 0 after the best is an ordinary fall.
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
