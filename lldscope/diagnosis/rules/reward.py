"""The reward falls: on its own account, or while the policy does what it did before."""

from __future__ import annotations

import numpy as np

from ...core.numbers import short
from .. import detectors as d
from .. import outcome as o
from ..conditions import MEMORY, reward_crashed, second_signs
from ..evidence import SMOOTH, Evidence, Flags, on_measured, once
from ..rule import CauseRank, Measurement, Rule, Severity
from .measures import latest, mean, percent, reward_name, trailing_sd

HALVED = 0.5  # × trailing median of the reward
SUDDEN = d.MedianWindow(recent=3, gap=3, window=20, least=10)
STEADY = (0.8, 1.25)  # × trailing median of each signal of the policy
CLEAR_FALL = 4.0  # standard errors of the mean of the recent steps
TOOLS_WORK = 0.1  # of the tool calls: the largest share that may fail
STEP_RECENT, STEP_BEFORE = 3, 20  # steps after and before a change within one step
STEP_CLEAR = 4.0  # standard errors
STEP_REWARD = 0.8  # of the reward before
STEP_LENGTH = np.log(1.2)  # of the response length before, up or down
STEP_BACK = 0.9  # of the reward before: the change is over
SCORE_STEPS = 80
SCORE_RISE = 3.0  # standard errors of the reward
POLICY = ("entropy", "response_tokens", "valid_searches", "answered_share")


@once
def decline(e: Evidence) -> Measurement:
    return _fall(e, o.declined(e), o.DECLINED)


@once
def crash(e: Evidence) -> Measurement:
    return _fall(e, reward_crashed(e), np.where(o.halved(e), o.HALF, o.DECLINED))


def _fall(e: Evidence, holds: Flags, limit: d.Series | float) -> Measurement:
    result = o.outcome(e)
    share, limits = result.share, np.broadcast_to(limit, holds.shape)

    def message(row: int) -> str:
        also = f", and {signs}" if (signs := second_signs(e, row)) else ""
        return (
            f"{reward_name(e)} is {result.level[row]:.2f} ± {short(result.error[row], 1)} over "
            f"{e.cadence.spans(SMOOTH)} steps, {percent(max(share[row], 0.0))} of its best (about "
            f"{result.best[row]:.2f}; limit {percent(limits[row])}){also}"
        )

    return Measurement(holds, share, limits, message)


@once
def step_change(e: Evidence) -> Measurement:
    """The reward fell and the length changed within one step, and the reward has not come back."""
    reward, length = o.reward_series(e), np.log(np.fmax(e.column("response_tokens"), 1e-9))
    rows = e.cadence.rows(STEP_RECENT), e.cadence.rows(STEP_BEFORE, 10)
    (before, now), (length_before, length_now) = (
        on_measured(x, lambda v: _two_means(v, *rows), e.parts, series=2) for x in (reward, length)
    )
    noise, length_noise = (
        on_measured(x, lambda v: d.shifted(d.noise_of_means(v), rows[0]), e.parts)
        for x in (reward, length)
    )
    scale = np.sqrt(1 / rows[0] + 1 / rows[1])
    floor = o.outcome(e).floor
    share = (now - floor) / (before - floor)
    shift = np.abs(length_now - length_before)
    sudden = (before - now > STEP_CLEAR * np.sqrt(noise) * scale) & (share <= STEP_REWARD)
    sudden &= (shift > STEP_CLEAR * np.sqrt(length_noise) * scale) & (shift >= STEP_LENGTH)
    # Most of either change came with one step, which is the first of the last ones.
    sudden &= _in_one_step(reward, now - before, rows[0]) & _in_one_step(
        length, length_now - length_before, rows[0]
    )
    holds, level = np.zeros(len(sudden), dtype=bool), np.nan
    for t, starts in enumerate(sudden.tolist()):
        if starts and level != level:
            level = before[t]
        holds[t] = level == level and not now[t] - floor[t] >= STEP_BACK * (level - floor[t])
        level = level if holds[t] else np.nan

    def message(row: int) -> str:
        return (
            f"within one step {reward_name(e)} went to {percent(max(share[row], 0.0))} of what it "
            f"was ({before[row]:.2f} before, {now[row]:.2f} now) and the response length to "
            f"{percent(float(np.exp(length_now[row] - length_before[row])))}"
        )

    return Measurement(holds, share, d.constant(STEP_REWARD, share), message)


