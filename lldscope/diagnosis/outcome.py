"""The outcome of a run: whether its reward rises, has fallen, or is lost. Causal.

A reward is judged by its means over several windows, so that a sudden fall is seen at once and a
slow one through the noise. The best of many noisy means is biased upwards. So a fall counts only
if, for LASTS steps, a mean is below an earlier best by more than the noise of the difference
explains, for all pairs of means of the run at once; and shares refer to the best less its bias. The
noise comes from the steps before the mean, because a fall enlarges the noise of its own steps. It
is larger than the noise of independent steps if means that are a lag apart differ by more
(`detectors.swings`), and until that can be tested. No single step decides: means leave out the
lowest step when looking for a fall, and the highest when looking for the best. A run that has
fallen and recovered before, as in a cycle of harder and easier questions, is judged against such
falls as well.

A reward that stays at its lowest, less than half of the mean before, is gone, even if the steps
before were too few or too noisy for means. If k of the first i of n steps are above the lowest, and
no later step is, then the probability of this for steps in any order is C(i, k) / C(n, k).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import lgamma, log
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import detectors as d
from .evidence import SMOOTH, Evidence, Flags, Log, Rows, is_observed, on_measured, once

WINDOWS = (5, 10, 20, 40, 80, 160)  # steps of the means
LEVEL = 0.01  # probability that independent steps that do not fall are ever said to have fallen
LASTS = 5  # steps that a fall lasts before it is one
ALIKE = 2000  # steps from whose correlation follows how many of them count as one
NEARLY, SLIPS = 0.85, 2  # × the margin, and steps: enough if another sign confirms the fall
TREND = 20  # measured steps over which a trend is a straight line
NOISE_CONFIDENCE = 1.645  # the noise is the upper end of its 95 % interval
BIAS = 2.0  # standard errors by which the best of some dozens of noisy means is too high
RISES = 2.0  # standard errors between two neighbouring means of a window
FLAT = 1.0  # standard errors: smaller differences do not count
RISE_WINDOWS = (10, 20)  # steps: longer ones would see a rise long after its end
SHARP = 0.05  # of the best: with a smaller error, a mean over the shortest window is the level
RECOVERED = 0.8  # of a fall: once so much is made up, such falls are usual in the run
DEEPER = 1.25  # × the largest recovered fall: deeper ones are new
UNRISEN = 4.0  # × the largest rise that noise allows, until a rise is beyond its noise
SIZES = 3.0  # × the size of the best, until then
HALF = 0.5  # of the best: below it the outcome is being lost
DECLINED = 0.8  # of the best: below it the reward has declined
CONFIRMED = 0.75  # of the best: below it the outcome is being lost if another sign confirms it
SOLVED = 0.95  # of the responses are right
LEARNS_WITHIN = 100  # steps after which a reward should have risen
CLEAR_RISE = 2.0  # standard errors


@dataclass(frozen=True)
class Outcome:
    """One entry per row, repeated on rows without a reward; NaN while unknown.

    is_gone: more of the last steps are at the lowest than chance explains (`_stays_lowest`). level:
    mean of the last SMOOTH steps, or of fewer if `is_sharp`; error: its standard error. best: the
    best mean so far, less its bias. height: the denominator of a loss (`_height`). fallen: a mean
    is lastingly below the best beyond noise. slipping: the same with NEARLY of the noise, for fewer
    steps. unusual: the level is below the best by more than earlier recovered falls. rises: the
    reward clearly rises.
    """

    level: d.Series
    error: d.Series
    best: d.Series
    height: d.Series
    is_sharp: Flags
    fallen: Flags
    slipping: Flags
    unusual: Flags
    rises: Flags
    is_gone: Flags

    @property
    def floor(self) -> d.Series:
        """The reward that counts as nothing: 0 if no reward is negative."""
        return self.best - self.height

    def steps(self, e: Evidence, row: int) -> int:
        """The number of steps in the level's mean at a row."""
        return e.cadence.spans(WINDOWS[0] if self.is_sharp[row] else SMOOTH)

    @property
    def share(self) -> d.Series:
        """The share of the best that is left: 1 less the loss over `height`."""
        with np.errstate(invalid="ignore", divide="ignore"):  # rewards that are all 0
            share = np.where(self.height > 0, 1 - (self.best - self.level) / self.height, np.nan)
        return np.where(self.is_gone, 0.0, share)

    def under(self, share: float) -> Flags:
        """The level is below this share of the best, beyond noise and beyond falls that the run has
        recovered from."""
        with np.errstate(invalid="ignore"):
            return self.fallen & self.unusual & (self.share < share)


