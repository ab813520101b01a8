"""The level that a signal is used to, and how far it is from it now. Causal.

The usual level is the median of up to WINDOW measured steps that ended GAP steps ago, in
logarithms, with the noise of those steps. Steps that are beyond the limit are no part of it, so a
change that lasts does not become the usual; and it is not the lowest or highest of many noisy
medians, which is biased. Only signals with a scale, whose 0 means nothing of it, have ratios.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import NamedTuple

import numpy as np

from . import detectors as d
from .evidence import Cadence, Evidence, Flags, on_measured, once

WINDOW = 100  # steps
GAP = 10  # steps
LEAST = 20  # steps before there is a usual level
RECENT = 3  # steps whose median is compared
CLEAR = 5.0  # standard errors
NUMERIC_ZERO = 1e-6  # × the largest gradient norm so far: what rounding leaves of no gradient
TINY = 1e-12  # a gradient norm that is rounding, whatever came before
GRADIENT_SURGE = 3.0  # × usual
ENTROPY_SURGE = 1.5  # × usual
ENTROPY_COLLAPSE = 2.0  # × usual: a surge that is part of a collapse
ENTROPY_CLEAR = 8.0  # × usual: a surge however much it was fluctuating
ENTROPY_GAIN = 0.1  # nats/token above usual, for either: entropies near 0 have large ratios
SHRUNK, GROWN = 0.5, 2.0  # × the usual response length
VANISHED = 1 / 30  # × the usual gradient norm


class Departure(NamedTuple):
    """How far a signal is from its usual level, one entry per row; NaN where that is unknown.

    `ratio` of the median of the last RECENT steps to `usual`; `holds` where it is beyond the limit
    and beyond noise.
    """

    ratio: d.Series
    usual: d.Series
    holds: Flags


@once
def departure(
    e: Evidence, name: str, limit: float, steps: int = WINDOW, least: float = 0.0
) -> Departure:
    """Where a signal is above `limit` × its usual level, or below it for a limit under 1; the
    entropy by ENTROPY_GAIN as well. `steps` of the usual level: a slow change needs more. `least`
    stands for smaller values, such as none."""
    gain, most = (ENTROPY_GAIN, np.log(ENTROPY_CLEAR)) if name == "entropy" else (0.0, np.inf)

    def statistics(measured: d.Series) -> d.Series:
        return _usual(measured, e.cadence, float(np.log(limit)), gain, float(most), steps)

    change, usual, over = on_measured(_levels(e, name, least), statistics, e.parts, series=3)
    return Departure(np.exp(change), np.exp(usual), over > 0)


@once
def _levels(e: Evidence, name: str, least: float) -> d.Series:
    """The logarithm of a signal, its level, and the noise up to then: (3, N)."""
    values = gradient_norm(e) if name == "grad_norm" else e.column(name)
    values = np.where(values >= 0, np.fmax(values, least), np.nan)
    log = np.log(np.where(values > 0, values, np.nan))
    recent = e.cadence.rows(RECENT)

    def statistics(measured: d.Series) -> d.Series:
        noise = d.shifted(d.noise_of_means(measured), recent)
        return np.stack([d.trailing_median(measured, recent, recent), noise])

    return np.concatenate([log[None], on_measured(log, statistics, e.parts, series=2)])


def _usual(
    levels: d.Series, cadence: Cadence, limit: float, least_gain: float, most: float, steps: int
) -> d.Series:
    """Level − usual, usual, and 1 where that is beyond the limit, for each step: (3, N). The noise
    asks for no more than `most`."""
    recent, gap = cadence.rows(RECENT), cadence.rows(GAP)
    window, least = cadence.rows(steps, LEAST), cadence.rows(LEAST, 10)
    log, level, noise = levels.tolist()
    out = np.full((3, len(log)), np.nan)
    waiting: deque[float] = deque()  # the last GAP steps
    ordered: list[float] = []  # the steps of the usual level, in order of size
    order: deque[float] = deque()  # the same, in order of time
    sign = 1.0 if limit > 0 else -1.0
    spread, over = np.nan, False
    for t, (value, now) in enumerate(zip(log, level, strict=True)):
        n = len(ordered)
        if n >= least:
            base = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
            if not over:
                spread = noise[t]
            margin = CLEAR * (spread * (1 / recent + 1 / n)) ** 0.5 if spread == spread else 0.0
            gain = sign * (np.exp(now) - np.exp(base))
            over = sign * (now - base) >= max(abs(limit), min(margin, most)) and gain >= least_gain
            out[:, t] = now - base, base, over
        if over:  # what lasts does not become the usual, nor do the steps just before it
            waiting.clear()
            continue
        waiting.append(value)
        if len(waiting) > gap:
            entry = waiting.popleft()
            order.append(entry)
            insort(ordered, entry)
            if len(order) > window:
                del ordered[bisect_left(ordered, order.popleft())]
    return out


@once
def gradient_norm(e: Evidence) -> d.Series:
    """The gradient norm before clipping, where there is a gradient: all groups with equal rewards
    leave none, or what rounding leaves of it."""
    norm = e.column("grad_norm")
    largest = np.fmax.accumulate(norm)
    none = (e.column("zero_signal_share") == 1.0) | (norm <= np.fmax(NUMERIC_ZERO * largest, TINY))
    return np.where(none, np.nan, norm)
