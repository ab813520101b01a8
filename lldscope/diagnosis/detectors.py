"""Sequential detectors and trailing statistics: arrays in, arrays out, causal.

Entry t of every result uses entries up to t only. NaN stands for "not measured at this step"; such
a step does not change the state of a detector.

A series may come in blocks. A statistic keeps its memory of the entries before a block in cells of
a `Tape`. A computation takes its cells in the same order in each block, so it must call the same
functions for each block, whatever the block holds. Without a tape every array is a whole series.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from functools import cache
from itertools import pairwise
from math import nan
from typing import Any, Protocol, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]
_T = TypeVar("_T")


class Columns(Protocol):
    """Signals by name, as arrays or as columns of a DataFrame."""

    def __getitem__(self, name: str, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


MIXTURE = (0.4, 0.95)  # bets of the e-detector
EVIDENCE_CAP = 10.0  # × the threshold: more evidence would only delay the end of an alarm
USUAL = 100  # measured steps from which the unit of the score is taken
USUAL_LEAST = 10  # measured steps before the first score
USUAL_SURE = 60  # measured steps from which on the unit is no longer enlarged …
FIRST_TIMES = 1.5  # … by this factor at first: large gains may not have come yet
# Of runs with rare gains 26.5 % have a false alarm; with a unit a third smaller 64.5 %, with one
# standard error in TAIL_ERRORS 49 % (docs/research/decay-alarm.md, "What else was tried").
SIZE = 1.5 / 0.6745  # × the median size of these steps: the unit, 1.5 deviations of normal noise
LATELY, GAIN = 20, 1.25  # × the second-largest gain of so many steps, if that is larger
TAIL_ERRORS = 2.5  # standard errors added to the mean excess of gains over the unit
COUNTED = 6.0  # units: the largest loss counted, and the largest gain of the steps before
PHI_ERRORS = 1.5  # standard errors by which a correlation of steps must exceed 0
PHI_LARGEST = 0.95
NOISE_STEPS = 200  # steps from which the noise of a mean is estimated
NOISE_LEAST = 10  # steps before it is
NOISE_LAG = 5  # steps after which AR(1) noise is taken as independent
NOISE_PHI = 0.9  # largest correlation of neighbours that is corrected for
LAGS = (10, 20, 40)  # steps over which levels are compared to see whether steps are independent
UNTESTED = 3.0  # × the variance, until the independence of steps can be tested
MEDIAN_OF_NORMAL = 0.6745  # median |x| of a standard normal x
_BLOCK = 512  # windows at a time, so that they fit the processor's cache


class Cell:
    """The memory of one statistic between blocks; None at the start of the series."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = None


class Tape:
    """The cells of one computation. Inside `with tape:` the statistics take them in turn."""

    def __init__(self) -> None:
        self.rows = 0  # that the computation has seen
        self._cells: list[Cell] = []
        self._taken = 0
        self._token: Token[Tape | None] | None = None

    def take(self) -> Cell:
        self._taken += 1
        if self._taken > len(self._cells):
            self._cells.append(Cell())
        return self._cells[self._taken - 1]

    def __enter__(self) -> None:
        self._taken, self._token = 0, _tape.set(self)

    def __exit__(self, *exc_info: object) -> None:
        assert self._token is not None
        _tape.reset(self._token)
        self._token = None


_tape: ContextVar[Tape | None] = ContextVar("tape", default=None)


@contextmanager
def without_memory() -> Iterator[None]:
    """Inside this context every array is a whole series."""
    token = _tape.set(None)
    try:
        yield
    finally:
        _tape.reset(token)


def cell() -> Cell:
    """The next cell of the tape in use."""
    tape = _tape.get()
    return Cell() if tape is None else tape.take()