def reward_series(e: Log) -> d.Series:
    """The mean reward of each step; without rewards, the share of correct responses."""
    return e.column(reward_signal(e))


def reward_signal(e: Log) -> str:
    """The signal that serves as the outcome."""
    only_success = is_observed(e, "success") and not is_observed(e, "reward")
    return "success" if only_success else "reward"


@once
def outcome(e: Evidence) -> Outcome:
    """The outcome at each row. New data (`e.data`) reset the best, the lowest and the noise."""
    return _outcome(e, reward_series(e))


@once
def outcome_of(e: Evidence, name: str) -> Outcome:
    """The same for another signal that should not fall, such as a component of the reward."""
    return _outcome(e, e.column(name))


def _outcome(e: Evidence, series: d.Series) -> Outcome:
    return d.fields_on_measured(Outcome, series, lambda values: _judge(values, e), e.data)


def _judge(values: d.Series, e: Evidence) -> tuple[NDArray[Any], ...]:
    """The fields of an Outcome at the measured rows."""
    windows = sorted({e.cadence.rows(steps) for steps in WINDOWS})
    smooth, shortest = e.cadence.rows(SMOOTH), windows[0]
    number = d.numbered(values)
    measured = d.noise_of_means(values, TREND)  # of a mean of n rows: noise / n
    noise = measured / _underestimate(number)
    has_noise = ~np.isnan(noise)
    # The first estimate stands for the rows before it, seen from later ones.
    first = d.last(noise, has_noise & (d.total(has_noise) == 1))

    def estimate(earlier: d.Series) -> d.Series:
        return np.where(np.isnan(earlier), first, earlier)

    z = _quantiles(number, smooth)
    means = {w: d.trailing_mean(values, w, w) for w in windows}
    mean_level = d.trailing_mean(values, smooth, shortest)
    lowest = d.accumulated(np.fmin, mean_level)
    tops = {w: _without_one(values, w, np.max) for w in windows}
    lags = sorted({e.cadence.rows(lag) for lag in d.LAGS})
    swings = _swings(means, lags)
    best, beyond, beside = np.full((3, len(values)), np.nan)  # the last two in units of the margin
    highest = {w: d.at_highest(top, noise, lowest) for w, top in tops.items()}
    for w, (top, its_noise, _) in highest.items():
        best = np.fmax(best, top - BIAS * np.sqrt(estimate(its_noise) / w))
    for recent in windows:
        # The long mean of a rising reward is below the mean of its last steps, so the steps of the
        # best and of the noise end before those of the recent mean.
        mean = _without_one(values, recent, np.min)
        before = estimate(d.shifted(noise, recent))
        untested = before * d.untested(np.maximum(number - recent, 0), lags)
        variance = {w: np.fmax(untested, d.shifted(x, recent)) / w for w, x in swings.items()}
        for w, (top, *_) in highest.items():
            fall = d.shifted(top, recent) - mean
            independent = before * (1 / w + 1 / recent)
            # Where there is no noise at all, any fall is beyond it.
            none = np.where(fall > 0, np.inf, 0.0)
            over, over_beside = (
                np.where(x > 0, fall / (z * np.sqrt(x)), none)
                for x in (variance[w] + variance[recent], independent)
            )
            beyond, beside = np.fmax(beyond, over), np.fmax(beside, over_beside)
    best[~has_noise] = np.nan
    floor = np.fmin(highest[smooth][2], 0.0)
    height = _height(best, floor, z * np.sqrt(2 * noise / smooth))
    is_sharp = np.sqrt(noise / shortest) <= SHARP * height
    level = np.where(is_sharp, means[shortest], mean_level)
    error = np.sqrt(noise / np.where(is_sharp, shortest, smooth))
    fallen, slipping = (
        d.consecutive(has_noise & over) >= e.cadence.rows(steps)
        for over, steps in ((beyond > 1, LASTS), (beside > NEARLY, SLIPS))
    )
    by_noise = 2 * BIAS * np.sqrt(measured / smooth)
    unusual = best - level > DEEPER * _largest_recovered(mean_level, np.nan_to_num(by_noise))
    rises = np.zeros(len(values), dtype=bool)
    for w in sorted({e.cadence.rows(steps) for steps in RISE_WINDOWS}):
        before = estimate(d.shifted(noise, w))
        rises |= means[w] - d.shifted(means[w], w) > RISES * np.sqrt(2 * before / w)
    return (
        level, error, best, height, is_sharp, fallen, slipping, unusual, rises & has_noise,
        _stays_lowest(values),
    )


