"""The rules, fixed before the runs, by which a run counts as collapsed or declined."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

SMOOTH = 10  # steps of the trailing mean of the reward
HALF = 0.5  # of the best trailing mean so far
FOR = 10  # steps in a row
DECLINED = 0.75  # of the best trailing mean

Outcome = Literal["collapsed", "declined", "held"]


def smoothed(reward: ArrayLike) -> NDArray[np.float64]:
    """Mean over the last SMOOTH steps, this one included; NaN before there are that many, and where
    one of them is NaN."""
    values = np.asarray(reward, dtype=np.float64)
    means = np.full(len(values), np.nan)
    if len(values) >= SMOOTH:
        windows = np.lib.stride_tricks.sliding_window_view(values, SMOOTH)
        means[SMOOTH - 1 :] = windows.mean(axis=1)
    return means


def collapse_row(reward: ArrayLike) -> int | None:
    """First row of the first FOR in a row whose smoothed reward is under HALF of the best smoothed
    reward up to that row; None if the run did not collapse.

    `reward` is the mean reward of each step, one row per step.
    """
    means = smoothed(reward)
    best = np.fmax.accumulate(means) if len(means) else means
    low = means < HALF * best
    held = 0
    for row, is_low in enumerate(low):
        held = held + 1 if is_low else 0
        if held == FOR:
            return row - FOR + 1
    return None


def outcome(reward: ArrayLike) -> Outcome:
    """`collapsed` by the rule above; `declined` if the smoothed reward ends under DECLINED of its
    best without that; else `held`."""
    if collapse_row(reward) is not None:
        return "collapsed"
    means = smoothed(reward)
    seen = means[~np.isnan(means)]
    return "declined" if len(seen) and seen[-1] < DECLINED * seen.max() else "held"
