"""The causal phase classifier: evidence → one phase per step (arXiv 2512.04220 v2, §5.1).

    stagnation  I    the reward rises and the likelihood of correct responses does not
    decay       II   the likelihood of correct responses falls
    collapse    III  decay, and gradient norm or entropy breaks out, or the reward crashes

and around them `warmup` (too little data), `healthy`, `recovered` (left decay or collapse). Where Δ
is measured, rising and falling are said of Δ (Def. 4.1), otherwise of the likelihood level; with
neither, no phase is claimed. A phase is entered after its condition has held for some steps and
left after it has not for LEAVE steps; collapse is left only if the reward comes back as well,
because likelihood rebounds for a while during a collapse (Fig. 2, steps 145–149).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from . import detectors as d
from .evidence import Evidence, Flags

Phase = Literal["warmup", "healthy", "stagnation", "decay", "collapse", "recovered"]
LEAST = 20  # measured steps before any phase but warmup
ENTER_STAGNATION = 5
ENTER_DECAY = 3
ENTER_COLLAPSE = 2
LEAVE = 20  # steps without the condition before a phase is left
RECOVER = 40  # steps of regained reward and rising likelihood before collapse is left
MEMORY = 40  # steps after decay in which a break-out still counts as its consequence
RISES = 2.0  # standard errors
FALLS = -3.0
GRAD_BREAKOUT = 3.0  # × trailing median
ENTROPY_BREAKOUT = 1.5  # × trailing median …
ENTROPY_GAIN = 0.1  # … and nats/token above its lowest
CRASH = 0.5  # × the best trailing mean of the reward


def decay_test_fires(e: Evidence) -> Flags:
    """The sequential test on Δ, or, without Δ, the limit on the fall of the level."""
    return e.decay.fires


def falling(e: Evidence) -> Flags:
    """Correct responses lose likelihood: the decay test fires, or Δ̄ is well below 0."""
    return decay_test_fires(e) | (e.has_delta & (e.delta_t <= FALLS))


def rising(e: Evidence) -> Flags:
    """Correct responses gain likelihood."""
    return np.where(e.has_delta, e.delta_t >= RISES, e.has_level & (e.level_fall <= 0.0))


def entropy_breaks_out(e: Evidence) -> Flags:
    return (e.entropy_ratio >= ENTROPY_BREAKOUT) & (e.entropy_gain >= ENTROPY_GAIN)


def gradient_breaks_out(e: Evidence) -> Flags:
    return e.grad_ratio >= GRAD_BREAKOUT


def reward_crashed(e: Evidence) -> Flags:
    """The trailing mean of the reward is under half of its best."""
    return (e.reward_peak > 0) & (e.reward < CRASH * e.reward_peak)


def classify(e: Evidence) -> list[Phase | None]:
    """The phase of every row; None where the log holds no likelihood to speak of."""
    falls = falling(e)
    stagnates = (e.reward_rise >= RISES) & ~rising(e)
    breaks = gradient_breaks_out(e) | entropy_breaks_out(e) | reward_crashed(e)
    back = rising(e) & (e.reward >= 0.9 * e.reward_peak)
    held = {
        "falls": d.consecutive(falls),
        "not_falls": d.consecutive(~falls),
        "stagnates": d.consecutive(stagnates),
        "not_stagnates": d.consecutive(~stagnates),
        "breaks": d.consecutive(breaks),
        "back": d.consecutive(back),
    }
    sees = e.has_delta | e.has_level
    phases: list[Phase | None] = []
    phase: Phase = "warmup"
    decayed_at = -MEMORY - 1
    for t in range(len(e.step)):
        if e.measured[t] >= LEAST and sees[t]:
            now = {name: int(steps[t]) for name, steps in held.items()}
            phase = _next(phase, now, t - decayed_at <= MEMORY)
            if phase == "decay":
                decayed_at = t
        phases.append(phase if sees[t] or e.measured[t] < LEAST else None)
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
