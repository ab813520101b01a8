"""What a run cost in vain: the steps after the first alarm, and groups without a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..diagnosis.detectors import Series
from ..diagnosis.evidence import Evidence
from ..diagnosis.rule import Alert
from .facts import Cost

_PAUSE = 20.0  # usual steps: a longer gap between two rows is a pause and no step


def cost(e: Evidence, alerts: Sequence[Alert], per_hour: float | None) -> Cost | None:
    """What came after the first warning or worse; None where there was none."""
    steps = {a.rule: a.first_step for a in alerts if a.severity != "info"}
    if not steps:
        return None
    rule = min(steps, key=steps.__getitem__)
    return _cost(e, (e.step >= steps[rule]).astype(float), rule, steps[rule], per_hour)


def idle(e: Evidence, per_hour: float | None) -> Cost | None:
    """What groups of equal rewards took, which give no gradient; None where it is not known."""
    share = e.column("zero_signal_share")
    if not np.isfinite(share).any():
        return None
    return _cost(e, np.nan_to_num(share), "zero-signal", int(e.step[0]), per_hour)


def _cost(e: Evidence, share: Series, rule: str, step: int, per_hour: float | None) -> Cost:
    """Of a share of each step."""
    seconds, rollouts = step_seconds(e), e.column("n_responses")
    hours = None if seconds is None else float(np.nansum(share * seconds)) / 3600
    return Cost(
        rule, step, round(float(share.sum())),
        int(np.nansum(share * rollouts)) if np.isfinite(rollouts).any() else None,
        hours, None if hours is None or per_hour is None else hours * per_hour,
    )


def step_seconds(e: Evidence) -> Series | None:
    """Seconds of each step: between the rows, without pauses, or else as the trainer timed them;
    None where neither is recorded."""
    times = np.diff(e.column("time"))
    usual = np.nanmedian(times) if np.isfinite(times).any() else np.nan
    if usual > 0:
        times = np.where((times < 0) | (times > _PAUSE * usual), usual, times)
        return np.concatenate([[usual], times])
    timed = np.stack([e.column("seconds_rollout"), e.column("seconds_update")])
    return np.asarray(np.nansum(timed, axis=0)) if np.isfinite(timed).any() else None
