"""The causal phase classifier: evidence → one phase per step (arXiv 2512.04220 v2, §5.1).

    stagnation  I    the reward rises and the likelihood of correct responses does not
    decay       II   the likelihood of correct responses falls
    collapse    III  decay, and either the fall accelerates while gradient norm or entropy surges,
                     or the reward has crashed

and around them `warmup` (too little data), `healthy`, `recovered` (left decay or collapse). Rising
and falling refer to Δ (Def. 4.1) where it is measured, otherwise to the likelihood level; with
neither, there is no phase. A phase is entered after its condition has held for some steps and left
after it has not held for LEAVE steps; collapse is left only if the reward recovers as well, because
the likelihood rebounds for a while during a collapse (Fig. 2, steps 145–149). Steps on which
nothing was measured are not counted.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from . import detectors as d
from . import reward_noise
from .evidence import SMOOTH, Evidence, Flags, Rows, on_measured, once

Phase = Literal["warmup", "healthy", "stagnation", "decay", "collapse", "recovered"]
LEAST = 20  # measured steps before any phase but warmup
ENTER_STAGNATION = 5
ENTER_DECAY = 3
ENTER_COLLAPSE = 2
LEAVE = 20  # steps without the condition before a phase is left
RECOVER = 40  # steps of regained reward and rising likelihood before collapse is left
MEMORY = 40  # steps for which a decay, or a surge, counts as the cause of what follows it
RISES = 2.0  # standard errors
FALLS = -3.0  # standard errors
FALL_STEPS = 40  # steps that the last SMOOTH are compared with to see the fall accelerate
LARGEST_GAIN = 4.0  # × the median size: gains above it are cut in means of Δ
LARGEST_LOSS = 5.0  # × the largest gain: losses above it are cut in means of Δ
GRADIENT_SURGE = 3.0  # × trailing median
ENTROPY_SURGE = 1.5  # × trailing median: a surge, which may subside
ENTROPY_COLLAPSE = 2.0  # × trailing median: a surge that is part of a collapse
ENTROPY_GAIN = 0.1  # nats/token above its lowest, for either
CRASH = 0.5  # × the best trailing mean of the reward
CRASH_AFTER_SURGE = 0.7  # the same within MEMORY steps of a surge of gradient norm or entropy
CRASH_AFTER_EXPLOSION = 0.9  # the same within MEMORY steps of an explosion
EXPLOSION = 100.0  # × trailing median of the gradient norm
REGAINED = 0.9  # × the best trailing mean before the collapse


def least_rows(e: Evidence) -> int:
    """Measured rows before any phase but warmup."""
    return e.cadence.rows(LEAST, SMOOTH)


@once
def decay_test_fires(e: Evidence) -> Flags:
    """The test on Δ fires, or, without Δ, the level has been under its limit for ENTER_DECAY steps;
    phase II begins with it."""
    over = on_measured(e.decay.value - e.decay.threshold, lambda margin: margin) >= 0.0
    on_level = np.array([basis == "level" for basis in e.decay.basis], dtype=bool)
    return over & (~on_level | (_steps_held(e, over) >= e.cadence.rows(ENTER_DECAY)))


def falling(e: Evidence) -> Flags:
    """Correct responses lose likelihood: the decay test fires, or Δ̄ is well below 0."""
    return decay_test_fires(e) | (e.has_delta & (e.delta_t <= FALLS))


@once
def rising(e: Evidence) -> Flags:
    """Correct responses gain likelihood."""
    return np.where(
        e.has_delta,
        e.delta_t >= RISES,
        e.has_level & (on_measured(e.level_fall, lambda fall: fall) <= 0.0),
    )


@once
def accelerates(e: Evidence) -> Flags:
    """Correct responses lose, and more in the last SMOOTH measured steps than in the FALL_STEPS
    before those: the third condition of the death spiral (arXiv 2512.04220 v2, Def. A.3)."""
    level = e.column("correct_logp")
    # The change since the last measurement; NaN across a restart, and where not measured.
    change = on_measured(level, lambda v: np.diff(v, prepend=np.nan), e.parts) + 0.0 * level
    gains = (e.column("delta_correct"), change)
    before, now = e.cadence.rows(FALL_STEPS), e.cadence.rows(SMOOTH)
    by_delta, by_level = (
        on_measured(g, lambda v: _accelerates(v, before, now), None, 0.0) > 0.0 for g in gains
    )
    return np.where(e.has_delta, by_delta, by_level)


def _accelerates(gain: d.Series, n_before: int, n_now: int) -> d.Series:
    def falls(rows: d.Series) -> d.Series:
        enough = np.count_nonzero(~np.isnan(rows), axis=1) >= 2 * n_now
        out = np.zeros(len(rows))
        if enough.any():
            before, now = rows[enough, :n_before], rows[enough, n_before:]
            size = d.row_medians(np.abs(before))[:, None]
            mean_before, mean_now = (np.nanmean(clip_gains(x, size), axis=1) for x in (before, now))
            out[enough] = (mean_now < 0.0) & (mean_now < mean_before)
        return out

    return d.by_window(gain, n_before + n_now, falls)


def clip_gains(gain: d.Series, size: float | d.Series) -> d.Series:
    """Gains and losses cut to multiples of their usual `size`, so that one step cannot decide a
    mean."""
    largest = LARGEST_GAIN * size
    return np.clip(gain, -LARGEST_LOSS * largest, largest)


def entropy_surges(e: Evidence, times: float = ENTROPY_SURGE) -> Flags:
    """The entropy is `times` its trailing median, and clearly above its lowest."""
    return (e.entropy_ratio >= times) & (e.entropy_gain >= ENTROPY_GAIN)


def gradient_surges(e: Evidence) -> Flags:
    return e.grad_ratio >= GRADIENT_SURGE


def reward_fallen(e: Evidence, limit: d.Series) -> Flags:
    """The trailing mean of the reward is under `limit`, and under its best by more than noise
    explains."""
    return (
        (reward_noise.best_at_least(e) > 0)
        & (e.normalized_mean < limit)
        & (reward_noise.has_fallen(e))
    )


@once
def reward_crashed(e: Evidence) -> Flags:
    """The reward has fallen under `crash_limit`."""
    return reward_fallen(e, crash_limit(e))


@once
def crash_limit(e: Evidence) -> d.Series:
    """The reward under which it has crashed: CRASH of its best; more after a surge or an explosion,
    because a second signal confirms the loss, but of the least that its best can have been."""
    share = np.where(recently(e, _unstable(e)), CRASH_AFTER_SURGE, CRASH)
    share = np.where(recently(e, e.grad_ratio >= EXPLOSION), CRASH_AFTER_EXPLOSION, share)
    return np.fmax(CRASH * e.normalized_peak, share * reward_noise.best_at_least(e))


def classify(e: Evidence, explained: Flags) -> list[Phase | None]:
    """The phase of every row; None where the log has no likelihood. On the rows in `explained`, a
    fall of the likelihood is attributed to a cause other than LLD (`alarms.attribution`)."""
    falls, alarms = falling(e) & ~explained, decay_test_fires(e) & ~explained
    stagnates = (e.reward_rise >= RISES) & ~rising(e) & ~explained
    breaks = ((_unstable(e) & accelerates(e)) | reward_crashed(e)) & ~explained
    conditions = {"falls": falls, "alarms": alarms, "stagnates": stagnates, "breaks": breaks}
    conditions |= {"not_falls": ~falls, "not_stagnates": ~stagnates}
    steps_held = {name: _steps_held(e, c).tolist() for name, c in conditions.items()}
    rises = rising(e)
    new = (np.diff(e.measured, prepend=0) > 0).tolist()
    has_likelihood = (e.has_delta | e.has_level).tolist()
    tested = [basis is not None for basis in e.decay.basis]  # levels need a baseline first
    memory, least = e.cadence.rows(MEMORY), least_rows(e)
    waits = (ENTER_STAGNATION, ENTER_DECAY, ENTER_COLLAPSE, LEAVE, RECOVER)
    rows = {steps: e.cadence.rows(steps) for steps in waits}
    phases: list[Phase | None] = []
    phase: Phase = "warmup"
    decayed_at = -memory - 1  # in measured steps, like all counts here
    regained, regained_steps = 0.0, 0  # the reward that ends a collapse; for how long it is reached
    for t, now in enumerate(e.measured.tolist()):
        if now >= least and has_likelihood[t] and tested[t] and new[t]:
            recovers = rises[t] and e.normalized_mean[t] >= regained
            regained_steps = regained_steps + 1 if recovers else 0
            held = {name: steps[t] for name, steps in steps_held.items()}
            held["recovers"] = regained_steps
            before, phase = phase, _next(phase, held, now - decayed_at <= memory, rows)
            if phase == "decay":
                decayed_at = now
            if phase == "collapse" and before != "collapse":
                regained, regained_steps = REGAINED * e.normalized_peak[t], 0
        latched = phase == "collapse"
        phases.append(phase if has_likelihood[t] or latched or now < least else None)
    return phases


def _next(phase: Phase, held: dict[str, int], after_decay: bool, rows: dict[int, int]) -> Phase:
    """The phase after one more step; `held` says for how many rows each condition has held, `rows`
    how many of them some steps take."""
    if phase == "collapse":
        return "recovered" if held["recovers"] >= rows[RECOVER] else phase
    if (phase == "decay" or after_decay) and held["breaks"] >= rows[ENTER_COLLAPSE]:
        return "collapse"
    if held["alarms"] or held["falls"] >= rows[ENTER_DECAY]:
        return "decay"
    if phase == "decay":
        return "recovered" if held["not_falls"] >= rows[LEAVE] else phase
    if held["stagnates"] >= rows[ENTER_STAGNATION]:
        return "stagnation"
    if phase == "stagnation":
        return "healthy" if held["not_stagnates"] >= rows[LEAVE] else phase
    return "healthy" if phase == "warmup" else phase


@once
def _unstable(e: Evidence) -> Flags:
    """Gradient norm or entropy surges, or a number is not finite."""
    surges = entropy_surges(e, ENTROPY_COLLAPSE) | gradient_surges(e)
    return surges | (e.column("n_nonfinite") > 0)


def recently(e: Evidence, condition: Flags, for_steps: int = ENTER_COLLAPSE) -> Flags:
    """Whether the condition held for so many steps in a row within the last MEMORY."""
    held = _steps_held(e, condition) >= e.cadence.rows(for_steps)
    return (_steps_held(e, ~held) <= e.cadence.rows(MEMORY)) & np.logical_or.accumulate(held)


def _steps_held(e: Evidence, condition: Flags) -> Rows:
    """The number of measured steps in a row for which the condition has held, for each row."""
    rows = np.flatnonzero(np.diff(e.measured, prepend=0))
    steps = np.concatenate([[0], d.consecutive(condition[rows])])
    return steps[e.measured]
