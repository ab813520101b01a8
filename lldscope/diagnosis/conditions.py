"""Conditions on the evidence: correct responses gain or lose, a signal surges, the reward has
crashed. Causes, phases, rules and reports share these definitions. Causal."""

from __future__ import annotations

import numpy as np

from ..core.numbers import percent
from . import detectors as d
from . import outcome, usual
from .evidence import SMOOTH, Evidence, Flags, Rows, is_observed, on_measured, once

LEAST = 20  # measured steps before any phase but warmup
ENTER_DECAY = 3  # steps
MEMORY = 40  # steps for which a decay, or a surge, counts as the cause of what follows it
RISES = 2.0  # standard errors
FALLS = -3.0  # standard errors
FALL_STEPS = 40  # steps that the last SMOOTH are compared with to see the fall accelerate
LARGEST_GAIN = 4.0  # × the median size: gains above it are cut in means of Δ
LARGEST_LOSS = 5.0  # × the largest gain: losses above it are cut in means of Δ
CUT = 0.33  # of the rollouts: truncation
CUT_RISE = 0.2  # of the rollouts, more than at first and clearly (RISEN): truncation has risen
CLEAR_RISE = 4.0  # standard errors
NEARLY_ALL = 0.9  # of the most that a share can rise by
RISEN = f"{CLEAR_RISE:g} standard errors or {percent(NEARLY_ALL)} of the rest"
CUT_STEPS = 5
ENTROPY_FLOOR = 0.05  # × the entropy of the first SMOOTH steps: nearly none
NO_ENTROPY = 1e-4  # nats/token: none, whatever the entropy was at first
SIGN_STEPS = 2  # in a row, before something counts as a second sign
ALONE = 5  # steps that the reward is lost, if no second sign shows
FAMILIES = 3  # at once: the policy breaks


@once
def tool_use(e: Evidence) -> tuple[str, str]:
    """The signal that counts tool use, and its unit in words."""
    if is_observed(e, "tool_calls") and not is_observed(e, "valid_searches"):
        return "tool_calls", "tool calls"
    return "valid_searches", "valid searches"


def least_rows(e: Evidence) -> int:
    """Number of measured rows before any phase but warmup."""
    return e.cadence.rows(LEAST, SMOOTH)


@once
def decay_test_fires(e: Evidence) -> Flags:
    """The decay test on Δ fires; without Δ, the level has been under its limit for ENTER_DECAY
    steps. Phase II begins with it."""
    over = on_measured(e.decay.value - e.decay.threshold, lambda margin: margin) >= 0.0
    on_level = np.array([basis == "level" for basis in e.decay.basis], dtype=bool)
    return over & (~on_level | (steps_held(e, over) >= e.cadence.rows(ENTER_DECAY)))


def delta_falls(e: Evidence) -> Flags:
    """The mean of Δ is well below 0."""
    return e.has_delta & (e.delta_t <= FALLS)


def falling(e: Evidence) -> Flags:
    """Correct responses lose likelihood: the decay test fires, or the mean of Δ is well below 0."""
    return decay_test_fires(e) | delta_falls(e)


@once
def rising(e: Evidence) -> Flags:
    """Correct responses gain likelihood."""
    return np.where(
        e.has_delta,
        e.delta_t >= RISES,
        e.has_level & (on_measured(e.decay.level_fall, lambda fall: fall) <= 0.0),
    )


@once
def accelerates(e: Evidence) -> Flags:
    """Correct responses lose likelihood, and faster in the last SMOOTH measured steps than in the
    FALL_STEPS before: the third condition of the death spiral (arXiv 2512.04220 v2, Def. A.3)."""
    level = e.column("correct_logp")
    # The change since the last measurement; NaN across a restart, and where not measured.
    change = on_measured(level, lambda v: v - d.shifted(v, 1), e.resets) + 0.0 * level
    n_before, n_now = e.cadence.rows(FALL_STEPS), e.cadence.rows(SMOOTH)

    def falls(rows: d.Series) -> d.Series:
        enough = np.count_nonzero(~np.isnan(rows), axis=1) >= 2 * n_now
        out = np.zeros(len(rows))
        if enough.any():
            before, now = rows[enough, :n_before], rows[enough, n_before:]
            size = d.row_medians(np.abs(before))[:, None]
            mean_before, mean_now = (np.nanmean(clip_gains(x, size), axis=1) for x in (before, now))
            out[enough] = (mean_now < 0.0) & (mean_now < mean_before)
        return out

    by_delta, by_level = (
        on_measured(gain, lambda v: d.by_window(v, n_before + n_now, falls), None, 0.0) > 0.0
        for gain in (e.column("delta_correct"), change)
    )
    return np.where(e.has_delta, by_delta, by_level)