def as_recorded(signals: Columns, name: str, start: int = 0, stop: int | None = None) -> Series:
    """The rows of a column from `start` to `stop` as floats, NaN where it was not measured."""
    column = signals[name]
    if isinstance(column, np.ndarray):
        return column[start:stop].astype(np.float64, copy=False)
    if hasattr(column, "iloc"):
        rows = column.iloc[start:stop]
        return np.asarray(rows.to_numpy(dtype=np.float64, na_value=np.nan))
    import pyarrow as pa

    rows = column.slice(start, None if stop is None else stop - start)
    if rows.null_count == len(rows):
        return np.full(len(rows), np.nan)
    if rows.num_chunks == 1 and not rows.null_count:  # none of these ways needs pandas
        return np.from_dlpack(rows.chunk(0)).astype(np.float64, copy=False)
    batch = pa.RecordBatch.from_arrays([rows.combine_chunks()], ["values"])
    values = batch.to_tensor(null_to_nan=True).to_numpy()
    return np.asarray(values[:, 0], dtype=np.float64)


def floats(signals: Columns, name: str, start: int = 0, stop: int | None = None) -> Series:
    """The same, with NaN for infinite values, too."""
    values = as_recorded(signals, name, start, stop)
    finite = np.isfinite(values)
    if finite.all():
        return values
    return np.where(finite, values, np.nan) if finite.any() else constant(np.nan, values)


def constant(value: float, like: Series) -> Series:
    """A read-only array of one value, as long as another series, in the memory of one number."""
    return np.ndarray(like.shape, np.float64, np.float64(value).tobytes(), strides=(0,) * like.ndim)


def loss_score(delta_correct: Series, restarts: Iterable[int] = ()) -> Series:
    """Bounded evidence of each step that correct responses lost likelihood.

    The score is −(min(Δ̄, c) + b + φ·max(0, −Δ̄ of the step before)) / c, cut to [−1, COUNTED]. Δ̄
    is the step's mean Δ over correct responses (arXiv 2512.04220 v2, Def. 4.1, Eq. 3). All else
    comes from the last 100 measured steps before it: the unit c is SIZE times the median |Δ̄|, or
    GAIN times the second-largest gain of the last 20, enlarged in the first 60 steps; b is the mean
    of what gains (counted up to COUNTED·c) exceeded c by, with TAIL_ERRORS standard errors; φ is
    the correlation of neighbouring steps, as far as it is beyond its error.

    So E[score | past] ≤ 0 means: a step is expected not to lower the likelihood of its correct
    responses, or by no more than φ of what the step before lost, with losses counted up to
    COUNTED·c, and gains above c as on average so far. AR(1) noise of a correlation up to φ around a
    mean of 0 or more satisfies it.

    A bet on losses needs a bound on gains only. Cutting losses at the same limit would hide LLD,
    where many responses gain a little and a few lose many nats. There is one score per step,
    because the responses of a step share the same updates.

    delta_correct (T,): Δ̄ of each step in nats, NaN where it was not measured. restarts: rows from
    which all that is learnt is learnt anew. Returns scores in [−1, COUNTED], (T,); NaN where
    Δ was not measured, and for the first ten measured steps after the start and after each restart.
    """
    finite = np.where(np.isfinite(delta_correct), delta_correct, np.nan)
    score = on_measured(finite, _score, np.array(sorted(restarts), dtype=np.int64))
    return np.where(np.isnan(finite), np.nan, score)


def _score(values: Series) -> Series:
    n = numbered(values)
    unsure = np.clip((USUAL_SURE - n) / (USUAL_SURE - USUAL_LEAST), 0.0, 1.0)
    size = SIZE * trailing_median(np.abs(values), USUAL, 1)
    unit = np.fmax(size, by_window(values, LATELY, _gain))
    unit = shifted(unit, 1) * (1 + (FIRST_TIMES - 1) * unsure)
    last = shifted(values, 1)
    gain = np.fmin(values, unit) + _above(last, unit)
    score = -(gain + shifted(_correlation(values), 1) * np.fmax(-last, 0.0))
    has_score = (n >= USUAL_LEAST) & (unit > 0)
    nothing = np.full(len(values), np.nan)
    return np.clip(np.divide(score, unit, where=has_score, out=nothing), -1.0, COUNTED)


def _gain(rows: Series) -> Series:
    return GAIN * np.partition(np.where(np.isnan(rows), -np.inf, rows), -2, axis=1)[:, -2]


