"""The reward falls: on its own account, or while the policy does what it did before."""

from __future__ import annotations

import numpy as np

from ...signals import detectors as d
from ...signals import phases as p
from ...signals.evidence import SMOOTH, Evidence, Flags, once
from ...signals.normalized_reward import LEAST
from ..rule import CauseRank, Measurement, Rule, Severity
from .measures import mean, percent, reward_name, trailing_sd

HALVED = 0.5  # × trailing median of the reward
SUDDEN = d.MedianWindow(recent=3, gap=3, window=20, least=10)
STEADY = (0.8, 1.25)  # × trailing median of each signal of the policy
CLEAR_FALL = 4.0  # standard errors of the mean of the recent steps
TOOLS_WORK = 0.1  # of the tool calls: the largest share that may fail
POLICY = ("entropy", "response_tokens", "valid_searches", "answered_share")


@once
def crash(e: Evidence) -> Measurement:
    value, limit = e.normalized_mean / e.normalized_peak, p.crash_limit(e)

    def message(row: int) -> str:
        return (
            f"{reward_name(e, row)} is {e.normalized_mean[row]:.2f} over {SMOOTH} steps, "
            f"{percent(value[row])} of its best ({e.normalized_peak[row]:.2f}; limit "
            f"{percent(limit[row])})"
        )

    return Measurement(p.reward_crashed(e), value, limit, message)


@once
def parsing(e: Evidence) -> Measurement:
    ratio = _sudden(e, "reward")

    def message(row: int) -> str:
        ratios = {name: _sudden(e, name)[row] for name in POLICY}
        same = ", ".join(f"{name} {x:.2f} ×" for name, x in ratios.items() if not np.isnan(x))
        now = d.trailing_mean(e.normalized_reward, SUDDEN.recent, 1)[row]
        return (
            f"{reward_name(e, row)} fell to {now:.2f}, {percent(ratio[row])} of what it was, "
            f"within {SUDDEN.recent} steps, and the policy did not change ({same})"
        )

    holds = (ratio <= HALVED) & _clearly_fallen(e)
    if holds.any():
        holds = holds & _policy_unchanged(e)
    return Measurement(holds, ratio, np.full_like(ratio, HALVED), message)


@once
def _sudden(e: Evidence, name: str) -> d.Series:
    return d.over_median(e.normalized_reward if name == "reward" else e.column(name), *SUDDEN)


def _clearly_fallen(e: Evidence) -> Flags:
    """The fall is larger than the noise of the steps before explains."""
    reward, (recent, gap, window, least) = e.normalized_reward, SUDDEN
    before = np.concatenate([np.full(gap, np.nan), reward])[: len(reward)]
    error = trailing_sd(before, window, least) / np.sqrt(recent)
    fall = d.trailing_mean(before, window, least) - d.trailing_mean(reward, recent, recent)
    return fall >= CLEAR_FALL * error


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


RULES = (
    Rule(
        "reward-crash",
        Severity.CRITICAL,
        needs=("reward",),
        meaning=f"The reward is under {percent(p.CRASH)} of its best {SMOOTH}-step mean, or under "
        f"{percent(p.CRASH_AFTER_SURGE)} after a surge of gradient norm or entropy. This says that "
        "the run is dying, not why.",
        evidence=f"Trailing {SMOOTH}-step mean of the reward against the best such mean so far: "
        f"under {p.CRASH:g} of it, under {p.CRASH_AFTER_SURGE:g} within {p.MEMORY} steps of a "
        f"surge of gradient norm or entropy, under {p.CRASH_AFTER_EXPLOSION:g} within {p.MEMORY} "
        f"steps of a gradient norm of {p.EXPLOSION:g} × its median. Shares of a reward that can be "
        "negative mean nothing: the share of correct responses replaces it, or else the reward "
        f"above the least it can be (−{-LEAST:g}, or the lowest so far).",
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
        evidence=f"Reward of the last {SUDDEN.recent} steps against the {SUDDEN.window} before, "
        f"while entropy, length, searches and answers stay within {STEADY[0]:g} to {STEADY[1]:g} "
        f"of theirs and less than {percent(TOOLS_WORK)} of the tool calls fail.",
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
