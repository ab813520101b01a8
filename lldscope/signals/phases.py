"""The causal phase classifier: evidence → one phase per step (arXiv 2512.04220 v2, §5.1).

    stagnation  I    the reward rises and the likelihood of correct responses does not
    decay       II   the likelihood of correct responses falls
    collapse    III  decay, the fall accelerates or the reward is going too, and gradient norm or
                     entropy breaks out; or decay and the reward has crashed

and around them `warmup` (too little data), `healthy`, `recovered` (left decay or collapse). Where Δ
is measured, rising and falling are said of Δ (Def. 4.1), otherwise of the likelihood level; with
neither, no phase is claimed. A phase is entered after its condition has held for some steps and
left after it has not for LEAVE steps; collapse is left only if the reward comes back as well,
because likelihood rebounds for a while during a collapse (Fig. 2, steps 145–149). Steps on which
nothing was measured count for neither.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from . import detectors as d
from .evidence import Evidence, Flags, Rows, on_measured, once

Phase = Literal["warmup", "healthy", "stagnation", "decay", "collapse", "recovered"]
LEAST = 20  # measured steps before any phase but warmup
ENTER_STAGNATION = 5
ENTER_DECAY = 3
ENTER_COLLAPSE = 2
LEAVE = 20  # steps without the condition before a phase is left
RECOVER = 40  # steps of regained reward and rising likelihood before collapse is left
MEMORY = 40  # steps after decay, or after a break-out, in which what follows is its consequence
RISES = 2.0  # standard errors
FALLS = -3.0
GRAD_BREAKOUT = 3.0  # × trailing median
ENTROPY_BREAKOUT = 1.5  # × trailing median: a surge, which may subside …
ENTROPY_ERUPTION = 2.0  # × trailing median: part of a collapse …
ENTROPY_GAIN = 0.1  # … and nats/token above its lowest
CRASH = 0.5  # × the best trailing mean of the reward
GOING = 0.7  # × the best trailing mean: a crash too, if gradient norm or entropy broke out lately
GOING_AT_ONCE = 0.9  # … and after an explosion
EXPLOSION = 100.0  # × trailing median of the gradient norm
REGAINED = 0.9  # × the best trailing mean before the collapse


@once
def decay_test_fires(e: Evidence) -> Flags:
    """The sequential test on Δ, or, without Δ, the limit on the fall of the level; its last answer
    holds until the next measurement."""
    return on_measured(e.decay.value - e.decay.threshold, lambda margin: margin) >= 0.0


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


def entropy_breaks_out(e: Evidence, times: float = ENTROPY_BREAKOUT) -> Flags:
    """The entropy is `times` its trailing median, and clearly above its lowest."""
    return (e.entropy_ratio >= times) & (e.entropy_gain >= ENTROPY_GAIN)


def gradient_breaks_out(e: Evidence) -> Flags:
    return e.grad_ratio >= GRAD_BREAKOUT


@once
def reward_crashed(e: Evidence) -> Flags:
    """The trailing mean of the reward is under `crash_limit` of its best."""
    return (e.normalized_peak > 0) & (e.normalized_mean < crash_limit(e) * e.normalized_peak)


@once
def crash_limit(e: Evidence) -> d.Series:
    """What share of its best the reward must keep: half; more within MEMORY steps of a break-out,
    where a loss has a second witness, and most after an explosion. Needs no log-probabilities."""
    limit = np.where(_lately(e, _wild(e)), GOING, CRASH)
    return np.where(_lately(e, e.grad_ratio >= EXPLOSION), GOING_AT_ONCE, limit)


def classify(e: Evidence, explained: Flags) -> list[Phase | None]:
    """The phase of every row; None where the log holds no likelihood to speak of. On the rows in
    `explained`, a fall of the likelihood is laid to another cause (`alarms.attribution`)."""
    falls = falling(e) & ~explained
    stagnates = (e.reward_rise >= RISES) & ~rising(e) & ~explained
    breaks = ((_wild(e) & e.accelerates) | reward_crashed(e)) & ~explained
    held = {
        "falls": _held(e, falls).tolist(),
        "not_falls": _held(e, ~falls).tolist(),
        "stagnates": _held(e, stagnates).tolist(),
        "not_stagnates": _held(e, ~stagnates).tolist(),
        "breaks": _held(e, breaks).tolist(),
    }
    rises = rising(e)
    new = (np.diff(e.measured, prepend=0) > 0).tolist()
    sees = (e.has_delta | e.has_level).tolist()
    tests = [basis is not None for basis in e.decay.basis]  # levels need a baseline first
    phases: list[Phase | None] = []
    phase: Phase = "warmup"
    decayed_at = -MEMORY - 1  # in measured steps, like all counts here
    best, back = 0.0, 0  # reward before the collapse; steps for which it has been regained
    counts = [dict(zip(held, row, strict=True)) for row in zip(*held.values(), strict=True)]
    for t, now in enumerate(e.measured.tolist()):
        if now >= LEAST and sees[t] and tests[t] and new[t]:
            counts[t]["back"] = back = back + 1 if rises[t] and e.normalized_mean[t] >= best else 0
            was, phase = phase, _next(phase, counts[t], now - decayed_at <= MEMORY)
            if phase == "decay":
                decayed_at = now
            if phase == "collapse" != was:
                best, back = REGAINED * e.normalized_peak[t], 0
        latched = phase == "collapse"
        phases.append(phase if sees[t] or latched or now < LEAST else None)
    return phases


def _next(phase: Phase, held: dict[str, int], decayed_lately: bool) -> Phase:
    """The phase after one more step; `held` says for how many steps each condition has held."""
    if phase == "collapse":
        return "recovered" if held["back"] >= RECOVER else phase
    if (phase == "decay" or decayed_lately) and held["breaks"] >= ENTER_COLLAPSE:
        return "collapse"
    if held["falls"] >= ENTER_DECAY:
        return "decay"
    if phase == "decay":
        return "recovered" if held["not_falls"] >= LEAVE else phase
    if held["stagnates"] >= ENTER_STAGNATION:
        return "stagnation"
    if phase == "stagnation":
        return "healthy" if held["not_stagnates"] >= LEAVE else phase
    return "healthy" if phase == "warmup" else phase


@once
def _wild(e: Evidence) -> Flags:
    """Gradient norm or entropy breaks out."""
    erupts = entropy_breaks_out(e, ENTROPY_ERUPTION) | gradient_breaks_out(e)
    return erupts | (e.column("n_nonfinite") > 0)


def _lately(e: Evidence, condition: Flags) -> Flags:
    """Whether the condition held for ENTER_COLLAPSE steps within the last MEMORY."""
    held = _held(e, condition) >= ENTER_COLLAPSE
    return (_held(e, ~held) <= MEMORY) & np.logical_or.accumulate(held)


def _held(e: Evidence, condition: Flags) -> Rows:
    """For how many measured steps in a row the condition has held as of each row."""
    rows = np.flatnonzero(np.diff(e.measured, prepend=0))
    steps = np.concatenate([[0], d.consecutive(condition[rows])])
    return steps[e.measured]
