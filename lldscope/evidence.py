"""From the signals of a run to the series that phases and rules look at. Pure, no I/O, causal.

Every array has one entry per row of the signals; entry t uses rows up to t only, so a live answer
and a replayed one are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from . import detectors as d

Grade = Literal["delta", "level", "symptoms"]
Flags = NDArray[np.bool_]

SMOOTH = 10  # steps of the trailing means that people look at
LOOK = 20  # steps over which Δ is tested against 0, and the reward against the steps before
GRADE_LEAST = 5  # steps with a measurement before a grade of evidence is claimed
BASELINE = 40  # measured steps from which the noise of the level is taken
LEVEL_FLOOR = 0.15  # nats/token; a smaller fall of the level is never called decay
LEVEL_SIGMAS = 4.0  # … nor one within this many standard errors of a five-step mean


@dataclass(frozen=True)
class Evidence:
    """What the classifier and the rules may look at; NaN is "not measured"."""

    signals: pd.DataFrame
    arl: float
    step: NDArray[np.int64]
    measured: NDArray[np.int64]  # rows so far with a reward, Δ or likelihood
    has_delta: Flags
    has_level: Flags
    reward: d.Series  # trailing mean
    reward_peak: d.Series  # its running maximum
    reward_rise: d.Series  # standard errors, last LOOK steps against the LOOK before
    delta: d.Series  # trailing mean of delta_correct, nats per response
    delta_t: d.Series  # mean of delta_correct over LOOK steps in standard errors
    e_value: d.Series  # evidence of the decay test, alarm at `arl`
    level_fall: d.Series  # nats/token below the running maximum of the level
    level_limit: d.Series  # fall that counts as decay
    grad_ratio: d.Series  # gradient norm over its trailing median
    entropy_ratio: d.Series  # entropy over its trailing median
    entropy_gain: d.Series  # nats/token above the trailing minimum

    def column(self, name: str) -> d.Series:
        """A signal as floats."""
        return floats(self.signals, name)

    @property
    def grade(self) -> Grade:
        """The best evidence this run offers up to its last row."""
        if len(self.step) and self.has_delta[-1]:
            return "delta"
        return "level" if len(self.step) and self.has_level[-1] else "symptoms"


def floats(signals: pd.DataFrame, name: str) -> d.Series:
    """A column as floats, NaN where it was not measured."""
    return signals[name].to_numpy(dtype=np.float64, na_value=np.nan)


def gather(signals: pd.DataFrame, arl: float) -> Evidence:
    """Compute the evidence series from a frame with the columns of `schema.SIGNALS`."""
    reward = floats(signals, "reward")
    delta = floats(signals, "delta_correct")
    level = floats(signals, "correct_logp")
    entropy = floats(signals, "entropy")
    mean_reward = d.trailing_mean(reward, SMOOTH, SMOOTH)
    _, level_fall = d.drawdown(level, SMOOTH // 2, SMOOTH // 2)
    noise = d.spread(level, BASELINE, SMOOTH) / np.sqrt(SMOOTH // 2)
    seen = ~np.isnan(np.stack([reward, delta, level])).all(axis=0)
    lowest = np.fmin.accumulate(d.trailing_mean(entropy, SMOOTH, SMOOTH))
    return Evidence(
        signals=signals,
        arl=arl,
        step=signals["step"].to_numpy(dtype=np.int64),
        measured=np.cumsum(seen),
        has_delta=np.cumsum(~np.isnan(delta)) >= GRADE_LEAST,
        has_level=np.cumsum(~np.isnan(level)) >= GRADE_LEAST,
        reward=mean_reward,
        reward_peak=np.fmax.accumulate(mean_reward) if len(reward) else mean_reward,
        reward_rise=d.rise(reward, LOOK),
        delta=_pooled_delta(signals),
        delta_t=d.trailing_t(delta, LOOK, SMOOTH),
        e_value=d.e_detector(d.decay_score(delta), arl),
        level_fall=level_fall,
        level_limit=np.fmax(LEVEL_FLOOR, LEVEL_SIGMAS * noise),
        grad_ratio=d.over_median(floats(signals, "grad_norm"), 2, 5, 30, 10),
        entropy_ratio=d.over_median(entropy, 3, 10, 50, 15),
        entropy_gain=d.trailing_mean(entropy, 3, 1) - lowest,
    )


def _pooled_delta(signals: pd.DataFrame) -> d.Series:
    """Trailing mean of Δ over correct responses, each response weighing the same."""
    total = d.trailing_mean(floats(signals, "delta_correct_sum"), SMOOTH, 1)
    count = floats(signals, "n_delta_correct")
    n = d.trailing_mean(np.where(count > 0, count, np.nan), SMOOTH, 1)
    return total / n
