"""Series and phrases shared by several rules. Causal; NaN where nothing was measured."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.numbers import percent
from .. import detectors as d
from ..evidence import Evidence, Flags, RestartKind, once
from ..outcome import outcome, reward_series, reward_signal
from ..rule import Measurement

REPORTS = "none: it reports what was recorded"  # the false alarms of rules without a threshold
EARLIER_MAXIMUM = "× its earlier maximum"  # the unit of `over_former_max`
RECENT, BEFORE = 3, 20  # steps after and before a sudden change
CLEAR = 4.0  # standard errors of such a change


@once
def mean(e: Evidence, name: str, window: int) -> d.Series:
    """Mean of the last `window` steps of a signal."""
    return d.trailing_mean(e.column(name), e.cadence.rows(window), 1)


def share_above(e: Evidence, name: str, window: int, limit: float, what: str) -> Measurement:
    """Measure whether the mean of a share over `window` steps is above `limit`; `what` names the
    share."""
    share = mean(e, name, window)

    def message(row: int) -> str:
        steps = e.cadence.spans(window)
        return f"{percent(share[row])} {what} over {steps} steps (limit {percent(limit)})"

    return Measurement(share > limit, share, limit, message)


class Change(NamedTuple):
    """Mean of the last few steps, mean of the BEFORE steps before them, and the standard error of
    their difference from the noise of the steps before."""

    before: d.Series
    now: d.Series
    error: d.Series


@once
def change(e: Evidence, name: str, recent: int = RECENT) -> Change:
    """The change of a signal at each row; of "reward", the change of the outcome."""
    last, window = e.cadence.rows(recent), e.cadence.rows(BEFORE, 10)

    def statistics(values: d.Series) -> list[d.Series]:
        before = d.shifted(d.trailing_mean(values, window, window // 2), last)
        noise = d.shifted(d.noise_of_means(values), last)
        error = np.sqrt(noise * (1 / last + 1 / window))
        return [before, d.trailing_mean(values, last, last), error]

    values = reward_series(e) if name == "reward" else e.column(name)
    return d.fields_on_measured(Change, values, statistics, e.resets)


def reward_left(e: Evidence) -> d.Series:
    """The reward of the last few steps as a share of the reward before, both above the floor."""
    reward, floor = change(e, "reward"), outcome(e).floor
    height = reward.before - floor
    return np.where(height > 0, (reward.now - floor) / height, np.nan)


def reward_fell(e: Evidence) -> Flags:
    reward = change(e, "reward")
    return reward.before - reward.now > CLEAR * reward.error


def over_former_max(
    values: d.Series,
    limit: float,
    least: int,
    lasts: int | None = None,
    resets: Flags | None = None,
) -> d.Series:
    """Each value over the largest earlier one; NaN before there are `least` of them.

    Values of at least `limit` times the largest are not added to it, so a jump remains a jump
    however long it lasts; with `lasts`, it is added after so many steps. Rows in `resets` forget
    all earlier values.
    """
    out = [np.nan] * len(values)
    starts = set() if resets is None else set(np.flatnonzero(resets).tolist())
    state = d.cell()
    largest, count, jumped = state.value or (0.0, 0, 0)
    for t, value in enumerate(values.tolist()):
        if t in starts:
            largest, count, jumped = 0.0, 0, 0
        if value != value:
            continue
        if count >= least and largest > 0:
            out[t] = value / largest
        jumped = jumped + 1 if out[t] >= limit else 0
        if not jumped or jumped == lasts:
            largest = max(largest, value)
        count += 1
    state.value = largest, count, jumped
    return np.array(out, dtype=np.float64)


def restarts(e: Evidence, *kinds: RestartKind) -> Flags:
    """Rows with a declared change of one of these kinds."""
    return np.isin(e.step, [step for step, kind in e.restarts.items() if kind in kinds])


def reward_name(e: Evidence) -> str:
    """The display name of the outcome's signal."""
    is_reward = reward_signal(e) == "reward"
    return "the reward" if is_reward else "the share of correct responses"
