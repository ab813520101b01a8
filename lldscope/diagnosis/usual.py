"""The usual level of a signal, the distance from it, and the end of a departure. Causal.

The usual level is the median, in logarithms, of up to `steps` measured steps that ended GAP steps
ago. A signal departs from it when it is beyond the limit and beyond noise. From the departure until
the level is back, the usual level and its noise stay what they were before. So a lasting change
never becomes the usual level, and its end is no alarm in the other direction, unless the reward has
clearly risen meanwhile (a gain may be lost again). A trend is not noise (`detectors.swings`).
However noisy a signal is, a distance of MOST limits is enough; as long as little is known of the
noise, it is also required. Some signals may have two usual levels, such as the lengths of an agent
that calls tools in some tasks: if OFTEN of the usual steps are beyond the limit, their level is
usual, too.

Ratios need a signal with a true zero.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, nan
from typing import NamedTuple

import numpy as np

from . import detectors as d
from .evidence import SMOOTH, Cadence, Evidence, Flags, on_measured, once
from .outcome import RECOVERED, RISES, outcome, upper_noise

WINDOW = 100  # steps
GAP = 10  # steps, at first half of those so far
LEAST = 5  # measured steps of the usual level
RECENT = 3  # steps whose median is compared; SMOOTH if it is noisy
CLEAR = 5.0  # standard errors
MOST = 3.0  # times the limit, in logarithms: the largest distance that noise can require
OFTEN = 0.25  # of the usual steps: if so many are beyond the limit, there is another usual level
NEAR = 2.0  # standard errors of the usual level that count as back, up to half of the limit
BACK = 20  # steps in a row that the level is back before an episode is over
NUMERIC_ZERO = 1e-6  # × the largest gradient norm so far: below it, the gradient is rounding
TINY = 1e-12  # a gradient norm that is rounding, whatever came before
GRADIENT_SURGE = 3.0  # × usual
ENTROPY_SURGE = 1.5  # × usual
ENTROPY_COLLAPSE = 2.0  # × usual: a surge that is part of a collapse
ENTROPY_GAIN = 0.1  # nats/token above usual, or once the usual if that is less
SHRUNK, GROWN = 0.5, 2.0  # × the usual response length
VANISHED = 1 / 30  # × the usual gradient norm
ABANDONED = 0.33  # × the usual number of valid searches
CLIP_RISE = 2.0  # × the usual share of clipped tokens
KL_EXPLOSION = 4.0  # × the largest KL up to KL_EARLIER steps before
KL_RECENT = 5  # steps whose median is compared
KL_EARLIER = 30  # steps, at first a third of those so far
KL_LEAST = 90  # steps before which a KL under KL_EARLY is small whatever it was before
KL_EARLY = 1.0  # nats
KL_SMALL = 0.01  # nats: a KL under it is small at any time, however much it has grown
KL_FAR = 100.0  # nats, from the first step on: more than whole responses differ by


class Scale(NamedTuple):
    """The limits of a signal as factors of the usual level, and the number of steps of that level:
    a slow change needs more. `least` replaces smaller values, such as 0. `two_levels`: it differs
    between the tasks of an agent, of which some need a tool."""

    high: float
    low: float
    least: float = 0.0
    steps: int = WINDOW
    two_levels: bool = False


_CALLS = Scale(1 / ABANDONED, ABANDONED, least=0.01, steps=400, two_levels=True)
SCALES = {
    "entropy": Scale(ENTROPY_SURGE, 0.1, least=1e-6),
    "grad_norm": Scale(GRADIENT_SURGE, VANISHED, two_levels=True),
    "response_tokens": Scale(GROWN, SHRUNK, least=1.0, two_levels=True),
    "valid_searches": _CALLS,
    "tool_calls": _CALLS,
    "clip_share": Scale(CLIP_RISE, 0.1),
}


class Departure(NamedTuple):
    """The distance of a signal from its usual level, one entry per row; NaN while unknown. `ratio`
    is the median of the last RECENT steps over `usual`; `holds` from the departure until the level
    is back."""

    ratio: d.Series
    usual: d.Series
    holds: Flags


def risen(e: Evidence, name: str) -> Departure:
    """A signal above its usual level."""
    return _departures(e, name)[0]


def fallen(e: Evidence, name: str) -> Departure:
    """A signal below its usual level."""
    return _departures(e, name)[1]


@once
def _departures(e: Evidence, name: str) -> tuple[Departure, Departure]:
    scale = SCALES[name]
    values = gradient_norm(e) if name == "grad_norm" else e.column(name)
    values = np.where(values >= 0, np.fmax(values, scale.least), np.nan)
    logs = np.log(np.where(values > 0, values, np.nan))
    reward = outcome(e)
    rows = np.stack([logs, reward.level, RISES * reward.error])

    def statistics(measured: d.Series) -> d.Series:
        return _fold(measured, e.cadence, scale, ENTROPY_GAIN if name == "entropy" else 0.0)

    out = on_measured(rows, statistics, e.resets, series=6)
    high, low = (Departure(np.exp(x[0]), np.exp(x[1]), x[2] > 0) for x in (out[:3], out[3:]))
    return high, low


@dataclass
class _Side:
    """The state of a signal in one direction: `sign` is 1 above the usual level, −1 below it."""

    sign: float
    limit: float  # in logarithms, as are all levels here
    gap: int
    window: int
    two_levels: bool
    waiting: deque[float] = field(default_factory=deque)  # the last steps
    ordered: list[float] = field(default_factory=list)  # the steps of the usual level, by size
    order: deque[float] = field(default_factory=deque)  # the same, by time
    base: float = nan
    other: float = nan  # the usual level in this direction, of a signal that has two
    errors: Sequence[float] = ()  # of the medians of the last steps
    farthest: float = nan
    is_open: bool = False
    back: int = 0  # steps that the level has been back
    reward: float = nan  # where the episode began

    def absorb(self, value: float) -> None:
        self.waiting.append(value)
        if len(self.waiting) > min(self.gap, (len(self.waiting) + len(self.order)) // 2):
            entry = self.waiting.popleft()
            self.order.append(entry)
            insort(self.ordered, entry)
            if len(self.order) > self.window:
                del self.ordered[bisect_left(self.ordered, self.order.popleft())]

    def departs(self, levels: Sequence[float], errors: Sequence[float], gain: float) -> bool:
        """Whether a median of the last steps is beyond the limit and its noise."""
        if not self.is_open:
            if (n := len(self.ordered)) < LEAST:
                return False
            self.base = (self.ordered[(n - 1) // 2] + self.ordered[n // 2]) / 2
            beyond = max(int(OFTEN * n), 1)  # a single step is no level
            other = self.ordered[n - 1 - beyond if self.sign > 0 else beyond]
            is_level = self.two_levels and self.sign * (other - self.base) >= self.limit
            self.other = other if is_level else self.base
            self.errors = errors
        for now, error in zip(levels, self.errors, strict=True):
            least = min(max(self.limit, CLEAR * error), MOST * self.limit)
            away, farther = self.sign * (now - self.base), self.sign * (now - self.other)
            if away >= least and farther >= self.limit and (
                gain == 0.0 or self.sign < 0
                or exp(now) - exp(self.base) >= min(gain, exp(self.base))
            ):
                return True
        return False

    def hold(
        self, now: float, smooth: float, departs: bool, reward: float, steps: int
    ) -> bool:
        """Whether the signal has departed, after one more step. `smooth`: the median of the last
        SMOOTH steps."""
        if departs and not self.is_open:
            self.is_open, self.farthest, self.reward = True, now, reward
            self.waiting.clear()  # the steps just before are no part of the usual
        if not self.is_open:
            return False
        self.farthest = self.sign * max(self.sign * self.farthest, self.sign * now)
        way = self.sign * (exp(self.farthest) - exp(self.base))
        left = self.sign * (exp(smooth) - exp(self.base))
        near = min(NEAR * self.errors[-1], self.limit / 2)
        is_near = self.sign * (smooth - self.base) <= near
        is_back = not departs and (is_near or left <= (1 - RECOVERED) * way)
        self.back = self.back + 1 if is_back else 0
        self.is_open = self.back < steps
        return not is_back


def _fold(rows: d.Series, cadence: Cadence, scale: Scale, gain: float) -> d.Series:
    """Per step: level − usual, usual, and 1 during a departure; above, then below, (6, N)."""
    windows = [cadence.rows(RECENT), cadence.rows(SMOOTH)]
    logs, rewards, errors = rows
    levels = [d.trailing_median(logs, w, w) for w in windows]
    lags = sorted({cadence.rows(lag) for lag in d.LAGS})
    noise = upper_noise(logs)
    spreads = []
    for level, w in zip(levels, windows, strict=True):
        swings = d.swings(level, lags)
        variance = np.where(np.isnan(swings), noise / w, swings)
        spreads.append(np.nan_to_num(np.sqrt(d.shifted(variance, windows[0])), nan=inf, posinf=inf))
    gap, window, back = cadence.rows(GAP), cadence.rows(scale.steps, 20), cadence.rows(BACK)
    state = d.cell()
    sides = state.value = state.value or [
        _Side(1.0, log(scale.high), gap, window, scale.two_levels),
        _Side(-1.0, -log(scale.low), gap, window, scale.two_levels),
    ]
    out: list[list[float]] = []
    series = (x.tolist() for x in (logs, *levels, *spreads, rewards, errors))
    for value, now, smooth, *spread, reward, error in zip(*series, strict=True):
        out.append([])
        for side in sides:
            departs = side.departs((now, smooth), spread, gain)
            holds = side.hold(now, smooth, departs, reward, back)
            out[-1] += now - side.base, side.base, holds
        for side, other in (sides, sides[::-1]):
            is_learned = reward - other.reward > error
            if not side.is_open and (not other.is_open or is_learned):
                side.absorb(value)
            elif other.is_open:
                side.waiting.clear()
    return np.array(out).reshape(-1, 6).T


@once
def gradient_norm(e: Evidence) -> d.Series:
    """The gradient norm before clipping, on steps with a gradient. Groups with equal rewards leave
    no gradient, or only rounding."""
    norm = e.column("grad_norm")
    level = on_measured(norm, lambda v: d.trailing_median(v, 5, 1))  # no single spike is the size
    largest = d.accumulated(np.fmax, level)
    none = (e.column("zero_signal_share") == 1.0) | (norm <= np.fmax(NUMERIC_ZERO * largest, TINY))
    return np.where(none, np.nan, norm)


@once
def kl_explosion(e: Evidence) -> Departure:
    """The KL to the reference against the largest earlier one, until it is back; or beyond the
    reach of any policy. A KL that grows as the cube of the steps is no explosion, however early."""
    recent, earlier, least = (e.cadence.rows(n) for n in (KL_RECENT, KL_EARLIER, KL_LEAST))
    back = e.cadence.rows(BACK)

    def over_earlier(values: d.Series) -> list[d.Series]:
        level = d.trailing_median(values, recent, min(recent, 3))
        out = np.full((3, len(level)), np.nan)
        state = d.cell()
        # `waiting`: the last levels, NaN for those that were no usual ones.
        start: tuple[deque[float], float, float, bool, int] = deque(), nan, nan, False, 0
        waiting, largest, farthest, is_open, is_back = state.value or start
        for i, (t, now) in enumerate(zip(d.numbered(level).tolist(), level.tolist(), strict=True)):
            while len(waiting) >= max(min(earlier, -(-t // 3)), 1):
                before = waiting.popleft()
                if before > 0 and not is_open and not before <= largest:
                    largest = before
            grows = now >= KL_EXPLOSION * largest
            grows &= now >= (KL_SMALL if t >= least else KL_EARLY)
            departs = grows or now >= KL_FAR
            if departs and not is_open:
                is_open, farthest = True, now
            away = False
            if is_open:
                farthest = max(farthest, now)
                base = largest if largest == largest else 0.0
                over = not departs and now - base <= (1 - RECOVERED) * (farthest - base)
                is_back = is_back + 1 if over else 0
                away, is_open = not over, is_back < back
            waiting.append(nan if away else now)
            out[:, i] = now / largest, largest, away
        state.value = waiting, largest, farthest, is_open, is_back
        return [*out]

    return d.fields_on_measured(Departure, e.column("kl"), over_earlier)
