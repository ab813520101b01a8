"""Series computed from the signals of a run, as input of the phases and the rules. Causal.

Every array has one entry per row of the signals; entry t uses rows up to t only, so a live answer
and a replayed one are the same. Windows are said in steps and count measured rows only
(`Cadence`); on a row where a signal was not measured, a statistic of it repeats its last value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import decay_test as decay
from . import detectors as d
from .detectors import floats

Grade = Literal["delta", "level", "symptoms"]
RestartKind = Literal["data", "lr", "resume"]
Restarts = Mapping[int, RestartKind]
Flags = NDArray[np.bool_]
Rows = NDArray[np.int64]
_P = ParamSpec("_P")
_A = TypeVar("_A")

FEWEST = 3  # rows that anything of several steps takes, however seldom a row is written
SMOOTH = 10  # steps of the trailing means
TEST_STEPS = 20  # steps over which Δ is tested against 0, and the reward against the steps before
GRADE_LEAST = 5  # steps with a measurement before a grade of evidence is claimed
GRADE_LOST = decay.STALE  # steps without one after which it is no longer claimed


def once(
    function: Callable[Concatenate[Evidence, _P], _A],
) -> Callable[Concatenate[Evidence, _P], _A]:
    """Compute a function of an Evidence once, however many rules use it; arrays become read-only.

    NumPy does not warn inside it: NaN is a missing measurement, not a mistake.
    """

    @wraps(function)
    def cached(e: Evidence, *args: _P.args, **kwargs: _P.kwargs) -> _A:
        key = (function, args, *kwargs.items())
        if key not in e.cache:
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                result = function(e, *args, **kwargs)
            value: Any = result
            if isinstance(value, np.ndarray):
                if value.dtype == np.float64 and np.isnan(value).all():  # as most signals are
                    value = d.constant(np.nan, value)
                value.flags.writeable = False
            e.cache[key] = value
        hit: _A = e.cache[key]
        return hit

    return cached


@dataclass(frozen=True)
class Cadence:
    """How often a log has a row: `stride` steps of training lie between two of them. Windows and
    waiting times are said in steps and counted in rows."""

    stride: int = 1

    @classmethod
    def of(cls, step: NDArray[np.int64]) -> Cadence:
        """The smaller of the first two differences of `step`: what the third row has settled, a
        later one does not change, so that a live answer and a replayed one are the same."""
        first = np.diff(step[:3])
        return cls(max(int(first.min()), 1) if len(first) else 1)

    def rows(self, steps: int, fewest: int = FEWEST) -> int:
        """The rows that so many steps take; `fewest` of them, or `steps`, where that is less."""
        return max(-(-steps // self.stride), min(steps, fewest))

    def spans(self, steps: int) -> int:
        """The steps that `rows(steps)` take, to be named in messages."""
        return self.rows(steps) * self.stride


@dataclass(frozen=True)
class Evidence:
    """All that the phase classifier and the rules are computed from; NaN is "not measured"."""

    signals: d.Columns
    arl: float
    restarts: Restarts
    planned_steps: int | None
    step: Rows
    parts: Rows  # rows at which baselines are reset
    cadence: Cadence
    measured: Rows  # rows so far on which anything was measured that a phase or symptom needs
    has_delta: Flags
    has_level: Flags
    reward: d.Series  # trailing mean
    data: Rows  # rows from which rewards cannot be compared with those before
    reward_rise: d.Series  # standard errors, last TEST_STEPS against those before
    delta: d.Series  # trailing mean of delta_correct, nats per response
    delta_t: d.Series  # mean of delta_correct over TEST_STEPS in standard errors
    decay: decay.DecayTest
    cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)  # see `once`

    @once
    def column(self, name: str) -> d.Series:
        """A signal as floats."""
        return floats(self.signals, name)

    @property
    def grade(self) -> Grade:
        """The best evidence this run offers as of its last row."""
        if self.has_delta[-1:].any():
            return "delta"
        return "level" if self.has_level[-1:].any() else "symptoms"


def is_observed(e: Evidence, name: str) -> bool:
    """Whether a signal was measured at any step."""
    return bool(np.any(~np.isnan(e.column(name))))


def restarts_of(events: Iterable[Mapping[str, Any]], attempts: Mapping[int, int]) -> Restarts:
    """Steps at which baselines are reset, each with its reason.

    `events` are the entries of events.jsonl: `data_change`, `lr_change` and `resume` count, with
    `step` the first step that is trained differently; of several at one step the first in this
    order. `attempts` maps the number of each start of the run to its first step: every start but
    the first is a `resume`. Events that a later start has superseded do not count.
    """
    kinds: dict[str, RestartKind] = {"data_change": "data", "lr_change": "lr", "resume": "resume"}
    declared: list[tuple[int | None, int, str]] = [
        (e.get("attempt"), e["step"], e["kind"])
        for e in events
        if e.get("kind") in kinds and isinstance(e.get("step"), int)
    ]
    declared += [(a, step, "resume") for a, step in attempts.items() if a != min(attempts)]
    restarts: dict[int, RestartKind] = {}
    for attempt, step, kind in sorted(declared, key=lambda r: list(kinds).index(r[2])):
        superseded = any(a > (attempt or a) and first <= step for a, first in attempts.items())
        if not superseded:
            restarts.setdefault(step, kinds[kind])
    return restarts


def gather(
    signals: d.Columns,
    arl: float,
    restarts: Restarts | None = None,
    planned_steps: int | None = None,
) -> Evidence:
    """Compute the evidence series from a frame with the columns of `schema.SIGNALS`.

    At every step of `restarts` these baselines are reset: medians of gradient norm and entropy,
    best level and its noise. The best reward is reset by new data only, because rewards on other
    data are not comparable; if every resume reset it, a run that is resumed often could decline
    without an alarm.
    """
    restarts = restarts or {}
    step = np.asarray(signals["step"], dtype=np.int64)
    cadence = Cadence.of(step)
    smooth, tested = cadence.rows(SMOOTH), cadence.rows(TEST_STEPS, SMOOTH)
    parts = np.searchsorted(step, sorted(restarts))
    data = np.searchsorted(step, sorted(s for s in restarts if restarts[s] == "data"))
    reward, delta = floats(signals, "reward"), floats(signals, "delta_correct")
    level, entropy = floats(signals, "correct_logp"), floats(signals, "entropy")
    gradient = floats(signals, "grad_norm")
    # Steps without a correct response have no level, and steps without a mixed group have no Δ. A
    # dying run has many of them, and its log is complete.
    none_correct = floats(signals, "success") == 0.0
    none_mixed = none_correct | (floats(signals, "zero_signal_share") == 1.0)
    has_value = ~np.isnan(np.stack([reward, delta, level, entropy, gradient])).all(axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        return Evidence(
            signals=signals,
            arl=arl,
            restarts=restarts,
            planned_steps=planned_steps,
            step=step,
            parts=parts,
            cadence=cadence,
            measured=np.cumsum(has_value),
            has_delta=_available(delta, none_mixed),
            has_level=_available(level, none_correct),
            reward=on_measured(reward, lambda v: d.trailing_mean(v, smooth, smooth), data),
            data=data,
            reward_rise=on_measured(reward, lambda v: d.rise(v, tested), data, 0.0),
            delta=_mean_delta(signals, delta, smooth),
            delta_t=on_measured(delta, lambda v: d.trailing_t(v, tested, tested // 2), None, 0.0),
            decay=decay.test(signals, arl, parts.tolist()),
        )


def on_measured(
    values: d.Series,
    statistic: Callable[[d.Series], d.Series],
    parts: Rows | None = None,
    before: float = np.nan,
    series: int = 0,
) -> d.Series:
    """A statistic of the measured rows alone, repeated on rows without a measurement.

    It is computed for each part separately; a part begins at each row in `parts`. `before` is its
    value until the first measurement of a part. A statistic of several `series` is (series, N). Of
    values that are themselves several series, (K, N), the first says what was measured.
    """
    is_measured = ~np.isnan(np.atleast_2d(values)[0])
    n = len(is_measured)
    shape = (series, n) if series else (n,)
    if not is_measured.any():
        return np.broadcast_to(np.float64(before), shape)
    out = np.full(shape, before)
    edges = [0, *(() if parts is None else parts), n]
    for start, end in pairwise(edges):
        rows = start + np.flatnonzero(is_measured[start:end])
        if len(rows):
            last = np.searchsorted(rows, np.arange(start, end), side="right") - 1
            computed = statistic(values[..., rows])
            out[..., start:end] = np.where(last < 0, before, computed[..., last])
    return out


def _available(values: d.Series, impossible: Flags) -> Flags:
    """Rows at which a signal counts as available: after GRADE_LEAST measurements, the last of them
    no more than GRADE_LOST steps ago; steps where it is `impossible` are not counted."""
    has_value = ~np.isnan(values)
    missing = np.cumsum(~has_value & ~impossible)
    before = np.maximum.accumulate(np.where(has_value, missing, 0)) if len(has_value) else missing
    return (np.cumsum(has_value) >= GRADE_LEAST) & (missing - before < GRADE_LOST)


def _mean_delta(signals: d.Columns, delta: d.Series, smooth: int) -> d.Series:
    """Trailing mean of Δ over correct responses; of the steps' means where a log has no counts."""
    count = floats(signals, "n_delta_correct")
    total = np.where(count > 0, floats(signals, "delta_correct_sum"), np.nan)
    count = np.where(np.isnan(total), np.nan, count)
    series = (total, count, delta)
    mean = [on_measured(v, lambda x: d.trailing_mean(x, smooth, 1)) for v in series]
    return np.where(np.isnan(mean[1]), mean[2], mean[0] / mean[1])
