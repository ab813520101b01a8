"""From the signals of a run to the series that phases and rules look at. Pure, no I/O, causal.

Every array has one entry per row of the signals; entry t uses rows up to t only, so a live answer
and a replayed one are the same. A row on which a signal was not measured changes nothing about it:
windows count measured rows, and the last answer holds until the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from . import decay_test as decay
from . import detectors as d
from .normalized_reward import normalized_reward

Grade = Literal["delta", "level", "symptoms"]
RestartKind = Literal["data", "lr", "resume"]
Restarts = Mapping[int, RestartKind]
Flags = NDArray[np.bool_]
Rows = NDArray[np.int64]
_P = ParamSpec("_P")
_A = TypeVar("_A", bound=NDArray[Any])

SMOOTH = 10  # steps of the trailing means that people look at
LOOK = 20  # steps over which Δ is tested against 0, and the reward against the steps before
BEFORE = 40  # steps against which the last SMOOTH are compared to see the fall accelerate
COUNTED = (5.0, 1.0)  # what one step's loss and gain count at most, in units of …
USUAL = 4.0  # … × the median size, where means of Δ are compared
GRADE_LEAST = 5  # steps with a measurement before a grade of evidence is claimed
GRADE_LOST = decay.STALE  # steps without one after which it is claimed no more


def once(
    series: Callable[Concatenate[Evidence, _P], _A],
) -> Callable[Concatenate[Evidence, _P], _A]:
    """A series of an Evidence that is computed once, however many rules look at it; read-only."""

    @wraps(series)
    def kept(e: Evidence, *args: _P.args, **kwargs: _P.kwargs) -> _A:
        key = (series, args, *kwargs.items())
        found: _A | None = e.kept.get(key)
        if found is None:
            e.kept[key] = found = series(e, *args, **kwargs)
            found.flags.writeable = False
        return found

    return kept


@dataclass(frozen=True)
class Evidence:
    """What the classifier and the rules may look at; NaN is "not measured"."""

    signals: pd.DataFrame
    arl: float
    restarts: Restarts
    step: Rows
    measured: Rows  # rows so far on which anything was measured that a phase or symptom needs
    has_delta: Flags
    has_level: Flags
    reward: d.Series  # trailing mean
    reward_peak: d.Series  # its running maximum since the data last changed
    normalized_reward: d.Series  # per step, see normalized_reward.py
    normalized_mean: d.Series  # its trailing mean
    normalized_peak: d.Series  # the running maximum of that since the data last changed
    reward_rise: d.Series  # standard errors, last LOOK steps against the LOOK before
    delta: d.Series  # trailing mean of delta_correct, nats per response
    delta_t: d.Series  # mean of delta_correct over LOOK steps in standard errors
    accelerates: Flags  # correct responses lose more in the last SMOOTH steps than in BEFORE before
    decay: decay.DecayTest
    grad_ratio: d.Series  # gradient norm over its trailing median
    entropy_ratio: d.Series  # entropy over its trailing median
    entropy_gain: d.Series  # nats/token above its lowest trailing mean
    entropy_rise: d.Series  # × its lowest trailing mean
    kept: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)  # see `once`

    @once
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
        """The best evidence this run offers as of its last row."""
        if len(self.step) and self.has_delta[-1]:
            return "delta"
        return "level" if len(self.step) and self.has_level[-1] else "symptoms"


def floats(signals: pd.DataFrame, name: str) -> d.Series:
    """A column as floats, NaN where it was not measured."""
    return signals[name].to_numpy(dtype=np.float64, na_value=np.nan)


def restarts_of(events: Iterable[Mapping[str, Any]], attempts: Mapping[int, int]) -> Restarts:
    """Step → why what a run is compared with begins anew there.

    `events` are the entries of events.jsonl: `data_change`, `lr_change` and `resume` count, with
    `step` the first one that is trained differently; of several at one step, in that order.
    `attempts` is the first step of each start of the run, by its number: every start but the first
    is a `resume`. What a later start has superseded does not count.
    """
    kinds: dict[str, RestartKind] = {"data_change": "data", "lr_change": "lr", "resume": "resume"}
    said: list[tuple[int | None, int, str]] = [
        (e.get("attempt"), e["step"], e["kind"])
        for e in events
        if e.get("kind") in kinds and isinstance(e.get("step"), int)
    ]
    said += [(a, step, "resume") for a, step in attempts.items() if a != min(attempts)]
    found: dict[int, RestartKind] = {}
    for attempt, step, kind in sorted(said, key=lambda s: list(kinds).index(s[2])):
        gone = any(a > (attempt or a) and first <= step for a, first in attempts.items())
        if not gone:
            found.setdefault(step, kinds[kind])
    return found


def gather(signals: pd.DataFrame, arl: float, restarts: Restarts | None = None) -> Evidence:
    """Compute the evidence series from a frame with the columns of `schema.SIGNALS`.

    At every step of `restarts` the run is declared to have changed, and what it is compared with
    begins anew: medians of gradient norm and entropy, lowest entropy, best level and its noise. The
    best reward is kept, so that a run that is resumed again and again cannot die slowly unseen;
    only with new data does it begin anew, because rewards on other data are no measure.
    """
    restarts = restarts or {}
    step = signals["step"].to_numpy(dtype=np.int64)
    parts = np.searchsorted(step, sorted(restarts))
    data = np.searchsorted(step, sorted(s for s in restarts if restarts[s] == "data"))
    reward, delta = floats(signals, "reward"), floats(signals, "delta_correct")
    level, entropy = floats(signals, "correct_logp"), floats(signals, "entropy")
    # Where all groups have equal rewards there is no gradient, and its norm says nothing.
    nothing = floats(signals, "zero_signal_share") == 1.0
    gradient = np.where(nothing, np.nan, floats(signals, "grad_norm"))
    paid, switch = normalized_reward(reward, floats(signals, "success"))
    scales = data if switch is None else np.union1d(data, [switch])
    seen = ~np.isnan(np.stack([reward, delta, level, entropy, gradient])).all(axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        mean_reward = on_measured(reward, lambda v: d.trailing_mean(v, SMOOTH, SMOOTH), data)
        mean_paid = on_measured(paid, lambda v: d.trailing_mean(v, SMOOTH, SMOOTH), scales)
        has_delta, has_level = _grades(signals, delta, level)
        return Evidence(
            signals=signals,
            arl=arl,
            restarts=restarts,
            step=step,
            measured=np.cumsum(seen),
            has_delta=has_delta,
            has_level=has_level,
            reward=mean_reward,
            reward_peak=on_measured(mean_reward, np.fmax.accumulate, data),
            normalized_reward=paid,
            normalized_mean=mean_paid,
            normalized_peak=on_measured(mean_paid, np.fmax.accumulate, scales),
            reward_rise=on_measured(reward, lambda v: d.rise(v, LOOK), data, 0.0),
            delta=_mean_delta(signals, delta),
            delta_t=on_measured(delta, lambda v: d.trailing_t(v, LOOK, SMOOTH), None, 0.0),
            accelerates=np.where(has_delta, _faster(delta), _faster(_changes(level, parts))),
            decay=decay.test(signals, arl, parts.tolist()),
            grad_ratio=on_measured(gradient, lambda v: d.over_median(v, 2, 5, 30, 10), parts),
            entropy_ratio=on_measured(entropy, lambda v: d.over_median(v, 3, 10, 50, 15), parts),
            entropy_gain=on_measured(entropy, lambda v: _now(v) - _lowest(v), parts),
            entropy_rise=on_measured(entropy, _over_lowest, parts),
        )


def on_measured(
    values: d.Series,
    statistic: Callable[[d.Series], d.Series],
    parts: Rows | None = None,
    before: float = np.nan,
) -> d.Series:
    """A statistic of the measured rows alone; its last answer holds on rows without a measurement,
    `before` until there is one. It begins anew at each row of `parts`."""
    out = np.full(len(values), before)
    edges = [0, *(() if parts is None else parts), len(values)]
    for start, end in pairwise(edges):
        rows = start + np.flatnonzero(~np.isnan(values[start:end]))
        if len(rows):
            last = np.searchsorted(rows, np.arange(start, end), side="right") - 1
            out[start:end] = np.where(last < 0, before, statistic(values[rows])[last])
    return out


def _grades(signals: pd.DataFrame, delta: d.Series, level: d.Series) -> tuple[Flags, Flags]:
    """Where Δ and the level are there to judge by: measured GRADE_LEAST times, and last not longer
    ago than GRADE_LOST steps on which they could have been.

    Without a correct response there is no level, and without a mixed group no Δ; a dying run has
    many such steps, and they do not mean that its log lacks anything.
    """
    none_correct = floats(signals, "success") == 0.0
    none_mixed = none_correct | (floats(signals, "zero_signal_share") == 1.0)
    return _there(delta, none_mixed), _there(level, none_correct)


def _there(values: d.Series, could_not: Flags) -> Flags:
    seen = ~np.isnan(values)
    missing = np.cumsum(~seen & ~could_not)
    at_last = np.maximum.accumulate(np.where(seen, missing, 0)) if len(seen) else missing
    return (np.cumsum(seen) >= GRADE_LEAST) & (missing - at_last < GRADE_LOST)


def _changes(level: d.Series, parts: Rows) -> d.Series:
    """What the level gained since its last measurement; NaN across a restart."""
    return on_measured(level, lambda v: np.diff(v, prepend=np.nan), parts) + 0.0 * level


def _faster(gain: d.Series) -> Flags:
    """Whether correct responses lose, and more in the last SMOOTH measured steps than in BEFORE
    before those: the third condition of the death spiral (arXiv 2512.04220 v2, Def. A.3).

    `gain` is Δ or the change of the level. Single steps count up to limits, taken from the size
    that was usual before, because one of them can lose ten nats.
    """

    def faster(values: d.Series) -> d.Series:
        rows = d.trailing(values, BEFORE + SMOOTH)
        enough = np.count_nonzero(~np.isnan(rows), axis=1) >= 2 * SMOOTH
        out = np.zeros(len(values))
        if enough.any():
            then, now = rows[enough, :BEFORE], rows[enough, BEFORE:]
            size = d.row_medians(np.abs(then))[:, None]
            means = [np.nanmean(counted(x, size), axis=1) for x in (then, now)]
            out[enough] = (means[1] < 0.0) & (means[1] < means[0])
        return out

    return on_measured(gain, faster, None, 0.0) > 0.0


def counted(gain: d.Series, size: float | d.Series) -> d.Series:
    """Gains and losses up to limits, for means that one step must not decide; `size` is usual."""
    loss, most = (limit * USUAL * size for limit in COUNTED)
    return np.clip(gain, -loss, most)


def _now(entropy: d.Series) -> d.Series:
    return d.trailing_mean(entropy, 3, 1)


def _lowest(entropy: d.Series) -> d.Series:
    return np.fmin.accumulate(d.trailing_mean(entropy, SMOOTH, SMOOTH))


def _over_lowest(entropy: d.Series) -> d.Series:
    return _now(entropy) / np.maximum(_lowest(entropy), 1e-12)


def _mean_delta(signals: pd.DataFrame, delta: d.Series) -> d.Series:
    """Trailing mean of Δ over correct responses, each response weighing the same; each step where a
    log has means alone."""
    count = floats(signals, "n_delta_correct")
    total = np.where(count > 0, floats(signals, "delta_correct_sum"), np.nan)
    count = np.where(np.isnan(total), np.nan, count)
    series = (total, count, delta)
    mean = [on_measured(v, lambda x: d.trailing_mean(x, SMOOTH, 1)) for v in series]
    return np.where(np.isnan(mean[1]), mean[2], mean[0] / mean[1])
