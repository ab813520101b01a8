"""The decay test: do correct responses lose likelihood? One answer per step, causal in the rows.

Where Δ is measured it is a sequential test with a guaranteed false-alarm rate
(`detectors.e_detector`). Without Δ the level of `correct_logp` is compared with a limit estimated
from the noise of the run's first steps. That is weaker evidence: the noise may change, and a level
also falls for healthy reasons, such as harder questions being solved.
`docs/research/decay-alarm.md` says how the test was chosen and how often it is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..core.numbers import percent
from . import detectors as d
from .detectors import floats

Basis = Literal["delta", "level"]

RUN_RATE = 0.05  # largest probability of a false alarm in a run of planned length
STALE = 50  # rows without Δ after which the level is tested instead, if it is measured
BASELINE = 40  # measured steps from which the noise of the level is estimated
SMOOTH = 5  # measured steps of the level's trailing mean
LEVEL_FLOOR = 0.2  # × the size of the level: a smaller fall is never called decay
EFFECTIVE = 10.0  # independent steps that a baseline must be worth for a rate to be claimed
PATHS = 400  # simulated paths of noise
HORIZON = 1000  # steps of a path, at most
MOST = PATHS * HORIZON // 10  # longest run length that can be estimated: ten paths reach it
SEED = 20251203  # fixed, so that a live answer and a replayed one are the same


@dataclass(frozen=True)
class Baseline:
    """The noise of the level in the first steps, and the limit that follows from it."""

    first: int  # row
    last: int  # row; the limit is in force after it
    correlation: float  # of neighbouring steps, corrected for the short sample
    effective: float  # independent steps that the baseline is worth
    limit: float  # nats/token of fall


@dataclass(frozen=True)
class DecayTest:
    """The test at each row. It fires where `value` reaches `threshold`.

    On the basis "delta" these are the evidence and `arl`, on "level" the fall and its limit in
    nats/token; both are NaN where there is no basis.
    """

    arl: float
    value: d.Series
    threshold: d.Series
    basis: list[Basis | None]
    evidence: d.Series  # of the test on Δ, whatever the basis
    level_fall: d.Series  # nats/token below the best level since the last restart
    level_limit: d.Series  # NaN until the baseline is complete
    baselines: tuple[Baseline, ...]
    level_steps: NDArray[np.int64]  # measured since the last restart

    @property
    def fires(self) -> NDArray[np.bool_]:
        return np.asarray(self.value >= self.threshold)

    def guarantee(self, row: int = -1) -> str:
        """The guarantee in force at a row, as a sentence."""
        if not self.basis:
            return "no steps yet: nothing is tested"
        row = range(len(self.basis))[row]
        if self.basis[row] == "delta":
            return (
                f"on average at least {self.arl:,.0f} steps to a false alarm, and none in "
                f"{percent(1 - RUN_RATE)} of runs of {RUN_RATE * self.arl:,.0f} steps, as long as "
                "the expected Δ of a step's correct responses is not negative, or no more so than "
                "its correlation with the step before explains; gains are counted up to "
                f"{d.GAIN_CAP:g} × the second largest of the last {d.USUAL} steps"
            )
        if self.basis[row] is None:
            return (
                "no rate is claimed and nothing is tested: Δ was not measured, and of the "
                f"{BASELINE} steps of likelihood levels that a baseline takes there are "
                f"{self.level_steps[row]}"
            )
        base = [b for b in self.baselines if b.last < row][-1]
        worth = f"{BASELINE} steps, worth {base.effective:.0f} independent ones"
        if base.effective < EFFECTIVE:
            return f"on levels, no rate is claimed: the baseline is too short ({worth})"
        rate = f"{min(self.arl, MOST):,.0f} steps"
        if self.arl > MOST:
            rate += " (a baseline allows no larger estimate)"
        return (
            f"on levels, an estimate and no guarantee: about {rate} to a false alarm if the noise "
            f"stays that of the baseline ({worth}) and the level does not fall for a healthy "
            "reason, such as harder questions being solved"
        )


def test(
    signals: d.Columns,
    arl: float,
    restarts: Iterable[int] = (),  # noqa: PT028
) -> DecayTest:
    """Test `delta_correct`, or where it is not measured `correct_logp`, of a frame of signals.

    `arl` is the average run length to a false alarm, in steps. `restarts` are rows at which a
    change was declared (data, learning rate, a resume): the unit of Δ and the baseline of the level
    are learnt anew from there. Evidence on Δ is not reset, because its null hypothesis depends on
    no baseline.
    """
    restarts = sorted(set(restarts))
    delta, level = floats(signals, "delta_correct"), floats(signals, "correct_logp")
    evidence = d.e_detector(d.loss_score(delta, restarts), arl)
    fall, limit, count, baselines = _level(level, arl, restarts)
    by_delta = _recently_measured(np.isfinite(delta))
    by_level = ~by_delta & ~np.isnan(limit)
    # Where Δ is no longer measured and there is no level either, its last evidence stands.
    by_delta |= ~by_level & (np.cumsum(np.isfinite(delta)) > d.USUAL_LEAST)
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
        baselines=baselines,
        level_steps=count,
    )


def _recently_measured(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether Δ was measured often enough for a score, and within the last STALE rows."""
    rows = np.arange(len(mask))
    last = np.maximum.accumulate(np.where(mask, rows, -STALE)) if len(rows) else rows
    return (np.cumsum(mask) > d.USUAL_LEAST) & (rows - last < STALE)


