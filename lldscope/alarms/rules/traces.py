"""What the rules look at that name a cause other than Lazy Likelihood Displacement."""

from __future__ import annotations

import numpy as np

from ...signals import detectors as d
from ...signals.evidence import Evidence, Flags, once
from .measures import mean, normalized_reward, over_former_max, percent, restarts, trailing_sd

DEAD_CALLS = 0.5  # of the tool calls
CUT = 0.33  # of the rollouts
GAP = 0.05  # nats/token between engine and trainer …
GAP_GROWN = 0.02  # … or this, where the run's own first steps had far less:
GAP_BASE = 20  # measured steps
LR_JUMP = 3.0  # × the largest rate before
LR_LASTS = 50  # steps
LR_LEAST = 5  # steps with a rate before one can be called a jump
SIZE_JUMP = 1.5  # × the largest group before
SIZE_LEAST = 10
MANY_GROUPS = 0.1  # of the groups with two prompts, before they explain what becomes of a run
CENTRED = 0.01  # mean advantage of a group, for at least …
CENTRED_LEAST = 5  # … steps
OFF_CENTRE = 0.05
LENGTH_JUMP = 1.4  # × the longest mean response before
LENGTH_LEAST = 10
BROKEN_TURNS = 0.1  # share of invalid actions, or of truncated rollouts
IMPOSSIBLE = -20.0  # nats: with a vocabulary of V, fewer than 50·V·e⁻²⁰ of actions of 50 tokens …
MERGED = 0.5  # … sampled from π_old hold such a token, 1.5 % for V = 150,000
HALVED = 0.5  # × trailing median of the reward
STEADY = (0.8, 1.25)  # × trailing median of what the policy does
CLEAR_FALL = 4.0  # standard errors of a three-step mean


# -- engine ---------------------------------------------------------------------------------------


@once
def gap(e: Evidence) -> d.Series:
    return np.abs(mean("engine_gap", 3)(e))


@once
def gap_limit(e: Evidence) -> d.Series:
    """GAP, or less where engine and trainer agreed far better in the first steps of the run."""
    gaps = e.column("engine_gap")
    first = np.abs(gaps[~np.isnan(gaps)][:GAP_BASE])
    known = np.cumsum(~np.isnan(gaps)) > GAP_BASE
    agreed = len(first) == GAP_BASE and float(np.median(first)) < GAP_GROWN / 10
    return np.where(known & agreed, GAP_GROWN, GAP)


def mismatch(e: Evidence, t: int) -> str:
    return (
        f"log π of the engine that sampled is {mean('engine_gap', 3)(e)[t]:+.3f} nats/token away "
        f"from the trainer's on the same tokens (limit ±{gap_limit(e)[t]:g})"
    )


# -- groups ---------------------------------------------------------------------------------------


@once
def size_ratio(e: Evidence) -> d.Series:
    sizes = e.column("group_size_max")
    return over_former_max(sizes, SIZE_JUMP, SIZE_LEAST, None, restarts(e, "data", "resume"))


@once
def off_centre(e: Evidence) -> Flags:
    """Advantages are no longer relative to the recorded groups, and had been. A method that never
    centres them in groups is none of this rule's business."""
    offset = e.column("advantage_offset")
    centred = np.cumsum(offset < CENTRED) >= CENTRED_LEAST
    return centred & (offset > OFF_CENTRE)


@once
def by_size(e: Evidence) -> Flags:
    """Only where no prompt is recorded: with prompts, a large group of one prompt is in order."""
    return np.isnan(e.column("prompt_collision_share")) & (size_ratio(e) >= SIZE_JUMP)


def collides(e: Evidence) -> Flags:
    return (e.column("prompt_collision_share") > 0) | off_centre(e) | by_size(e)


def collides_often(e: Evidence) -> Flags:
    """Often enough to explain what becomes of the run."""
    return (e.column("prompt_collision_share") >= MANY_GROUPS) | off_centre(e) | by_size(e)


def collision(e: Evidence, t: int) -> str:
    share = e.column("prompt_collision_share")[t]
    if share > 0:
        return f"{percent(share)} of the groups hold rollouts of more than one prompt"
    if off_centre(e)[t]:
        offset = e.column("advantage_offset")[t]
        return (
            f"the advantages of a recorded group have a mean of {offset:.2f} in absolute value, "
            "where it was 0 before: they are relative to other groups"
        )
    return (
        f"the largest group has {e.column('group_size_max')[t]:.0f} rollouts, "
        f"{size_ratio(e)[t]:.1f} × the largest before (prompts are not recorded, so they cannot be "
        "compared)"
    )


def collision_value(e: Evidence) -> d.Series:
    """The measurement behind the sentence."""
    share, offset = e.column("prompt_collision_share"), e.column("advantage_offset")
    other = np.where(by_size(e) | np.isnan(share), size_ratio(e), share)
    return np.where((share > 0) | ~off_centre(e), other, offset)


def collision_limit(e: Evidence) -> d.Series:
    share = e.column("prompt_collision_share")
    other = np.where(by_size(e) | np.isnan(share), SIZE_JUMP, 0.0)
    return np.where((share > 0) | ~off_centre(e), other, OFF_CENTRE)


# -- learning rate --------------------------------------------------------------------------------


