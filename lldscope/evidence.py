"""From the signals of a run to the series that phases and rules look at. Pure, no I/O, causal.

Every array has one entry per row of the signals; entry t uses rows up to t only, so a live answer
and a replayed one are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from . import decay
from . import detectors as d

Grade = Literal["delta", "level", "symptoms"]
Flags = NDArray[np.bool_]

SMOOTH = 10  # steps of the trailing means that people look at
LOOK = 20  # steps over which Δ is tested against 0, and the reward against the steps before
GRADE_LEAST = 5  # steps with a measurement before a grade of evidence is claimed


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
    decay: decay.DecayTest
    grad_ratio: d.Series  # gradient norm over its trailing median
    entropy_ratio: d.Series  # entropy over its trailing median
    entropy_gain: d.Series  # nats/token above the trailing minimum

    def column(self, name: str) -> d.Series:
        """A signal as floats."""
        return floats(self.signals, name)

    @property
    def e_value(self) -> d.Series:
        """Evidence of the decay test on Δ, alarm at `arl`."""
        return self.decay.evidence

    @property
    def level_fall(self) -> d.Series:
        """Nats/token below the best level so far; NaN where not measured."""
        return self.decay.level_fall

    @property
    def level_limit(self) -> d.Series:
        """Fall of the level that counts as decay; NaN until its baseline is complete."""
        return self.decay.level_limit

    @property
    def grade(self) -> Grade:
        """The best evidence this run offers up to its last row."""
        if len(self.step) and self.has_delta[-1]:
            return "delta"
        return "level" if len(self.step) and self.has_level[-1] else "symptoms"


def floats(signals: pd.DataFrame, name: str) -> d.Series:
    """A column as floats, NaN where it was not measured."""
    return signals[name].to_numpy(dtype=np.float64, na_value=np.nan)


def gather(signals: pd.DataFrame, arl: float, restarts: Iterable[int] = ()) -> Evidence:
    """Compute the evidence series from a frame with the columns of `schema.SIGNALS`; `restarts` are
    rows at which something declared has changed (see `decay.test`)."""
    reward = floats(signals, "reward")
    delta = floats(signals, "delta_correct")
    level = floats(signals, "correct_logp")
    entropy = floats(signals, "entropy")
    mean_reward = d.trailing_mean(reward, SMOOTH, SMOOTH)
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
        decay=decay.test(signals, arl, restarts),
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