def _above(values: Series, unit: Series) -> Series:
    """Mean excess of the last USUAL entries over the unit, plus TAIL_ERRORS of its standard
    errors."""
    out, windows = np.zeros(len(values)), trailing(values, USUAL)
    for t in range(0, len(values), _BLOCK):
        rows = windows[t : t + _BLOCK]
        n = np.maximum(np.count_nonzero(~np.isnan(rows), axis=1), 1)
        bound = unit[t : t + _BLOCK, None]
        excess = np.nan_to_num(np.clip(rows - bound, 0.0, (COUNTED - 1) * bound))
        mean = excess.sum(axis=1) / n
        variance = np.maximum((excess**2).sum(axis=1) / n - mean**2, 0.0)
        out[t : t + _BLOCK] = mean + TAIL_ERRORS * np.sqrt(variance / n)
    return out


def _correlation(values: Series) -> Series:
    """The correlation of neighbours among the last USUAL entries, less PHI_ERRORS / √n, at least 0:
    one minus the mean square difference of neighbours over that of entries NOISE_LAG apart. A level
    that moves slowly or changes once hardly affects it."""
    near, far = (trailing_mean(x**2, USUAL, 1) for x in _differences(values))
    error = PHI_ERRORS / np.sqrt(np.clip(numbered(values) + 1, 1, USUAL))
    return np.clip(1.0 - _ratio(near, far) - error, 0.0, PHI_LARGEST)


def _differences(values: Series) -> list[Series]:
    """Mean square differences of neighbours, and of entries NOISE_LAG apart."""
    return [values - shifted(values, lag) for lag in (1, NOISE_LAG)]


def _ratio(near: Series, far: Series) -> Series:
    """1 where nothing differs."""
    return np.divide(near, far, where=far > 0, out=np.ones(len(near)))


def e_detector(score: Series, arl: float) -> Series:
    """Shiryaev–Roberts e-detector (Shin, Ramdas and Rinaldo, "E-detectors", arXiv 2203.03532).

    M ← (M + 1)·(1 + λ·score), averaged over the bets λ in MIXTURE. If E[score | past] ≤ 0 at every
    step, then M − t is a supermartingale, so the expected number of steps to a false alarm is at
    least `arl`, whatever the distribution and the dependence within a step.

    score: at least −1, (T,), or (T, R) for R series at once; NaN changes nothing. arl: average run
    length, the least expected number of steps to a false alarm. Returns the evidence M after each
    step, shape of `score`; the alarm is where it reaches `arl`. It is capped at 10·`arl`, so that
    an alarm can end.

    The likelihood of correct responses rises for 60 steps, and falls from step 60 on:

    >>> import numpy as np
    >>> from lldscope.diagnosis.detectors import e_detector, loss_score
    >>> noise = np.random.default_rng(seed=1).normal(0.0, 0.3, 120)
    >>> delta = np.where(np.arange(120) < 60, 0.2, -0.4) + noise
    >>> evidence = e_detector(loss_score(delta), arl=2000)
    >>> for step, value in enumerate(evidence):
    ...     if value >= 2000:
    ...         print(f"decay detected at step {step}")
    ...         break
    decay detected at step 73
    """
    bets = np.array(MIXTURE).reshape(-1, *[1] * (score.ndim - 1))
    has_score = ~np.isnan(score)
    new_start = has_score.astype(np.float64)  # a change point at this step joins the sum
    factors = 1.0 + bets * np.where(has_score, score, 0.0)[:, None]
    state = cell()
    evidence = np.zeros((len(bets), *score.shape[1:])) if state.value is None else state.value
    out = np.zeros(score.shape)
    cap = EVIDENCE_CAP * arl
    for t, factor in enumerate(factors):
        evidence += new_start[t]
        evidence *= factor
        mean = evidence.sum(axis=0) / len(bets)
        if (over := mean > cap).any():
            evidence = np.where(over, evidence * (cap / np.where(over, mean, 1.0)), evidence)
            mean = np.minimum(mean, cap)
        out[t] = mean
    state.value = evidence
    return out


def preceded(values: NDArray[Any], n: int) -> Series:
    """These entries, preceded by the `n` entries before them; NaN before the start."""
    state = cell()
    earlier = np.full(n, np.nan) if state.value is None else state.value
    series = np.concatenate([earlier, values])
    state.value = series[len(values) :].copy()
    return series


def trailing(values: Series, window: int) -> Series:
    """The last `window` entries up to each t: shape (T, window), NaN before the start."""
    return _windows(preceded(values, window - 1), window)


