"""The outcome of a run: whether its reward rises, has fallen, or is lost. Causal.

A reward is judged by its means over several windows, so that a sudden fall is seen at once and a
slow one through the noise. The best of many noisy means is too high. So a fall counts only where a
mean has been under a best that ended before it by more than the noise of the difference explains,
for all pairs of means of the run at once, and for LASTS steps; and shares are taken of the best
less its bias. The noise is that of the steps before the mean, because a fall enlarges the noise of
its own steps. The level holds for steps that are independent of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from . import detectors as d
from .evidence import SMOOTH, Evidence, Flags, on_measured, once

WINDOWS = (5, 10, 20, 40, 80, 160)  # steps of the means
LEVEL = 0.01  # probability that independent steps that do not fall are ever said to have fallen
LASTS = 5  # steps that a fall lasts before it is one
TREND = 20  # measured steps over which a trend is a straight line
NOISE_CONFIDENCE = 1.645  # the noise is the upper end of its 95 % interval
BIAS = 2.0  # standard errors by which the best of some dozens of noisy means is too high
RISES = 2.0  # standard errors between two neighbouring means of a window
FLAT = 1.0  # standard errors: a smaller difference is none
RISE_WINDOWS = (10, 20)  # steps: longer ones would see a rise long after its end
HALF = 0.5  # of the best: under it the outcome is being lost
DECLINED = 0.8  # of the best: under it the reward has declined
LEARNS_WITHIN = 100  # steps after which a reward should have risen
CLEAR_RISE = 2.0  # standard errors


@dataclass(frozen=True)
class Outcome:
    """One entry per row, repeated where the reward was not measured; NaN while it is unknown.

    level: mean of the last SMOOTH steps. best: the best mean so far, less its bias.
    floor: the lowest level before the best, or 0 if none was lower. error: standard error of level.
    fallen: a mean is lastingly under the best beyond noise. rises: the reward clearly rises.
    """

    level: d.Series
    best: d.Series
    floor: d.Series
    error: d.Series
    fallen: Flags
    rises: Flags

    @property
    def share(self) -> d.Series:
        """The level as a share of the best, both above the floor."""
        height = self.best - self.floor
        return np.where(height > 0, (self.level - self.floor) / height, np.nan)

    def under(self, share: float) -> Flags:
        """The level is under this share of the best, and has fallen beyond its noise."""
        with np.errstate(invalid="ignore"):
            return self.fallen & (self.share < share)


def reward_series(e: Evidence) -> d.Series:
    """The mean reward of each step; without one the share of correct responses."""
    reward = e.column("reward")
    return e.column("success") if np.isnan(reward).all() else reward


@once
def outcome(e: Evidence) -> Outcome:
    """The outcome at each row. New data (`e.data`) forget the best, the floor and the noise."""
    return outcome_of(e, reward_series(e))


def outcome_of(e: Evidence, series: d.Series) -> Outcome:
    """The same of another series that should not fall, such as a component of the reward."""
    with np.errstate(invalid="ignore"):
        answer = on_measured(series, lambda values: _judge(values, e), e.data, series=6)
        return Outcome(*answer[:4], *(answer[4:] > 0))


def _judge(values: d.Series, e: Evidence) -> d.Series:
    """Level, best, floor, error, and 1 where it has fallen or rises, of the values: (6, N)."""
    windows = sorted({e.cadence.rows(steps) for steps in WINDOWS})
    smooth, shortest = e.cadence.rows(SMOOTH), windows[0]
    noise = _noise(values)  # of a mean of n rows: noise / n
    has_noise = ~np.isnan(noise)
    if has_noise.any():  # the first estimate stands for the rows before it, seen from later ones
        noise[: int(np.argmax(has_noise))] = noise[has_noise][0]
    z = _quantiles(len(values), smooth)
    level = d.trailing_mean(values, smooth, shortest)
    means = {w: d.trailing_mean(values, w, w) for w in windows}
    highest = {w: _row_of_highest(mean) for w, mean in means.items()}
    best, beyond = np.full(len(values), np.nan), np.zeros(len(values), dtype=bool)
    for w, row in highest.items():
        best = np.fmax(best, means[w][row] - BIAS * np.sqrt(noise[row] / w))
        for recent, mean in means.items():
            # The long mean of a rising reward is under that of its last steps, so the best ends
            # before the recent mean begins, and so do the steps that the noise is of.
            fall = d.shifted(means[w][row], recent) - mean
            beyond |= fall > z * np.sqrt(d.shifted(noise, recent) * (1 / w + 1 / recent))
    drops = d.consecutive(beyond & has_noise) >= e.cadence.rows(LASTS)
    rises = np.zeros(len(values), dtype=bool)
    for w in {e.cadence.rows(steps) for steps in RISE_WINDOWS}:
        mean = d.trailing_mean(values, w, w)
        rises |= mean - d.shifted(mean, w) > RISES * np.sqrt(2 * d.shifted(noise, w) / w)
    error = np.sqrt(noise / smooth)
    floor = np.fmin(np.fmin.accumulate(level)[highest[smooth]], 0.0)
    # A reward under 0 has a scale only once it has clearly risen from its floor.
    best[~has_noise | ((floor < 0) & (best <= floor + z * np.sqrt(2) * error))] = np.nan
    return np.stack([level, best, floor, error, drops, rises & has_noise])


def _noise(values: d.Series) -> d.Series:
    """The upper end of the confidence interval of `detectors.noise_of_means`: with few steps the
    estimate may be far too low (Wilson and Hilferty 1931, of a χ² distribution). A trend is no
    noise, so the median of the last TREND entries is taken off first."""
    n = np.clip(np.arange(len(values)), d.NOISE_LEAST, d.NOISE_STEPS)
    lower = (1 - 2 / (9 * n) - NOISE_CONFIDENCE * np.sqrt(2 / (9 * n))) ** 3
    return np.asarray(d.noise_of_means(values, TREND) / lower)


def _row_of_highest(mean: d.Series) -> np.ndarray:
    """For each row, the row of the highest mean up to it."""
    highest = np.fmax.accumulate(mean)
    new = np.concatenate([[True], ~(highest[1:] <= highest[:-1])])  # also after the first NaN
    return np.asarray(np.maximum.accumulate(np.where(new, np.arange(len(mean)), 0)))


def _quantiles(n: int, smooth: int) -> d.Series:
    """z for each of `n` rows: of LEVEL shared by all pairs (Bonferroni) of means, as many for each
    of the WINDOWS as means of SMOOTH steps do not overlap."""
    means = np.maximum(np.arange(1, n + 1) // smooth, 1) * len(WINDOWS)
    pairs = means * (means - 1) // 2
    numbers, at = np.unique(pairs, return_inverse=True)
    return np.array([NormalDist().inv_cdf(1 - LEVEL / k) for k in numbers.tolist()])[at]


@once
def declined(e: Evidence) -> Flags:
    """The reward is under DECLINED of its best, beyond its noise."""
    return outcome(e).under(DECLINED)


@once
def halved(e: Evidence) -> Flags:
    """The reward is under HALF of its best, beyond its noise."""
    return outcome(e).under(HALF)


class Rise(NamedTuple):
    """Whether the reward of the `last` steps is clearly above that of the `first`."""

    clear: bool
    first: int
    last: int


def rise(e: Evidence) -> Rise | None:
    """Whether the reward has risen since the data last changed; None before LEARNS_WITHIN steps."""
    values = reward_series(e)[int(max(e.data, default=0)) :]
    values = values[~np.isnan(values)]
    first, last = e.cadence.rows(SMOOTH), e.cadence.rows(40, SMOOTH)
    if len(values) < max(e.cadence.rows(LEARNS_WITHIN), first + last):
        return None
    gain = values[-last:].mean() - values[:first].mean()
    least = CLEAR_RISE * np.sqrt(d.noise_of_means(values)[-1] * (1 / first + 1 / last))
    if not np.isfinite(least):
        return None
    return Rise(bool(gain > least), first * e.cadence.stride, last * e.cadence.stride)


DEAD_STEPS = 20  # steps without any change of the reward


def trend(e: Evidence) -> str:
    """The course of the reward in a word; empty where too little of it was measured."""
    rewards = e.column("reward")
    rewards = rewards[np.isfinite(rewards)][-DEAD_STEPS:]
    if len(rewards) < DEAD_STEPS:
        return ""
    if rewards.max() == rewards.min():
        return "dead"
    if outcome(e).fallen[-1]:
        return "falling"
    change = rise(e)
    return "" if change is None else "improving" if change.clear else "flat"
