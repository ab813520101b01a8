"""The decay test: do correct responses lose likelihood? One answer per step, causal in the rows.

If Δ is measured, it is a sequential test with a guaranteed false-alarm rate
(`detectors.e_detector`).

Without Δ, the level of `correct_logp` is compared with its best so far, by the noise of the steps
before. This is weaker evidence: the noise may change, and a level also falls for healthy reasons,
such as harder questions being solved.

`docs/research/decay-alarm.md` says how the test was chosen and how often it is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..core.numbers import percent
from . import detectors as d
from .detectors import floats

Basis = Literal["delta", "level"]

RUN_RATE = 0.05  # largest probability of a false alarm in a run of planned length
STALE = 50  # rows without Δ after which the level is tested instead, if it is measured
BASELINE = 40  # measured steps before the level is tested
SMOOTH = 5  # measured steps of the level's trailing mean
TREND = 20  # measured steps over which a trend is a straight line, and no noise
LEVEL_FLOOR = 0.2  # × the size of the level: a smaller fall is no decay


@dataclass(frozen=True)
class DecayTest:
    """The test at each row. It fires when `value` reaches `threshold`: on the basis "delta" the
    evidence and `arl`, on the basis "level" the fall and its limit in nats/token. Both are NaN
    without a basis."""

    arl: float
    value: d.Series
    threshold: d.Series
    basis: list[Basis | None]
    evidence: d.Series  # of the test on Δ, whatever the basis
    level_fall: d.Series  # nats/token below the best level since the last restart
    level_limit: d.Series  # NaN in the first BASELINE measured steps since then

    def guarantee(self, row: int = -1) -> str:
        """The guarantee in force at a row, as a sentence."""
        if not self.basis:
            return "no steps yet: nothing is tested"
        if self.basis[row] == "delta":
            return (
                f"on average at least {self.arl:,.0f} steps to a false alarm, and none in "
                f"{percent(1 - RUN_RATE)} of runs of {RUN_RATE * self.arl:,.0f} steps, as long as "
                "the expected Δ of a step's correct responses is not negative, or no more so than "
                "its correlation with the step before explains, and gains far above the usual "
                f"come as often as in the last {d.USUAL} steps"
            )
        if self.basis[row] is None:
            return (
                "nothing is tested: Δ was not measured, and the likelihood level in no more than "
                f"{BASELINE} steps"
            )
        return (
            f"on levels, an estimate and no guarantee: about {self.arl:,.0f} steps to a false "
            "alarm if the noise stays what it was and the level does not fall for a healthy "
            "reason, such as harder questions being solved"
        )


def test(
    signals: d.Columns,
    arl: float,
    restarts: Iterable[int] = (),  # noqa: PT028
) -> DecayTest:
    """Test `delta_correct`, or `correct_logp` if Δ is not measured.

    `arl` is the average run length to a false alarm, in steps. `restarts` are rows with a declared
    change (data, learning rate, a resume): from there the unit of Δ and the noise of the level are
    learnt anew. Evidence on Δ is not reset, because its null hypothesis depends on no baseline.
    """
    restarts = sorted(set(restarts))
    delta, level = floats(signals, "delta_correct"), floats(signals, "correct_logp")
    evidence = d.e_detector(d.loss_score(delta, restarts), arl)
    fall, limit = _level(level, arl, restarts)
    by_delta = _recently_measured(np.isfinite(delta))
    by_level = ~by_delta & ~np.isnan(limit)
    # If neither Δ nor a level is measured any more, the last evidence of Δ stands.
    by_delta |= ~by_level & (d.total(np.isfinite(delta)) > d.USUAL_LEAST)
    basis: list[Basis | None] = [
        "delta" if a else "level" if b else None for a, b in zip(by_delta, by_level, strict=True)
    ]
    return DecayTest(
        arl=arl,
        value=np.where(by_delta, evidence, np.where(by_level, fall, np.nan)),
        threshold=np.where(by_delta, arl, np.where(by_level, limit, np.nan)),
        basis=basis,
        evidence=evidence,
        level_fall=fall,
        level_limit=limit,
    )


def _recently_measured(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether Δ was measured often enough for a score, and within the last STALE rows."""
    return (d.total(mask) > d.USUAL_LEAST) & (d.consecutive(~mask) < STALE)


def _level(level: d.Series, arl: float, restarts: list[int]) -> tuple[d.Series, d.Series]:
    """Fall below the best so far, and its limit, separately between restarts. A row without a level
    repeats the previous limit."""

    def statistics(values: d.Series) -> d.Series:
        mean, number = d.trailing_mean(values, SMOOTH, SMOOTH), d.numbered(values)
        best, noise = _best(values, mean, number)
        limit = np.where(number < BASELINE, np.nan, _limit(values, noise, number, arl))
        return np.stack([best - mean, limit])

    resets = np.array(restarts, dtype=np.int64)
    fall, limit = d.on_measured(level, statistics, resets, series=2)
    return np.where(np.isnan(level), np.nan, fall), limit


def _best(values: d.Series, mean: d.Series, number: NDArray[np.int64]) -> list[d.Series]:
    """The best mean so far, and the noise before the fall from it, from at least BASELINE steps."""
    noise = d.noise_of_means(values, TREND)
    first = d.from_first(noise, BASELINE)
    best, then, row = d.at_highest(mean, noise, number.astype(float))
    return [best, np.where(row < BASELINE, first, then)]


def _limit(values: d.Series, noise: d.Series, number: NDArray[np.int64], arl: float) -> d.Series:
    """The fall that noise alone reaches once in `arl` steps. A level fluctuates by itself, so the
    limit is at least LEVEL_FLOOR of the level."""
    size = np.abs(d.trailing_median(values, BASELINE, 1))
    # Any of the means before may be the best: as many pairs as means that do not overlap.
    pairs = (number + 1) / SMOOTH + 1
    z = np.array([NormalDist().inv_cdf(1 - 1 / (max(arl, 2.0) * n)) for n in pairs.tolist()])
    return np.fmax(z * np.sqrt(2 * noise / SMOOTH), LEVEL_FLOOR * size)