def _swings(means: Mapping[int, d.Series], lags: Collection[int]) -> dict[int, d.Series]:
    """The variance of each window's mean, times its length, for dependent steps (for example few
    questions in the order of the data): the largest over its own and shorter windows."""
    longest, out = np.array(np.nan), {}
    for w, mean in means.items():
        longest = np.fmax(longest, w * d.swings(mean, [lag for lag in lags if lag >= w]))
        out[w] = longest
    return out


def _without_one(values: d.Series, window: int, extreme: Callable[..., d.Series]) -> d.Series:
    """Means of the last `window` entries without the lowest or the highest, if there are enough."""
    if window < 4:
        return d.trailing_mean(values, window, window)
    rest = window - 1
    return d.by_window(values, window, lambda x: (x.sum(axis=1) - extreme(x, axis=1)) / rest)


def _largest_recovered(level: d.Series, by_noise: d.Series) -> d.Series:
    """The largest fall so far that the level has made up again, to RECOVERED, if it was larger than
    noise explains. (The ends of a fall are the highest and the lowest of many means.)"""
    out = np.zeros(len(level))
    state = d.cell()
    high, low, usual = state.value or (np.nan, np.nan, 0.0)
    for t, now in enumerate(level.tolist()):
        if not now <= high:
            high = low = now
        low = min(low, now)
        if now - low >= RECOVERED * (high - low) > 0:
            if high - low > by_noise[t]:
                usual = max(usual, high - low)
            high = low = now
        out[t] = usual
    state.value = high, low, usual
    return out


def _stays_lowest(values: d.Series) -> Flags:
    """Entries in a stretch at the lowest value so far, under HALF of the mean before it, that is
    longer than chance explains for entries in any order; the entries at which it may begin share
    LEVEL. Correlated entries count as fewer, by the last ALIKE entries before the stretch."""
    out, numbers = np.zeros(len(values), dtype=bool), d.numbered(values).tolist()
    first = numbers[0] if numbers else 0
    series = d.preceded(values, ALIKE + LASTS)
    state = d.cell()
    # `above` of the `start` entries before the stretch, whose sum is `before`, are above `lowest`;
    # of them `alike` count as one.
    lowest, above, start, alike, before, total = state.value or (np.inf, 0, 0, 1.0, 0.0, 0.0)
    for n, value in enumerate(values.tolist(), first + 1):
        if value < lowest:  # all before are above
            lowest, above, start, alike, before = value, n - 1, n - 1, 0.0, total
        elif value > lowest:
            above, start, alike, before = above + 1, n, 0.0, total + value
        total += value
        if n - start >= LASTS and start * lowest <= HALF * max(before, 0.0):
            if not alike:
                end = start - first + ALIKE + LASTS
                alike = _alike(series[end - min(start, ALIKE) : end]) if start else 1.0
            i, k, all_of = (x / alike for x in (start, above, n))
            chance = _log_choose(i, k) - _log_choose(all_of, k)
            out[n - 1 - first] = chance < log(LEVEL / n)
    state.value = lowest, above, start, alike, before, total
    return out