def _level(
    level: d.Series, arl: float, restarts: list[int]
) -> tuple[d.Series, d.Series, NDArray[np.int64], tuple[Baseline, ...]]:
    """Fall, limit, measured steps so far and baselines, separately between restarts."""
    fall, limit = np.full((2, len(level)), np.nan)
    count = np.zeros(len(level), dtype=np.int64)
    baselines: list[Baseline] = []
    ends = sorted({0, *(r for r in restarts if 0 < r < len(level)), len(level)})
    for first, end in pairwise(ends):
        rows = first + np.flatnonzero(np.isfinite(level[first:end]))
        count[first:end] = np.cumsum(np.isfinite(level[first:end]))
        fall[rows] = drawdown(level[rows])
        if len(rows) > BASELINE:
            base = baseline(level[rows[:BASELINE]], arl, int(rows[0]), int(rows[BASELINE - 1]))
            limit[base.last + 1 : end] = base.limit
            baselines.append(base)
    return fall, limit, count, tuple(baselines)


def drawdown(level: d.Series) -> d.Series:
    """How far the mean of the last SMOOTH entries is under its best so far. Shape (…, T), without
    gaps; NaN for the first SMOOTH − 1."""
    out = np.full(level.shape, np.nan)
    total = np.cumsum(np.concatenate([np.zeros((*level.shape[:-1], 1)), level], axis=-1), axis=-1)
    mean = (total[..., SMOOTH:] - total[..., :-SMOOTH]) / SMOOTH
    out[..., SMOOTH - 1 :] = np.maximum.accumulate(mean, axis=-1) - mean
    return out


def baseline(level: d.Series, arl: float, first: int, last: int) -> Baseline:
    """The noise of these levels, from rows `first` to `last`, and the limit that follows.

    The noise is AR(1) around a straight line, because a healthy level rises. Its correlation is
    corrected for the bias of a short sample around a line, −(2 + 4φ)/n (Kendall 1954).
    """
    n = len(level)
    x = np.arange(n)
    residual = level - np.polyval(np.polyfit(x, level, 1), x)
    square = float(residual @ residual)
    raw = float(residual[1:] @ residual[:-1]) / square if square > 0 else 0.0
    phi = min(max((raw * n + 2) / (n - 4), 0.0), 0.95)
    innovation = residual[1:] - raw * residual[:-1]
    innovation = (innovation - innovation.mean()) * np.sqrt((n - 1) / (n - 4))  # line and φ fitted
    floor = LEVEL_FLOOR * abs(float(np.median(level)))
    limit = max(largest_fall(tuple(innovation.tolist()), phi, arl), floor)
    return Baseline(first, last, phi, n * (1 - phi) / (1 + phi), limit)


@lru_cache(maxsize=64)
def largest_fall(innovations: tuple[float, ...], phi: float, arl: float) -> float:
    """The fall that AR(1) noise alone reaches once in `arl` steps (at most MOST), simulated.

    Innovations are resampled, and each path has its own φ and scale, drawn from the uncertainty of
    their estimates. The run length to a false alarm is close to exponential, so the limit is the
    exp(−H/arl) quantile of the largest fall within H steps.
    """
    n = len(innovations)
    arl = min(arl, MOST)
    horizon = int(np.clip(arl / 4, 100, HORIZON))
    rng = np.random.default_rng(SEED)
    phis = np.clip(rng.normal(phi, np.sqrt((1 - phi**2) / n), PATHS), 0.0, 0.98)
    scale = np.sqrt((n - 2) / rng.chisquare(n - 2, PATHS))
    draws = rng.choice(innovations, (horizon, PATHS)) * scale
    path = np.empty((PATHS, horizon))
    state = draws[0] / np.sqrt(1 - phis**2)
    for t in range(horizon):
        state = phis * state + draws[t] if t else state
        path[:, t] = state
    return float(np.quantile(np.nanmax(drawdown(path), axis=1), np.exp(-horizon / arl)))
