"""The reward falls: on its own account, or while the policy does what it did before."""

from __future__ import annotations

import numpy as np

from ...core.numbers import short
from .. import detectors as d
from .. import phases as p
from .. import reward_noise
from ..evidence import SMOOTH, Evidence, Flags, once
from ..normalized_reward import LEAST
from ..rule import CauseRank, Measurement, Rule, Severity
from .measures import latest, mean, percent, reward_name, trailing_sd

DECLINED = 0.8  # × the best trailing mean of the reward
HALVED = 0.5  # × trailing median of the reward
SUDDEN = d.MedianWindow(recent=3, gap=3, window=20, least=10)
STEADY = (0.8, 1.25)  # × trailing median of each signal of the policy
CLEAR_FALL = 4.0  # standard errors of the mean of the recent steps
TOOLS_WORK = 0.1  # of the tool calls: the largest share that may fail
BOUNDED = f"{', '.join(map(str, reward_noise.WINDOWS[:-1]))} or {reward_noise.WINDOWS[-1]}"
POLICY = ("entropy", "response_tokens", "valid_searches", "answered_share")


@once
def decline(e: Evidence) -> Measurement:
    limit = DECLINED * e.normalized_peak
    return _fall(e, p.reward_fallen(e, limit), limit)


@once
def crash(e: Evidence) -> Measurement:
    return _fall(e, p.reward_crashed(e), p.crash_limit(e))


def _fall(e: Evidence, holds: Flags, least: d.Series) -> Measurement:
    value, limit = (x / e.normalized_peak for x in (e.normalized_mean, least))

    def message(row: int) -> str:
        return (
            f"{reward_name(e, row)} is {e.normalized_mean[row]:.2f} over {e.cadence.spans(SMOOTH)} "
            f"steps, "
            f"{percent(value[row])} of its best ({e.normalized_peak[row]:.2f}; limit "
            f"{percent(limit[row])}; noise of a mean ±{short(reward_noise.margin(e)[row], 2)})"
        )

    return Measurement(holds, value, limit, message)


@once
def parsing(e: Evidence) -> Measurement:
    ratio = _sudden(e, "reward")

    def message(row: int) -> str:
        ratios = {name: _sudden(e, name)[row] for name in POLICY}
        same = ", ".join(f"{name} {x:.2f} ×" for name, x in ratios.items() if not np.isnan(x))
        now = latest(e, e.normalized_reward, row, SUDDEN)
        return (
            f"{reward_name(e, row)} fell to {now:.2f}, {percent(ratio[row])} of what it was, "
            f"within {e.cadence.spans(SUDDEN.recent)} steps, and the policy did not change ({same})"
        )

    holds = (ratio <= HALVED) & _clearly_fallen(e)
    if holds.any():
        holds = holds & _policy_unchanged(e)
    return Measurement(holds, ratio, d.constant(HALVED, ratio), message)


@once
def _sudden(e: Evidence, name: str) -> d.Series:
    values = e.normalized_reward if name == "reward" else e.column(name)
    return d.over_median(values, *e.cadence.median(SUDDEN))


def _clearly_fallen(e: Evidence) -> Flags:
    """The fall is larger than the noise of the steps before explains."""
    reward, (recent, gap, window, least) = e.normalized_reward, e.cadence.median(SUDDEN)
    noise = reward_noise.error(e, SUDDEN.recent)
    before, error = (d.shifted(x, gap) for x in (reward, noise))
    fall = d.trailing_mean(before, window, least) - d.trailing_mean(reward, recent, recent)
    return fall >= CLEAR_FALL * np.fmax(error, trailing_sd(before, window, least) / np.sqrt(recent))


def _policy_unchanged(e: Evidence) -> Flags:
    """Entropy and length or answers were measured, and every measured signal of the policy is what
    it was."""
    ratios = {name: _sudden(e, name) for name in POLICY}
    measured = {name: ~np.isnan(ratio) for name, ratio in ratios.items()}
    low, high = STEADY
    steady = np.logical_and.reduce(
        [(r >= low) & (r <= high) | ~measured[name] for name, r in ratios.items()]
    )
    failed = mean(e, "tool_fail_share", SUDDEN.recent)
    works = np.isnan(failed) | (failed < TOOLS_WORK)
    known = measured["entropy"] & (measured["response_tokens"] | measured["answered_share"])
    return steady & works & known