def _alike(values: d.Series) -> float:
    """The number of correlated entries that count as one: 1 + 2 Σ ρ over the first lags whose
    correlation (after removing a straight line) exceeds its error."""
    n = len(values)
    x = np.arange(n) - (n - 1) / 2
    rest = values - values.mean()
    rest = rest - x * (x @ rest) / max(x @ x, 1.0)
    total, square = 1.0, float(rest @ rest)
    for lag in range(1, n // 3):
        rho = float(rest[lag:] @ rest[:-lag]) / square if square > 0 else 0.0
        if rho <= d.PHI_ERRORS / n**0.5:
            break
        total += 2 * rho
    return total


def _log_choose(n: float, k: float) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _height(best: d.Series, floor: d.Series, noise: d.Series) -> d.Series:
    """The denominator of a loss: the best, if no reward is negative. Otherwise the rise from the
    lowest level before, or the size of the best if that is larger; several times either until the
    rise exceeds its noise, because until then the scale is unknown."""
    rise, size = best - floor, np.abs(best)
    unclear = np.fmax(UNRISEN * (rise + noise), SIZES * size)
    return np.where(floor < 0, np.where(rise > noise, np.fmax(rise, size), unclear), best)


def upper_noise(values: d.Series) -> d.Series:
    """The upper end of the confidence interval of `detectors.noise_of_means`. The median of the
    last TREND entries is subtracted first, because a trend is not noise."""
    return d.noise_of_means(values, TREND) / _underestimate(d.numbered(values))


def _underestimate(number: Rows) -> d.Series:
    """The share of the true noise that its estimate may be as low as, for so many rows (Wilson and
    Hilferty 1931, for a χ² distribution)."""
    steps = np.clip(number, d.NOISE_LEAST, d.NOISE_STEPS)
    share = (1 - 2 / (9 * steps) - NOISE_CONFIDENCE * np.sqrt(2 / (9 * steps))) ** 3
    return np.asarray(share)


def _quantiles(number: Rows, smooth: int) -> d.Series:
    """z for so many rows: LEVEL shared by all pairs of means (Bonferroni), where each of the
    WINDOWS has as many means as means of SMOOTH steps do not overlap."""
    means = np.maximum((number + 1) // smooth, 1) * len(WINDOWS)
    pairs = means * (means - 1) // 2
    numbers, at = np.unique(pairs, return_inverse=True)
    return np.array([NormalDist().inv_cdf(1 - LEVEL / k) for k in numbers.tolist()])[at]


@once
def slips(e: Evidence) -> Flags:
    """The reward is below CONFIRMED of its best, as soon as it shows; for use with another sign."""
    o = outcome(e)
    return o.slipping & o.unusual & (o.share < CONFIRMED)


@once
def solved(e: Evidence) -> Flags:
    """Nearly all responses are right, by the share of correct responses or by rewards from 0 to
    1."""
    values = e.column("success" if is_observed(e, "success") else "reward")
    smooth = e.cadence.rows(SMOOTH)
    level = on_measured(values, lambda v: d.trailing_mean(v, smooth, smooth), e.data)
    outside = d.accumulated(np.logical_or, (values < 0) | (values > 1))
    return (level >= SOLVED) & ~outside


@once
def halved(e: Evidence) -> Flags:
    """The reward is below HALF of its best, beyond its noise, or gone."""
    return outcome(e).is_gone | (outcome(e).fallen & (outcome(e).share < HALF))


class Rise(NamedTuple):
    """Whether the reward of the `last` steps is clearly above that of the `first` steps."""

    clear: bool
    first: int
    last: int


class _Gain(NamedTuple):
    """Rewards since the last change of data: number of steps, gain of the last over the first, and
    the smallest clear gain."""

    steps: d.Series
    gain: d.Series
    least: d.Series


@once
def _gain(e: Evidence) -> _Gain:
    first, last = e.cadence.rows(SMOOTH), e.cadence.rows(40, SMOOTH)

    def statistics(values: d.Series) -> list[NDArray[Any]]:
        number = d.numbered(values) + 1
        start = d.from_first(d.trailing_mean(values, first, first), first)
        gain = d.trailing_mean(values, last, last) - start
        least = CLEAR_RISE * np.sqrt(d.noise_of_means(values) * (1 / first + 1 / last))
        return [number, gain, least]

    return d.fields_on_measured(_Gain, reward_series(e), statistics, e.data)


def rise(e: Evidence) -> Rise | None:
    """Whether the reward has risen since the last change of data; None if it has not within fewer
    than LEARNS_WITHIN steps."""
    first, last = e.cadence.rows(SMOOTH), e.cadence.rows(40, SMOOTH)
    number, gain, least = (x[-1] if len(x) else np.nan for x in _gain(e))
    if not number >= first + last:
        return None
    is_early = number < e.cadence.rows(LEARNS_WITHIN)
    if not np.isfinite(least) or (is_early and not gain > least):
        return None
    return Rise(bool(gain > least), first * e.cadence.stride, last * e.cadence.stride)


DEAD_STEPS = 20  # steps without any change of the reward


class _Sameness(NamedTuple):
    """Count of rewards, length of the current run of equal rewards, its value, and the highest and
    lowest so far."""

    number: d.Series
    same: d.Series
    now: d.Series
    highest: d.Series
    lowest: d.Series


@once
def _sameness(e: Evidence) -> _Sameness:
    def statistics(values: d.Series) -> list[NDArray[Any]]:
        same = d.consecutive(values == d.shifted(values, 1)) + 1
        so_far = [d.accumulated(of, values) for of in (np.fmax, np.fmin)]
        return [d.numbered(values) + 1, same, values, *so_far]

    return d.fields_on_measured(_Sameness, e.column("reward"), statistics)


def trend(e: Evidence) -> str:
    """The course of the reward in a word; empty if too little was measured."""
    number, same, now, highest, lowest = (x[-1] if len(x) else np.nan for x in _sameness(e))
    if not number >= DEAD_STEPS:
        return ""
    is_constant = same >= DEAD_STEPS
    if is_constant and now == lowest and (lowest < highest or lowest <= 0):
        return "dead"
    change, has_lost = rise(e), outcome(e).share[-1] < DECLINED
    is_lower = outcome(e).fallen[-1] or slips(e)[-1]
    if is_lower and (has_lost or change is None or not change.clear):
        return "falling"
    if is_constant:
        return "constant"
    return "" if change is None else "improving" if change.clear else "flat"
