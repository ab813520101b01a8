"""Sequential detectors: plain numpy, no I/O, and causal — entry t uses entries up to t only.

NaN stands for "nothing measured at this step"; such a step changes nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

SCORE_SCALE = 0.5  # nats per response at which the decay score is tanh(1) of the way to its bound
MIXTURE = (0.1, 0.25, 0.5, 0.75, 0.95)  # bets of the e-detector
EVIDENCE_CAP = 10.0  # × the threshold: evidence beyond it would only delay the all-clear


def decay_score(delta_correct: Series) -> Series:
    """Bounded evidence of one step that correct responses lost likelihood, in [0, 1].

    ½ − ½·tanh(Δ̄ / 0.5 nat), Δ̄ the step's mean Δ over correct responses (arXiv 2512.04220 v2,
    Def. 4.1, Eq. 3). One score per step, not per response: responses of a step share the same
    update, and detectors that take them as independent alarm falsely. It must feel magnitude: the
    share of responses that lose anything stays under ½ in dying runs, while a few lose many nats.
    """
    return 0.5 - 0.5 * np.tanh(delta_correct / SCORE_SCALE)


def e_detector(score: Series, arl: float) -> Series:
    """Shiryaev–Roberts e-detector on scores in [0, 1]; alarm where the result reaches `arl`.

    M ← (M + 1)·L with L = 1 + λ(2·score − 1), averaged over the bets λ (Shin, Ramdas and Rinaldo,
    "E-detectors", arXiv 2203.03532, whose running example is the mean of a bounded variable without
    independence). If E[score | past] ≤ ½ at every step, then E[L | past] ≤ 1 and M − t is a
    supermartingale, so the expected step of a false alarm is at least E[M at the alarm] ≥ `arl`,
    whatever the distribution and the dependence within a step. After an alarm, evidence is capped
    at 10·`arl`, so that it can also resolve.
    """
    bets = np.array(MIXTURE)
    evidence = np.zeros(len(bets))
    out = np.zeros(len(score))
    for t, s in enumerate(score):
        if not np.isnan(s):
            evidence = (evidence + 1.0) * (1.0 + bets * (2.0 * s - 1.0))
            if evidence.mean() > EVIDENCE_CAP * arl:
                evidence *= EVIDENCE_CAP * arl / evidence.mean()
        out[t] = evidence.mean()
    return out


def trailing(values: Series, window: int) -> Series:
    """The last `window` entries up to each t, as rows: shape (T, window), NaN before the start."""
    if not len(values):
        return np.empty((0, window))
    padded = np.concatenate([np.full(window - 1, np.nan), values])
    return np.lib.stride_tricks.sliding_window_view(padded, window)


def trailing_mean(values: Series, window: int, least: int) -> Series:
    """Mean of what was measured in the last `window` steps; NaN where fewer than `least` were."""
    rows = trailing(values, window)
    n = np.count_nonzero(~np.isnan(rows), axis=1)
    total = np.nansum(rows, axis=1)
    return np.where(n >= least, total / np.maximum(n, 1), np.nan)


def trailing_t(values: Series, window: int, least: int) -> Series:
    """Mean of the last `window` measured steps in units of its standard error.

    Steps are taken as independent draws of what is measured; 0 where fewer than `least` were
    measured. A series without spread gives a large number of its sign.
    """
    rows = trailing(values, window)
    n = np.count_nonzero(~np.isnan(rows), axis=1)
    mean = np.nansum(rows, axis=1) / np.maximum(n, 1)
    square = np.nansum((rows - mean[:, None]) ** 2, axis=1)
    error = np.sqrt(square / np.maximum(n - 1, 1) / np.maximum(n, 1))
    return np.where(n >= max(least, 2), mean / (error + 1e-9), 0.0)


def rise(values: Series, window: int) -> Series:
    """By how many standard errors the last `window` steps lie above the `window` before them.

    0 where either half has fewer than half of its steps measured.
    """
    rows = trailing(values, 2 * window)
    before, after = rows[:, :window], rows[:, window:]
    n0, n1 = (np.count_nonzero(~np.isnan(half), axis=1) for half in (before, after))
    m0, m1 = (np.nansum(h, axis=1) / np.maximum(n, 1) for h, n in ((before, n0), (after, n1)))
    spread = np.nansum((before - m0[:, None]) ** 2, axis=1) + np.nansum(
        (after - m1[:, None]) ** 2, axis=1
    )
    variance = spread / np.maximum(n0 + n1 - 2, 1)
    error = np.sqrt(variance * (1 / np.maximum(n0, 1) + 1 / np.maximum(n1, 1)))
    enough = np.minimum(n0, n1) >= window / 2
    return np.where(enough, (m1 - m0) / (error + 1e-9), 0.0)


def over_median(values: Series, recent: int, gap: int, window: int, least: int) -> Series:
    """Mean of the last `recent` steps over the median of the `window` steps that end `gap` ago.

    NaN where fewer than `least` of the older steps were measured. A ratio, so without unit; it
    sees a break-out, not a slow rise that takes longer than the window.
    """
    now = trailing_mean(values, recent, 1)
    older = np.concatenate([np.full(gap, np.nan), values])[: len(values)]
    rows = trailing(older, window)
    n = np.count_nonzero(~np.isnan(rows), axis=1)
    out = np.full(len(values), np.nan)
    enough = n >= least
    if enough.any():
        base = np.nanmedian(rows[enough], axis=1)
        out[enough] = now[enough] / np.maximum(base, 1e-12)
    return out


def drawdown(values: Series, window: int, least: int) -> tuple[Series, Series]:
    """Running maximum of the trailing mean, and how far the trailing mean lies below it.

    Both in the unit of the values; NaN before `least` measured steps.
    """
    mean = trailing_mean(values, window, least)
    peak = np.fmax.accumulate(mean) if len(mean) else mean
    return peak, peak - mean


def spread(values: Series, window: int, least: int) -> Series:
    """Step-to-step noise: standard deviation of first differences over √2, trailing, then frozen.

    Taken from the first `window` measured steps and held afterwards, so that a collapse does not
    excuse itself by being noisy; a slow trend hardly enters first differences.
    """
    measured = np.flatnonzero(~np.isnan(values))
    out = np.full(len(values), np.nan)
    for count in range(least, min(window, len(measured)) + 1):
        head = values[measured[:count]]
        out[measured[count - 1] :] = np.std(np.diff(head), ddof=1) / np.sqrt(2)
    return out


def consecutive(condition: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each step, how many steps in a row the condition has held, this one included."""
    steps = np.arange(len(condition))
    last_false = np.maximum.accumulate(np.where(condition, -1, steps)) if len(steps) else steps
    return np.where(condition, steps - last_false, 0)
