"""The rules, fixed before the runs, by which a run counts as collapsed or declined."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from lldscope.evaluation.scoring import fall_row, moving_mean

HALF = 0.5  # of the best trailing mean so far
DECLINED = 0.75  # of the best trailing mean

Outcome = Literal["collapsed", "declined", "held"]


def collapse_row(reward: ArrayLike) -> int | None:
    """First row of the first ten in a row whose ten-step mean of the reward is under HALF of the
    best such mean up to that row; None if the run did not collapse.

    `reward` is the mean reward of each step, one row per step.
    """
    return fall_row(reward, HALF)


def outcome(reward: ArrayLike) -> Outcome:
    """`collapsed` by the rule above; `declined` if the smoothed reward ends under DECLINED of its
    best without that; else `held`."""
    if collapse_row(reward) is not None:
        return "collapsed"
    means = moving_mean(reward)
    values = means[~np.isnan(means)]
    return "declined" if len(values) and values[-1] < DECLINED * values.max() else "held"