def _windows(series: Series, window: int) -> Series:
    """A faster `np.lib.stride_tricks.sliding_window_view`, which takes longer than a statistic."""
    series.flags.writeable = False  # its windows overlap
    size = series.itemsize
    shape, strides = (len(series) - window + 1, window), (size, size)
    return np.ndarray(shape, np.float64, series, strides=strides)


def by_window(values: Series, window: int, statistic: Callable[[Series], Series]) -> Series:
    """A statistic of the last `window` entries up to each t. The function maps shape (N, window) to
    (N,) and is called for some t at a time, to bound memory."""
    return _in_blocks(trailing(values, window), statistic)


def _in_blocks(rows: Series, statistic: Callable[[Series], Series]) -> Series:
    parts = [statistic(rows[t : t + _BLOCK]) for t in range(0, len(rows), _BLOCK)]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0), *parts])


def row_medians(rows: Series) -> Series:
    """Like np.nanmedian(rows, axis=1), but several times as fast."""
    n = np.count_nonzero(~np.isnan(rows), axis=1)
    ordered = np.sort(rows, axis=1)  # NaN last
    at = np.arange(len(rows))
    return np.asarray((ordered[at, (n - 1) // 2] + ordered[at, n // 2]) / 2)


def _moments(rows: Series) -> tuple[NDArray[np.int64], Series, Series]:
    """For each row: the number of measurements, their mean, and the sum of squares about the
    mean."""
    n = np.count_nonzero(~np.isnan(rows), axis=1)
    mean = _sums(rows) / np.maximum(n, 1)
    return n, mean, _sums((rows - mean[:, None]) ** 2)


def _sums(rows: Series) -> Series:
    """Like np.nansum(rows, axis=1), at half of the cost for few rows."""
    return np.asarray(np.where(np.isnan(rows), 0.0, rows).sum(axis=1))


def trailing_mean(values: Series, window: int, least: int) -> Series:
    """Mean of the last `window` steps; NaN where fewer than `least` of them were measured."""
    series = preceded(values, window - 1)
    is_measured = ~np.isnan(series)
    measured = np.concatenate([[0], is_measured.cumsum()])
    n = measured[window:] - measured[:-window]
    rows = _windows(np.where(is_measured, series, 0.0), window)
    # Each row on its own: a running sum would keep what a large value has rounded away.
    total = _in_blocks(rows, lambda block: block.copy().sum(axis=1))
    return np.where(n >= least, total / np.maximum(n, 1), np.nan)


def trailing_t(values: Series, window: int, least: int) -> Series:
    """Mean of the last `window` steps in units of its standard error, steps taken as independent.
    0 where fewer than `least` of them were measured. A series without spread gives a large number
    of its sign.
    """

    def t(rows: Series) -> Series:
        n, mean, square = _moments(rows)
        error = np.sqrt(square / np.maximum(n - 1, 1) / np.maximum(n, 1))
        return np.where(n >= max(least, 2), mean / (error + 1e-9), 0.0)

    return by_window(values, window, t)


def rise(values: Series, window: int) -> Series:
    """By how many standard errors the mean of the last `window` steps exceeds that of the `window`
    steps before; 0 where fewer than half of either were measured.
    """

    def gain(rows: Series) -> Series:
        (n0, m0, s0), (n1, m1, s1) = map(_moments, (rows[:, :window], rows[:, window:]))
        variance = (s0 + s1) / np.maximum(n0 + n1 - 2, 1)
        error = np.sqrt(variance * (1 / np.maximum(n0, 1) + 1 / np.maximum(n1, 1)))
        enough = np.minimum(n0, n1) >= window / 2
        return np.where(enough, (m1 - m0) / (error + 1e-9), 0.0)

    return by_window(values, 2 * window, gain)


def noise_of_means(values: Series, trend: int = 0) -> Series:
    """The variance of the mean of n successive entries, times n, from the noise of the last
    NOISE_STEPS entries. Shape (T,), without gaps; NaN for the first NOISE_LEAST.

    The larger of two estimates; a slow trend enlarges neither much, because both come from
    differences: (1) the mean square successive difference, 2 σ² for independent noise (von Neumann
    et al. 1941); (2) the median differences of neighbours and of entries NOISE_LAG apart, which
    give the variance and the correlation φ of AR(1) noise, whose mean has the variance σ² (1 + φ) /
    ((1 − φ) n). A single jump of the level hardly changes a median.

    `trend`: a straight line over so many entries is not noise.
    """
    differences = _differences(values)
    if trend:  # the median of the last differences is that of a straight line
        differences = [x - trailing_median(x, trend, NOISE_LEAST // 2) for x in differences]
    near, far = map(np.abs, differences)
    square = trailing_mean(near**2, NOISE_STEPS, NOISE_LEAST) / 2
    near, far = (trailing_median(x, NOISE_STEPS, NOISE_LEAST) for x in (near, far))
    phi = np.clip(1.0 - _ratio(near, far) ** 2, 0.0, NOISE_PHI)
    correlated = (far / MEDIAN_OF_NORMAL) ** 2 / 2 * (1 + phi) / (1 - phi)
    return np.fmax(square, correlated)


def swings(levels: Series, lags: Collection[int]) -> Series:
    """The variance of a level (a trailing mean) about a straight line over twice the lag; the
    largest over several lags. Steps need not be independent, and a trend is not noise. A change
    that shows less than half of the time, such as one change of the level, does not count. Shape
    (T,); NaN until five times the shortest lag."""
    out = np.full(len(levels), np.nan)
    for lag in lags:
        bend = levels - 2 * shifted(levels, lag) + shifted(levels, 2 * lag)
        bend = bend - trailing_median(bend, NOISE_STEPS, lag)  # a curve that is learned is no noise
        typical = trailing_median(np.abs(bend), NOISE_STEPS, 2 * lag)
        out = np.fmax(out, (typical / MEDIAN_OF_NORMAL) ** 2 / 6)
    return out


def untested(number: Series, lags: Collection[int]) -> Series:
    """The factor on the variance of independent steps until there are enough entries to test their
    independence."""
    tested = np.minimum(number / (4 * max(lags)), 1.0)
    return np.asarray(UNTESTED + (1 - UNTESTED) * tested)


def shifted(values: NDArray[Any], steps: int) -> Series:
    """The value `steps` entries before; NaN at the start."""
    return preceded(values, steps)[: len(values)]


def trailing_median(values: Series, window: int, least: int) -> Series:
    """Median of the last `window` steps; NaN where fewer than `least` of them were measured."""
    series = preceded(np.where(np.isinf(values), np.nan, values), window)
    measured, least = ~np.isnan(series), max(min(least, window), 1)
    if np.count_nonzero(measured) < least:
        return constant(np.nan, values)
    entries = series.tolist()
    ordered = np.sort(series[:window][measured[:window]]).tolist()
    out = []
    for old, new in zip(entries, entries[window:], strict=False):
        if old == old:
            del ordered[bisect_left(ordered, old)]
        if new == new:
            insort(ordered, new)
        n = len(ordered)
        out.append((ordered[(n - 1) // 2] + ordered[n // 2]) / 2 if n >= least else nan)
    return np.array(out)


def accumulated(function: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
    """`function.accumulate`; for example, the highest value so far with `np.fmax`."""
    state = cell()
    if state.value is None:
        out = function.accumulate(values)
    else:
        out = function.accumulate(np.concatenate([state.value, values]))[1:]
    if len(out):
        state.value = out[-1:].copy()
    return np.asarray(out)


def total(values: NDArray[Any]) -> NDArray[Any]:
    """Cumulative sum; of a condition, the count of true entries."""
    return accumulated(np.add, values.astype(np.int64) if values.dtype == bool else values)


def numbered(values: NDArray[Any]) -> NDArray[np.int64]:
    """The number of each entry in the series, from 0."""
    state = cell()
    first = state.value or 0
    state.value = first + len(values)
    return np.arange(first, state.value)


def last(values: NDArray[Any], where: NDArray[np.bool_], before: float = np.nan) -> NDArray[Any]:
    """The value at the last entry at which `where` was true; `before` until then."""
    state = cell()
    earlier = [before] if state.value is None else state.value
    at = np.maximum.accumulate(np.where(where, np.arange(1, len(values) + 1), 0))
    out = np.concatenate([earlier, values])[at]
    if len(out):
        state.value = out[-1:].copy()
    return out


def from_first(values: Series, n: int) -> Series:
    """A statistic frozen at the `n`-th entry, so that it describes the first entries alone."""
    return last(values, numbered(values) < n)


def at_highest(*series: Series) -> list[Series]:
    """The values of all series at the entry where the first series was highest so far."""
    state, n = cell(), len(series[0])
    if state.value is not None:
        series = tuple(np.concatenate(pair) for pair in zip(state.value, series, strict=True))
    highest = np.fmax.accumulate(series[0])
    new = np.concatenate([[True], ~(highest[1:] <= highest[:-1])])[: len(highest)]
    at = np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))  # also after the first NaN
    out = [values[at] for values in series]
    if n:
        state.value = [values[-1:].copy() for values in out]
    return [values[len(values) - n :] for values in out]


def consecutive(condition: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each step: the number of consecutive steps, including itself, for which the condition has
    held."""
    state = cell()
    if len(condition) == 1:  # a live run asks this a few hundred times a step
        state.value = (state.value or 0) + 1 if condition[0] else 0
        return np.array([state.value])
    if len(condition) and not np.count_nonzero(condition):  # nearly all conditions of a good run
        state.value = 0
        return np.zeros(len(condition), dtype=np.int64)
    rows = np.arange(1, len(condition) + 1)
    last_false = np.maximum.accumulate(np.where(condition, 0, rows))
    out = rows - last_false + np.where(last_false == 0, state.value or 0, 0)
    if len(out):
        state.value = int(out[-1])
    return np.asarray(out)


def on_measured(
    values: Series,
    statistic: Callable[[Series], NDArray[Any]],
    resets: NDArray[np.int64] | None = None,
    before: float = np.nan,
    series: int = 0,
) -> Series:
    """A statistic of the measured rows alone, repeated on rows without a measurement.

    It begins anew at each row in `resets`; `before` is its value until the first measurement after
    that. A statistic of several `series` has shape (series, N). If the values are several series,
    (K, N), the first decides which rows are measured.
    """
    is_measured = ~np.isnan(np.atleast_2d(values)[0])
    n = len(is_measured)
    state, new = cell(), (np.full(series or 1, before)[..., None], Tape())
    earlier, tape = state.value or new
    without_resets = resets is None or not len(resets)
    if without_resets and not is_measured.any():
        state.value = earlier, tape
        out = earlier.repeat(n, axis=1)
        return out if series else out[0]
    if without_resets and is_measured.all():
        with tape:
            out = np.atleast_2d(statistic(values))
        state.value = out[:, -1:].copy(), tape
        return out if series else out[0]
    out = np.empty((series or 1, n))
    inner = [] if resets is None else [min(max(int(row), 0), n) for row in resets]
    for number, (start, end) in enumerate(pairwise([0, *inner, n])):
        if number:
            earlier, tape = np.full((series or 1, 1), before), Tape()
        rows = start + np.flatnonzero(is_measured[start:end])
        if len(rows):
            last = np.searchsorted(rows, np.arange(start, end), side="right")
            with tape:
                computed = np.atleast_2d(statistic(values[..., rows]))
            earlier = np.concatenate([earlier, computed], axis=1)
            out[:, start:end] = earlier[:, last]
            earlier = earlier[:, -1:].copy()
        else:
            out[:, start:end] = earlier
    state.value = earlier, tape
    return out if series else out[0]


@cache
def _flags(kind: Callable[..., Any]) -> list[bool]:
    """Which fields of a `kind` are flags. Cached: reading type hints takes as long as a
    statistic."""
    return [hint != Series for hint in get_type_hints(kind).values()]


def fields_on_measured(
    kind: Callable[..., _T],
    values: Series,
    statistic: Callable[[Series], Sequence[NDArray[Any]]],
    resets: NDArray[np.int64] | None = None,
) -> _T:
    """The same for a statistic of several series and flags: the fields of a `kind`."""
    flags = _flags(kind)
    rows = on_measured(values, lambda x: np.stack(statistic(x)), resets, series=len(flags))
    return kind(*(row > 0 if flag else row for row, flag in zip(rows, flags, strict=True)))