@once
def lr_ratio(e: Evidence) -> d.Series:
    """A rate that has stayed for LR_LASTS steps counts as usual."""
    return over_former_max(e.column("lr"), LR_JUMP, LR_LEAST, LR_LASTS, restarts(e, "lr"))


def jump(e: Evidence, t: int) -> str:
    lr, ratio = e.column("lr")[t], lr_ratio(e)[t]
    return (
        f"the learning rate is {lr:.2g}, {ratio:.1f} × the largest before ({lr / ratio:.2g}; limit "
        f"{LR_JUMP:g} ×)"
    )


# -- mask -----------------------------------------------------------------------------------------


@once
def longer(e: Evidence) -> d.Series:
    tokens = e.column("response_tokens")
    return over_former_max(tokens, LENGTH_JUMP, LENGTH_LEAST, None, restarts(e, "data"))


@once
def grown_by_tool_text(e: Evidence) -> Flags:
    """Responses became much longer from one step to the next with as many searches as before, and
    stay that long. What the policy writes by itself grows over many steps, or goes with invalid or
    truncated turns.
    """
    ratio = d.over_median(e.column("valid_searches"), 1, 1, 20, 10)
    usual = (ratio >= STEADY[0] / 1.1) & (ratio <= STEADY[1] * 1.1)
    broken = np.fmax(e.column("invalid_share"), e.column("truncated_share"))
    begins = usual & ~(broken > BROKEN_TURNS)
    long = longer(e) >= LENGTH_JUMP
    out = np.zeros(len(long), dtype=bool)
    for t in np.flatnonzero(long):
        out[t] = out[t - 1] if t and long[t - 1] else begins[t]
    return out


@once
def never_sampled(e: Evidence) -> Flags:
    """Where another engine samples, low log-probabilities are its affair: engine-mismatch."""
    apart = gap(e) >= gap_limit(e)
    return (mean("action_logp_min", 3)(e) <= IMPOSSIBLE) & ~apart


def merged(e: Evidence) -> Flags:
    return mean("merged_action_share", 3)(e) > MERGED


def mask(e: Evidence, t: int) -> str:
    if merged(e)[t]:
        share = mean("merged_action_share", 3)(e)[t]
        return (
            f"{percent(share)} of the answered rollouts that searched have fewer actions than "
            f"turns (limit {percent(MERGED)}): the text between the turns counts as the policy's"
        )
    if never_sampled(e)[t]:
        lowest = mean("action_logp_min", 3)(e)[t]
        return (
            f"in half of the actions the policy gives a token a log-probability under {lowest:.0f} "
            f"(limit {IMPOSSIBLE:.0f}): it cannot have sampled them"
        )
    tokens, searches = e.column("response_tokens")[t], e.column("valid_searches")[t]
    return (
        f"rollouts have {tokens:.0f} action tokens, {longer(e)[t]:.1f} × the most before, from "
        f"one step to the next, with {searches:.1f} valid searches as usual"
    )


def mask_value(e: Evidence) -> d.Series:
    """The measurement behind the sentence."""
    by_length = np.where(never_sampled(e), mean("action_logp_min", 3)(e), longer(e))
    return np.where(merged(e), mean("merged_action_share", 3)(e), by_length)


def mask_limit(e: Evidence) -> d.Series:
    by_length = np.where(never_sampled(e), IMPOSSIBLE, LENGTH_JUMP)
    return np.where(merged(e), MERGED, by_length)


# -- reward ---------------------------------------------------------------------------------------


CONDUCT = ("entropy", "response_tokens", "valid_searches", "answered_share")


@once
def sudden(e: Evidence, name: str) -> d.Series:
    """Mean of the last three steps over the median of the 20 before them."""
    return d.over_median(e.normalized_reward if name == "reward" else e.column(name), 3, 3, 20, 10)


@once
def policy_as_before(e: Evidence) -> Flags:
    """Entropy, and length or answers, are what they were, as is all else that was measured."""
    ratios = {name: sudden(e, name) for name in CONDUCT}
    seen = {name: ~np.isnan(ratio) for name, ratio in ratios.items()}
    steady = np.logical_and.reduce(
        [(ratios[n] >= STEADY[0]) & (ratios[n] <= STEADY[1]) | ~seen[n] for n in CONDUCT]
    )
    tools = mean("tool_fail_share", 3)(e)
    works = np.isnan(tools) | (tools < 0.1)
    return steady & works & seen["entropy"] & (seen["response_tokens"] | seen["answered_share"])


@once
def reward_alone_falls(e: Evidence) -> Flags:
    reward = e.normalized_reward
    before = np.concatenate([np.full(3, np.nan), reward])[: len(reward)]
    error = trailing_sd(before, 20, 10) / np.sqrt(3)
    fall = d.trailing_mean(before, 20, 10) - d.trailing_mean(reward, 3, 3)
    falls = (sudden(e, "reward") <= HALVED) & (fall >= CLEAR_FALL * error)
    return falls & policy_as_before(e) if falls.any() else falls


def halved(e: Evidence, t: int) -> str:
    kept = [
        f"{name} {sudden(e, name)[t]:.2f} ×" for name in CONDUCT if not np.isnan(sudden(e, name)[t])
    ]
    return (
        f"{normalized_reward(e, t)} fell to {d.trailing_mean(e.normalized_reward, 3, 1)[t]:.2f}, "
        f"{percent(sudden(e, 'reward')[t])} of what it was, within three steps, and the policy did "
        f"not change ({', '.join(kept)})"
    )
