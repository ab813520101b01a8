"""Series computed from the signals of a run: the input of phases and rules. Causal.

Every array has one entry per row of a block. Entry t uses rows up to t only; rows before the block
come from its `memory`. So live answers (one block per look) and replayed ones are the same.

Windows are declared in steps and count measured rows only (`Cadence`). On a row without a
measurement, a statistic repeats its last value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import decay_test as decay
from . import detectors as d
from .detectors import floats, on_measured

Grade = Literal["delta", "level", "symptoms"]
RestartKind = Literal["data", "lr", "resume"]
Restarts = Mapping[int, RestartKind]
Flags = NDArray[np.bool_]
Rows = NDArray[np.int64]
Key = tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]  # a function and its arguments
Memory = dict[Key, d.Tape]
_P = ParamSpec("_P")
_A = TypeVar("_A")

FEWEST = 3  # rows in a window of several steps, at least, however seldom a row is written
SMOOTH = 10  # steps of the trailing means
TEST_STEPS = 20  # steps over which Δ is tested against 0, and the reward against the steps before
GRADE_LEAST = 5  # steps with a measurement before a grade of evidence is claimed
GRADE_LOST = decay.STALE  # steps without a measurement until it is no longer claimed


class Behind(Exception):
    """A computation was first requested after earlier rows had passed. `key` names it: it must run
    on every block."""

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.key = key


def once(
    function: Callable[Concatenate[Evidence, _P], _A],
) -> Callable[Concatenate[Evidence, _P], _A]:
    """Compute a function of an Evidence once per block, however many rules use it; arrays become
    read-only. The function has its own tape, so its statistics continue across blocks. NumPy
    warnings are off inside: NaN is a missing measurement, not a mistake."""

    @wraps(function)
    def cached(e: Evidence, *args: _P.args, **kwargs: _P.kwargs) -> _A:
        key = (cached, args, tuple(kwargs.items()))
        if key not in e.cache:
            tape = e.memory.setdefault(key, d.Tape())
            if tape.rows != e.start:
                raise Behind(key)
            with tape, np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                value: Any = function(e, *args, **kwargs)
            tape.rows = e.start + len(e.step)
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
    """How often a log has a row: `stride` training steps lie between two rows. Windows and waiting
    times are declared in steps and counted in rows."""

    stride: int = 1

    @classmethod
    def of(cls, step: NDArray[np.int64]) -> Cadence:
        """The smaller of the first two differences of `step`; the second if the log began with a
        step 1 of its own (1, 10, 20, as by `logging_first_step` of transformers). The third row
        settles it for good, so live and replayed answers agree."""
        apart = np.diff(step[:3]).tolist() or [1]
        is_extra = step[:1].tolist() == [1] and apart[1:] == [apart[0] + 1]
        return cls(max(apart[1] if is_extra else min(apart), 1))

    def rows(self, steps: int, fewest: int = FEWEST) -> int:
        """The number of rows in so many steps, but at least `fewest` (or `steps`, if that is
        smaller)."""
        return steps if self.stride == 1 else max(-(-steps // self.stride), min(steps, fewest))

    def spans(self, steps: int) -> int:
        """The number of steps that `rows(steps)` cover, for messages."""
        return self.rows(steps) * self.stride


@dataclass(frozen=True, kw_only=True)
class Log:
    """A block of rows of a run, from row `start` on; its methods count rows from there. `signals`
    are all rows of the run so far, and `observed` the names of signals that were ever measured.
    `fits` caches results of hindsight (`account`, `changepoints`)."""

    signals: d.Columns
    start: int
    step: Rows
    observed: frozenset[str]
    restarts: Restarts
    cadence: Cadence
    fits: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)  # see `once`

    def column(self, name: str) -> d.Series:
        """A signal as floats."""
        if name not in self.cache:
            values = floats(self.signals, name, self.start, self.start + len(self.step))
            values.flags.writeable = False
            self.cache[name] = values
        column: d.Series = self.cache[name]
        return column

    def so_far(self, name: str, row: int) -> d.Series:
        """The values of a signal from the first row of the run up to a row of the block."""
        return floats(self.signals, name, 0, self.start + row + 1)

    def between(self, first: float, last: float) -> slice:
        """The rows of the steps from `first` to `last`."""
        start, stop = np.searchsorted(self.step, (first, last + 1))
        return slice(int(start), int(stop))


@dataclass(frozen=True, kw_only=True)
class Evidence(Log):
    """The input of the phase classifier and the rules; NaN is "not measured". `memory` holds the
    state of each computation from the rows before the block."""

    arl: float
    planned_steps: int | None
    resets: Rows  # rows at which baselines are reset
    measured: Rows  # rows so far on which anything was measured that a phase or symptom needs
    has_delta: Flags
    has_level: Flags
    reward: d.Series  # trailing mean
    data: Rows  # rows from which rewards cannot be compared with those before
    reward_rise: d.Series  # standard errors, last TEST_STEPS against those before
    delta: d.Series  # trailing mean of delta_correct, nats per response
    delta_t: d.Series  # mean of delta_correct over TEST_STEPS in standard errors
    decay: decay.DecayTest
    memory: Memory = field(repr=False, compare=False)

    @property
    def grade(self) -> Grade:
        """The best evidence this run offers as of its last row."""
        if self.has_delta[-1:].any():
            return "delta"
        return "level" if self.has_level[-1:].any() else "symptoms"


def steps_of(signals: d.Columns, start: int = 0, stop: int | None = None) -> Rows:
    """The steps of the rows from `start` to `stop`."""
    return d.as_recorded(signals, "step", start, stop).astype(np.int64)


def is_observed(e: Log, name: str) -> bool:
    """Whether a signal was measured at any step."""
    return name in e.observed


def observed_in(
    signals: d.Columns, start: int = 0, stop: int | None = None, but: Collection[str] = ()
) -> frozenset[str]:
    """The names of signals measured in rows from `start` to `stop`, except those in `but`."""
    names = [name for name in signals if name != "step" and name not in but]
    rows = {name: d.as_recorded(signals, name, start, stop) for name in names}
    return frozenset(name for name, v in rows.items() if np.count_nonzero(np.isfinite(v)))


def restarts_of(events: Iterable[Mapping[str, Any]], attempts: Mapping[int, int]) -> Restarts:
    """Steps at which baselines are reset, each with its reason.

    `events` are the entries of events.jsonl: `data_change`, `lr_change` and `resume` count; `step`
    is the first step that is trained differently. If several happen at one step, the first in this
    order counts. `attempts` maps the number of each attempt to its first step: every attempt but
    the first is a `resume`. Events superseded by a later attempt do not count.
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
    observed: frozenset[str] | None = None,
    rows: slice | None = None,
    memory: Memory | None = None,
) -> Evidence:
    """Compute the evidence series from a frame with the columns of `schema.SIGNALS`: of all its
    rows, or of a block that continues from the `memory` of the rows before.

    Each step in `restarts` resets the medians of gradient norm and entropy, the best level and its
    noise. Only new data reset the best reward, because rewards on other data are not comparable: if
    every resume reset it, a run that is resumed often could decline without an alarm.
    """
    restarts, memory = restarts or {}, {} if memory is None else memory
    start, stop = (0, None) if rows is None else (rows.start, rows.stop)
    step, cadence = steps_of(signals, start, stop), Cadence.of(steps_of(signals, 0, 3))
    before = int(steps_of(signals, start - 1, start)[0]) if start else None
    smooth, tested = cadence.rows(SMOOTH), cadence.rows(TEST_STEPS, SMOOTH)

    def rows_of(steps: Iterable[int]) -> Rows:
        """The rows of the block at which these steps begin."""
        new = np.searchsorted(step, sorted(s for s in steps if before is None or s > before))
        return new[new < len(step)]

    def column(name: str) -> d.Series:
        return floats(signals, name, start, stop)

    resets = rows_of(restarts)
    data = rows_of(s for s, kind in restarts.items() if kind == "data")
    reward, delta = column("reward"), column("delta_correct")
    level, entropy = column("correct_logp"), column("entropy")
    gradient = column("grad_norm")
    # Steps without a correct response have no level, and steps without a mixed group have no Δ. A
    # dying run has many such steps, and nothing is missing from its log.
    none_correct = column("success") == 0.0
    none_mixed = none_correct | (column("zero_signal_share") == 1.0)
    has_value = (~np.isnan(np.stack([reward, delta, level, entropy, gradient]))).any(axis=0)
    likelihood = {"delta_correct": delta, "correct_logp": level}
    tape = memory.setdefault((gather, (), ()), d.Tape())
    with tape, np.errstate(invalid="ignore", over="ignore"):
        return Evidence(
            signals=signals,
            start=start,
            observed=observed_in(signals) if observed is None else observed,
            memory=memory,
            arl=arl,
            restarts=restarts,
            planned_steps=planned_steps,
            step=step,
            resets=resets,
            cadence=cadence,
            measured=d.total(np.asarray(has_value)),
            has_delta=_available(delta, none_mixed),
            has_level=_available(level, none_correct),
            reward=on_measured(reward, lambda v: d.trailing_mean(v, smooth, smooth), data),
            data=data,
            reward_rise=on_measured(reward, lambda v: d.rise(v, tested), data, 0.0),
            delta=_mean_delta(
                column("n_delta_correct"), column("delta_correct_sum"), delta, smooth
            ),
            delta_t=on_measured(delta, lambda v: d.trailing_t(v, tested, tested // 2), None, 0.0),
            decay=decay.test(likelihood, arl, resets.tolist()),
        )


def _available(values: d.Series, impossible: Flags) -> Flags:
    """Rows at which a signal counts as available: after GRADE_LEAST measurements, the last of them
    at most GRADE_LOST steps ago. `impossible` steps are not counted."""
    has_value = ~np.isnan(values)
    missing = d.total(~has_value & ~impossible)
    before = d.accumulated(np.maximum, np.where(has_value, missing, 0))
    return (d.total(has_value) >= GRADE_LEAST) & (missing - before < GRADE_LOST)


def _mean_delta(count: d.Series, total: d.Series, delta: d.Series, smooth: int) -> d.Series:
    """Trailing mean of Δ over correct responses; over steps' means if the log has no counts."""
    total = np.where(count > 0, total, np.nan)
    count = np.where(np.isnan(total), np.nan, count)
    series = (total, count, delta)
    mean = [on_measured(v, lambda x: d.trailing_mean(x, smooth, 1)) for v in series]
    return np.where(np.isnan(mean[1]), mean[2], mean[0] / mean[1])
