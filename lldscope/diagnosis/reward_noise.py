"""Whether the reward has fallen by more than its own noise explains.

The best of many noisy means is too high, and the worst too low. So the best is replaced by a lower
confidence bound, and the last mean by an upper one, both at once for all the means so far.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from . import detectors as d
from .evidence import SMOOTH, Evidence, Flags, on_measured, once

WINDOWS = (SMOOTH, 2 * SMOOTH, 4 * SMOOTH)  # steps of the means: a long fall is seen through noise
LEVEL = 0.01  # probability that any of the bounds of a run does not hold
LEARNS_WITHIN = 100  # steps after which a reward should have risen
CLEAR_RISE = 2.0  # standard errors


def error(e: Evidence, window: int) -> d.Series:
    """Standard error of a mean of the normalized reward over `window` steps, shape (T,)."""
    return np.asarray(np.sqrt(_noise(e) / e.cadence.rows(window)))


@once
def _noise(e: Evidence) -> d.Series:
    return on_measured(e.normalized_reward, d.noise_of_means, e.scales)


@once
def margin(e: Evidence, window: int = SMOOTH) -> d.Series:
    """Half the width of the confidence intervals of all `window`-step means so far, shape (T,).

    z standard errors, z the quantile of the normal distribution at LEVEL divided by the number of
    means of SMOOTH steps that do not overlap, and by the number of WINDOWS (Bonferroni).
    """
    smooth = e.cadence.rows(SMOOTH)
    quantiles = on_measured(e.normalized_reward, lambda v: _quantiles(len(v), smooth), e.scales)
    return error(e, window) * quantiles


def _quantiles(n: int, smooth: int) -> d.Series:
    """z for each of the first `n` measured rows."""
    means = np.maximum(np.arange(1, n + 1) // smooth, 1) * len(WINDOWS)
    numbers, at = np.unique(means, return_inverse=True)
    return np.array([NormalDist().inv_cdf(1 - LEVEL / k) for k in numbers.tolist()])[at]


@once
def best_at_least(e: Evidence) -> d.Series:
    """Lower confidence bound of the best mean so far, since the data last changed."""
    lower = np.fmax.reduce([_mean(e, window) - margin(e, window) for window in WINDOWS])
    return on_measured(lower, np.fmax.accumulate, e.scales)


@once
def has_fallen(e: Evidence) -> Flags:
    """The upper bound of a mean of the last steps is under the lower bound of the best."""
    upper = np.fmin.reduce([_mean(e, window) + margin(e, window) for window in WINDOWS])
    return np.asarray(upper < best_at_least(e))


def _mean(e: Evidence, window: int) -> d.Series:
    rows = e.cadence.rows(window)
    return on_measured(e.normalized_reward, lambda v: d.trailing_mean(v, rows, rows), e.scales)


class Rise(NamedTuple):
    """Whether the reward of the `last` steps is clearly above that of the `first`."""

    clear: bool
    first: int
    last: int


def rise(e: Evidence) -> Rise | None:
    """Whether the reward has risen since the data last changed; None before LEARNS_WITHIN steps."""
    start = int(max(e.scales, default=0))
    known = e.normalized_reward[start:]
    known = known[~np.isnan(known)]
    first, last = e.cadence.rows(SMOOTH), e.cadence.rows(WINDOWS[-1], SMOOTH)
    if len(known) < max(e.cadence.rows(LEARNS_WITHIN), first + last):
        return None
    gain = known[-last:].mean() - known[:first].mean()
    least = CLEAR_RISE * np.sqrt(_noise(e)[-1] * (1 / first + 1 / last))
    if not np.isfinite(least):
        return None
    return Rise(bool(gain > least), first * e.cadence.stride, last * e.cadence.stride)