BEYOND_NOISE = (
    f"the mean over {BOUNDED} steps must be under the best beyond the noise of the run's "
    "successive steps: confidence bounds at "
    f"{percent(1 - reward_noise.LEVEL)} for all means of the run at once"
)

RULES = (
    Rule(
        "reward-decline",
        Severity.WARNING,
        needs=("reward",),
        meaning=f"The reward is under {percent(DECLINED)} of its best {SMOOTH}-step mean, by more "
        "than its noise explains. Why, this does not say.",
        evidence=f"Trailing {SMOOTH}-step mean of the reward against the best such mean so far: "
        f"under {DECLINED:g} of it, and {BEYOND_NOISE}. Rewards that can be negative are put on "
        "another scale, as for reward-crash.",
        advice="Look at what began before it: Δ, entropy, gradient norm, the look-alikes. Where "
        "the held-out score falls as well, lower the learning rate or go back to the checkpoint "
        "with the best one.",
        confused_with="Harder questions from some step on (a curriculum, another data mix): "
        "declare them as an event `data_change`.",
        measure=decline,
        unit=f"of the best {SMOOTH}-step mean",
        for_steps=5,
        fires_below=True,
    ),
    Rule(
        "reward-crash",
        Severity.CRITICAL,
        needs=("reward",),
        meaning=f"The reward is under {percent(p.CRASH)} of its best {SMOOTH}-step mean, or, after "
        f"a surge of gradient norm or entropy, under {percent(p.CRASH_AFTER_SURGE)} of it, by more "
        "than its noise explains. This says that the run is dying, not why.",
        evidence=f"Trailing {SMOOTH}-step mean of the reward against the best such mean so far: "
        f"under {p.CRASH:g} of it. Within {p.MEMORY} steps of a surge of gradient norm or entropy: "
        f"under {p.CRASH_AFTER_SURGE:g} of the least that best can have been, and as soon after "
        f"a gradient norm of {p.EXPLOSION:g} × its median under "
        f"{p.CRASH_AFTER_EXPLOSION:g} of that. In each case {BEYOND_NOISE}. "
        "Shares of a reward that can be negative mean nothing: the share of correct responses "
        "replaces it, or else "
        f"the reward above the least it can be (−{-LEAST:g}, or the lowest so far).",
        advice="Stop and look at the look-alikes: a dead tool, truncation and a mask bug look the "
        "same here.",
        confused_with="Harder questions from some step on (a curriculum, another data mix).",
        measure=crash,
        unit=f"of the best {SMOOTH}-step mean",
        for_steps=5,
        fires_below=True,
    ),
    Rule(
        "reward-parsing",
        Severity.WARNING,
        needs=("reward",),
        needs_too=("entropy", "response_tokens"),
        meaning=f"The reward has fallen to {percent(HALVED)} or less of what it was within "
        f"{SUDDEN.recent} steps, and the policy does what it did before: what changed is the "
        "reward, the questions, or what the tool answers.",
        evidence=f"Median reward of the last {SUDDEN.recent} steps against that of the "
        f"{SUDDEN.window} before, while entropy, length, searches and answers stay within "
        f"{STEADY[0]:g} to {STEADY[1]:g} of theirs and less than {percent(TOOLS_WORK)} of the tool "
        "calls fail.",
        advice="Score some old rollouts again with today's reward; look at samples for answers "
        "that are right and get nothing; check data mix and retrieved documents.",
        confused_with="A change of data or of the retriever's index: the log cannot tell them "
        "apart. A reward that is parsed wrongly from the first step on is not seen.",
        measure=parsing,
        unit="of the reward's trailing median",
        for_steps=2,
        cause=CauseRank.PRIMARY,
        fires_below=True,
    ),
)