def clip_gains(gain: d.Series, size: float | d.Series) -> d.Series:
    """Clip gains and losses to multiples of their usual `size`, so that no single step decides a
    mean."""
    largest = LARGEST_GAIN * size
    return np.clip(gain, -LARGEST_LOSS * largest, largest)


def entropy_surges(e: Evidence) -> Flags:
    """The entropy surges as much as in a collapse."""
    entropy = usual.risen(e, "entropy")
    return entropy.holds & (entropy.ratio >= usual.ENTROPY_COLLAPSE)


def gradient_surges(e: Evidence) -> Flags:
    return usual.risen(e, "grad_norm").holds


@once
def against_first(e: Evidence, name: str, steps: int, first: int, least: float) -> d.Series:
    """Trailing mean of a share, mean of its first steps, and the limit, shape (3, N). The limit is
    `least` above the first mean, and either beyond the largest noise so far or NEARLY_ALL of the
    way to 1: the noise may be that of the rise itself (near a share of 1 there is little)."""
    now, early = e.cadence.rows(steps), e.cadence.rows(first)

    def statistics(values: d.Series) -> d.Series:
        start = d.from_first(d.trailing_mean(values, early, early), early)
        start = np.where(d.numbered(values) < early, np.nan, start)
        noise = d.accumulated(np.fmax, d.shifted(outcome.upper_noise(values), now))
        error = np.sqrt(noise * (1 / early + 1 / now))
        clear = np.minimum(CLEAR_RISE * error, NEARLY_ALL * (1.0 - start))
        limit = start + np.fmax(least, clear)
        return np.stack([d.trailing_mean(values, now, 1), start, limit])

    return on_measured(e.column(name), statistics, e.data, series=3)


def truncation_risen(e: Evidence) -> Flags:
    """Length limits cut more rollouts than at first, so it is a change and not a setting."""
    now, _, limit = against_first(e, "truncated_share", CUT_STEPS, SMOOTH, CUT_RISE)
    return (now > CUT) & (now >= limit)


@once
def entropy_left(e: Evidence) -> d.Series:
    """Logarithm of the entropy relative to ENTROPY_FLOOR of its first steps, median of the last
    SMOOTH steps."""
    entropy, rows = e.column("entropy"), e.cadence.rows(SMOOTH)
    log = np.log(np.where(entropy >= 0, np.fmax(entropy, NO_ENTROPY), np.nan))

    def left(values: d.Series) -> d.Series:
        level = d.trailing_median(values, rows, rows)
        return level - d.from_first(level, rows) - np.log(ENTROPY_FLOOR)

    return on_measured(log, left, e.data)


@once
def entropy_gone(e: Evidence) -> Flags:
    """The entropy is nearly gone relative to the first steps, or nearly 0."""
    entropy, rows = e.column("entropy"), e.cadence.rows(usual.RECENT)
    level = on_measured(entropy, lambda v: d.trailing_median(v, rows, rows))
    is_measured = d.accumulated(np.fmax, entropy) > 0  # some loops log 0 without measuring it
    return (entropy_left(e) <= 0.0) | ((level <= NO_ENTROPY) & is_measured)


def nonfinite(e: Evidence) -> Flags:
    return e.column("n_nonfinite") > 0