def _two_means(values: d.Series, recent: int, window: int) -> d.Series:
    """Means of the `window` entries before the last `recent` ones, and of these: (2, N)."""
    before = d.shifted(d.trailing_mean(values, window, window // 2), recent)
    return np.stack([before, d.trailing_mean(values, recent, recent)])


def _in_one_step(values: d.Series, change: d.Series, recent: int) -> Flags:
    """At least half of the change came from the row before the last `recent` ones to the next."""
    step = d.shifted(values, recent - 1) - d.shifted(values, recent)
    return np.sign(change) * step >= np.abs(change) / 2


@once
def flat_score(e: Evidence) -> Measurement:
    """The reward rises and the share of correct responses does not, over the same two windows."""
    window = e.cadence.rows(SCORE_STEPS)
    gains = [
        on_measured(e.column(name), lambda v: _gain(v, window), e.data)
        for name in ("reward", "success")
    ]
    limit = d.constant(SCORE_RISE, gains[0])
    apart = ~np.isclose(e.column("reward"), e.column("success"), equal_nan=True)

    def message(row: int) -> str:
        return (
            f"over {2 * e.cadence.spans(SCORE_STEPS)} steps the reward rose by {gains[0][row]:.1f} "
            f"standard errors (limit {SCORE_RISE:g}) and the share of correct responses changed by "
            f"{gains[1][row]:+.1f}"
        )

    holds = (gains[0] >= SCORE_RISE) & (gains[1] <= o.FLAT) & apart
    return Measurement(holds, gains[0], limit, message)


def _gain(values: d.Series, window: int) -> d.Series:
    mean = d.trailing_mean(values, window, window)
    error = np.sqrt(2 * d.shifted(d.noise_of_means(values), window) / window)
    return (mean - d.shifted(mean, window)) / (error + 1e-9)


@once
def parsing(e: Evidence) -> Measurement:
    ratio = _sudden(e, "reward")

    def message(row: int) -> str:
        ratios = {name: _sudden(e, name)[row] for name in POLICY}
        same = ", ".join(f"{name} {x:.2f} ×" for name, x in ratios.items() if not np.isnan(x))
        now = latest(e, o.reward_series(e), row, SUDDEN)
        return (
            f"{reward_name(e)} fell to {now:.2f}, {percent(ratio[row])} of what it was, "
            f"within {e.cadence.spans(SUDDEN.recent)} steps, and the policy did not change ({same})"
        )

    holds = (ratio <= HALVED) & _clearly_fallen(e)
    if holds.any():
        holds = holds & _policy_unchanged(e)
    return Measurement(holds, ratio, d.constant(HALVED, ratio), message)


@once
def _sudden(e: Evidence, name: str) -> d.Series:
    result = o.outcome(e)
    values = o.reward_series(e) - result.floor if name == "reward" else e.column(name)
    return d.over_median(values, *e.cadence.median(SUDDEN))


def _clearly_fallen(e: Evidence) -> Flags:
    """The fall is larger than the noise of the steps before explains."""
    reward, (recent, gap, window, least) = o.reward_series(e), e.cadence.median(SUDDEN)
    noise = on_measured(reward, d.noise_of_means, e.data)
    error = d.shifted(np.sqrt(noise / recent), gap)
    before = d.shifted(reward, gap)
    fall = d.trailing_mean(before, window, least) - d.trailing_mean(reward, recent, recent)
    return fall >= CLEAR_FALL * np.fmax(error, trailing_sd(before, window, least) / np.sqrt(recent))


def _policy_unchanged(e: Evidence) -> Flags:
    """Entropy and length or answers were measured, and every measured signal of the policy is what
    it was."""
    ratios = {name: _sudden(e, name) for name in POLICY}
    has_data = {name: ~np.isnan(ratio) for name, ratio in ratios.items()}
    low, high = STEADY
    steady = np.logical_and.reduce(
        [(r >= low) & (r <= high) | ~has_data[name] for name, r in ratios.items()]
    )
    tool_failures = mean(e, "tool_fail_share", SUDDEN.recent)
    works = np.isnan(tool_failures) | (tool_failures < TOOLS_WORK)
    has_enough = has_data["entropy"] & (has_data["response_tokens"] | has_data["answered_share"])
    return steady & works & has_enough


BEYOND_NOISE = (
    f"a mean over {', '.join(map(str, o.WINDOWS[:-1]))} or {o.WINDOWS[-1]} steps is under the best "
    "such mean before it by more than the noise of the steps before it explains, for "
    f"{o.LASTS} steps and with confidence {percent(1 - o.LEVEL)} for all pairs of means at once, "
    "where the steps are independent of each other"
)
OF_BEST = (
    "Shares are of the best less two standard errors, and above the lowest level so far where "
    "that is under 0."
)

RULES = (
    Rule(
        "reward-decline",
        Severity.WARNING,
        needs=("reward", "success"),
        cause="The reward is clearly under its best",
        action="look at what began before it",
        meaning=f"The reward is under {percent(o.DECLINED)} of its best, by more than its noise "
        "explains. Why, this does not say.",
        evidence=f"{SMOOTH}-step mean of the reward under {percent(o.DECLINED)} of its best, and "
        f"{BEYOND_NOISE}. {OF_BEST}",
        advice="Look at what began before it: Δ, entropy, gradient norm, the look-alikes. Where "
        "the held-out score falls as well, lower the learning rate or go back to the checkpoint "
        "with the best one.",
        confused_with="Harder questions from some step on (a curriculum, another data mix): "
        "declare them as an event `data_change`.",
        measure=decline,
        unit="of its best",
        for_steps=1,
        fires_below=True,
    ),
    Rule(
        "reward-crash",
        Severity.CRITICAL,
        needs=("reward", "success"),
        cause="The reward is being lost",
        action="look for the cause under look-alikes",
        back=True,
        meaning=f"The reward is lastingly under {percent(o.HALF)} of its best, or under "
        f"{percent(o.DECLINED)} while another sign shows that the policy breaks; by more than its "
        "noise explains. This says that the run is dying, not why.",
        evidence=f"{SMOOTH}-step mean of the reward under {percent(o.HALF)} of its best, or under "
        f"{percent(o.DECLINED)} within {MEMORY} steps of a surge of entropy or gradient norm, "
        "responses that shrank, grew or are cut, numbers that are not finite, or correct responses "
        f"that lose likelihood. In each case {BEYOND_NOISE}. {OF_BEST}",
        advice="Look at the look-alikes: a dead tool, truncation and a mask bug look the "
        "same here.",
        confused_with="Harder questions from some step on (a curriculum, another data mix).",
        measure=crash,
        unit="of its best",
        for_steps=1,
        fires_below=True,
    ),
    Rule(
        "step-change",
        Severity.WARNING,
        needs=("reward",),
        needs_too=("response_tokens",),
        cause="Reward and response length changed within one step",
        action="check the retriever, the tools and the data",
        meaning="From one step to the next the reward fell and responses became shorter or longer. "
        "A policy changes over many steps; something that the responses depend on is gone.",
        evidence=f"Mean reward of {STEP_RECENT} steps at most {percent(STEP_REWARD)} of that of "
        f"the {STEP_BEFORE} before, and the response length {percent(np.expm1(STEP_LENGTH))} or "
        f"more off, each by {STEP_CLEAR:g} standard errors and half of it within one step. "
        f"It lasts until the reward is back at {percent(STEP_BACK)} of what it was.",
        advice="Check the retriever, the tools, the prompt and the data of that step; discard what "
        "was trained since if one of them failed.",
        confused_with="A change of data or of the length limit that was meant: declare it as an "
        "event `data_change`.",
        measure=step_change,
        unit="of the reward before",
        fires_below=True,
    ),
    Rule(
        "score-flat",
        Severity.WARNING,
        needs=("success",),
        needs_too=("reward",),
        cause="The reward rises, the share of correct responses does not",
        action="read responses: what does the reward pay for?",
        meaning="The policy earns more without being right more often: it learns a part of the "
        "reward that is not the task, such as its format or length.",
        evidence=f"Mean of the last {SCORE_STEPS} steps against the {SCORE_STEPS} before: the "
        f"reward higher by {SCORE_RISE:g} standard errors, the share of correct responses by "
        f"{o.FLAT:g} at most.",
        advice="Read responses with a high reward; lower the weight of what they are paid for.",
        confused_with="A format that is learned first: the share of correct responses then rises "
        "afterwards.",
        measure=flat_score,
        unit="standard errors",
        for_steps=20,
    ),
    Rule(
        "reward-parsing",
        Severity.WARNING,
        needs=("reward",),
        needs_too=("entropy", "response_tokens"),
        label="Reward parser fails",
        cause="The reward fell and the policy did not change",
        action="check how answers are scored",
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
        rank=CauseRank.PRIMARY,
        fires_below=True,
    ),
)