@once
def signs(e: Evidence) -> dict[str, tuple[str, Flags]]:
    """Signs other than the reward that the policy breaks: words, the rows on which each shows, and
    its family, named by a signal. Signs of one family are one observation."""
    tool, calls = tool_use(e)
    no_entropy = entropy_gone(e) | usual.fallen(e, "entropy").holds
    return {
        "correct responses lose likelihood": ("", falling(e)),
        "the entropy surges": ("entropy", usual.risen(e, "entropy").holds),
        "the entropy is nearly gone": ("entropy", no_entropy),
        "the gradient norm surges": ("grad_norm", gradient_surges(e)),
        "the gradient vanishes": ("grad_norm", usual.fallen(e, "grad_norm").holds),
        "responses shrink": ("response_tokens", usual.fallen(e, "response_tokens").holds),
        "responses grow": ("response_tokens", usual.risen(e, "response_tokens").holds),
        "more responses are cut": ("response_tokens", truncation_risen(e)),
        "the KL explodes": ("kl", usual.kl_explosion(e).holds),
        f"{calls} stop": (tool, usual.fallen(e, tool).holds),
        "numbers are not finite": ("n_nonfinite", nonfinite(e)),
    }


@once
def families(e: Evidence) -> dict[str, Flags]:
    """Rows on which each family shows clearly enough to count without the reward."""
    surge, lately = entropy_surges(e), recently(e, nonfinite(e), 1)
    clear = {"the entropy surges": surge, "numbers are not finite": lately}
    out: dict[str, Flags] = {}
    for words, (family, holds) in signs(e).items():
        if family:
            out[family] = out.get(family, False) | clear.get(words, holds)
    return out


@once
def lately(e: Evidence) -> dict[str, d.Series]:
    """Rows since each of the `signs` last held, `inf` beyond MEMORY steps."""
    return {words: rows_since(e, holds, SIGN_STEPS) for words, (_, holds) in signs(e).items()}


def second_signs(e: Evidence, row: int) -> str:
    """The signs that hold, joined into words, or else those that held within MEMORY steps."""
    since = {words: rows[row] for words, rows in lately(e).items()}
    if now := [words for words, rows in since.items() if rows == 0]:
        return " and ".join(now)
    earlier = " and ".join(words for words, rows in since.items() if np.isfinite(rows))
    return earlier and f"in the last {MEMORY} steps {earlier}"


@once
def any_sign(e: Evidence) -> Flags:
    """Whether one of the `signs` held within MEMORY steps."""
    return np.logical_or.reduce([np.isfinite(rows) for rows in lately(e).values()])


@once
def reward_crashed(e: Evidence) -> Flags:
    """The outcome is being lost: the reward is under half of its best, beyond its noise, for ALONE
    steps; or it has declined and a second sign confirms it."""
    is_lost = outcome.halved(e)
    alone = d.consecutive(is_lost) >= e.cadence.rows(ALONE)
    return alone | ((is_lost | outcome.slips(e)) & any_sign(e))


def rows_since(e: Evidence, condition: Flags, for_steps: int) -> d.Series:
    """Rows since the condition last held for so many steps in a row, `inf` beyond MEMORY steps."""
    is_met = steps_held(e, condition) >= e.cadence.rows(for_steps)
    ever = d.accumulated(np.logical_or, is_met)
    since = steps_held(e, ~is_met)
    return np.where(ever & (since <= e.cadence.rows(MEMORY)), since, np.inf)


def recently(e: Evidence, condition: Flags, for_steps: int) -> Flags:
    """Whether the condition held for so many steps in a row within the last MEMORY steps."""
    return np.isfinite(rows_since(e, condition, for_steps))


def steps_held(e: Evidence, condition: Flags) -> Rows:
    """For each row: the number of consecutive measured steps for which the condition has held."""
    measured = np.where(is_new(e), condition, np.nan)
    steps = on_measured(measured, lambda v: d.consecutive(v > 0), before=0.0)
    return steps.astype(np.int64)


@once
def is_new(e: Evidence) -> Flags:
    """Rows with a new measurement of what a phase or symptom needs."""
    return np.asarray(e.measured > np.nan_to_num(d.shifted(e.measured, 1)))
