"""The reward falls: with the policy, or while the policy does not change; or one component falls
and others compensate."""

from __future__ import annotations

import re

import numpy as np

from ...core.numbers import percent, short
from ...core.schema import COMPONENT
from .. import conditions as c
from .. import detectors as d
from .. import outcome as o
from ..detectors import LAGS
from ..evidence import SMOOTH, Evidence, Flags, on_measured, once
from ..rule import CauseRank, Measurement, Rule, Severity
from ..usual import BACK
from . import measures as m

HALVED = 0.5  # × the reward before
STEADY = (0.8, 1.25)  # × what each signal of the policy was before
TOOLS_WORK = 0.1  # of the tool calls: the largest share that may fail
STEP_REWARD = 0.8  # × the reward before
STEP_LENGTH = 1.2  # × the response length before, or its inverse
LENGTH_ALONE = 1.4  # the same, where the reward did not fall within that step, too
STEP_BACK = 0.9  # × the reward before: the change is over
SCORE_STEPS = 80
SCORE_RISE = 3.0  # standard errors of the reward
NEARLY_ALL = 0.9  # of the highest score, or of 1: no more is to be gained
READ = "read responses to see what the reward pays for"
POLICY = ("entropy", "response_tokens", "valid_searches", "tool_calls", "answered_share")
# Names of components that say whether the answer is right, and not what it looks like.
_RIGHT = re.compile(
    r"(?!.*(format|tag|length|penal|incorrect|inacc|mismatch))"
    r".*(acc|correct|answer|match|solve|success|pass|result|outcome|verif|em\b)", re.I
)


@once
def decline(e: Evidence) -> Measurement:
    return _fall(e, o.outcome(e).under(o.DECLINED), o.DECLINED)


@once
def crash(e: Evidence) -> Measurement:
    """The reward crashes. A length that changed within one step is a second sign."""
    changed = c.recently(e, _length_jumped(e, LENGTH_ALONE), 1) | step_change(e).holds
    falls = c.reward_crashed(e) | (o.slips(e) & changed)
    return _fall(e, falls, np.where(o.halved(e), o.HALF, o.CONFIRMED))


def _fall(e: Evidence, holds: Flags, limit: d.Series | float) -> Measurement:
    result = o.outcome(e)
    share, limits = result.share, np.broadcast_to(limit, holds.shape)

    def message(row: int) -> str:
        also = f", and {signs}" if (signs := c.second_signs(e, row)) else ""
        if result.is_gone[row]:
            values = e.so_far(o.reward_signal(e), row)
            lowest = np.nanmin(values)
            rows = int(d.consecutive(~(values > lowest))[-1])
            before = float(np.nanmean(values[:-rows]))
            return (
                f"{m.reward_name(e)} has been {short(lowest)}, its lowest, for "
                f"{rows * e.cadence.stride} steps, and "
                f"was {short(before, 2)} in the mean before{also}"
            )
        level, best = result.level[row], result.best[row]
        now = f"{m.reward_name(e)} is {short(level, 2)} ± {short(result.error[row], 1)} over "
        now += f"{result.steps(e, row)} steps"
        if result.floor[row] < 0:  # ratios of negative rewards are meaningless
            return f"{now}, and was about {short(best, 2)} at its best{also}"
        return (
            f"{now}, {percent(max(share[row], 0.0))} of its best (about {short(best, 2)}; limit "
            f"{percent(limits[row])}){also}"
        )

    return Measurement(holds, share, limits, message, back=~(share < o.RECOVERED))


@once
def _length_jumped(e: Evidence, least: float) -> Flags:
    """The length changed clearly, by a factor of at least `least`, and most of it within one
    step."""
    length = m.change(e, "response_tokens")
    gain, ratio = length.now - length.before, length.now / length.before
    jumped = (np.fmax(ratio, 1 / ratio) >= least) & (np.abs(gain) > m.CLEAR * length.error)
    return jumped & _in_one_step(e.column("response_tokens"), gain, e.cadence.rows(m.RECENT))


@once
def step_change(e: Evidence) -> Measurement:
    """The reward fell and the length changed within one step, and the reward has not recovered."""
    reward, length, share = m.change(e, "reward"), m.change(e, "response_tokens"), m.reward_left(e)
    ratio, recent = length.now / length.before, e.cadence.rows(m.RECENT)
    sudden = m.reward_fell(e) & (share <= STEP_REWARD)
    sudden &= _length_jumped(e, STEP_LENGTH)
    sudden &= _in_one_step(o.reward_series(e), reward.now - reward.before, recent)
    holds = _until_it_comes_back(e, sudden)

    def message(row: int) -> str:
        return (
            f"within one step {_went(e, share, row)} and the response length to "
            f"{percent(ratio[row])}"
        )

    return Measurement(holds, share, STEP_REWARD, message)


def _went(e: Evidence, share: d.Series, row: int) -> str:
    before, now = m.change(e, "reward").before[row], m.change(e, "reward").now[row]
    if o.outcome(e).floor[row] < 0:  # ratios of negative rewards are meaningless
        return f"{m.reward_name(e)} went from {short(before, 2)} to {short(now, 2)}"
    left = f"to {percent(max(share[row], 0.0))} of what it was"
    return f"{m.reward_name(e)} went {left} ({short(before, 2)} before, {short(now, 2)} now)"


def _in_one_step(values: d.Series, gain: d.Series, recent: int) -> Flags:
    """At least half of the gain happened within one step, after the row before the last `recent`
    rows."""
    step = d.shifted(values, recent - 1) - d.shifted(values, recent)
    return np.sign(gain) * step >= np.abs(gain) / 2


def _until_it_comes_back(e: Evidence, sudden: Flags) -> Flags:
    """From each sudden fall until the reward is nearly back at its earlier level."""
    reward, floor = m.change(e, "reward"), o.outcome(e).floor
    holds, state = np.zeros(len(sudden), dtype=bool), d.cell()
    level, steps = state.value or (np.nan, 0)
    for t, starts in enumerate(sudden.tolist()):
        if starts and level != level:
            level, steps = reward.before[t], 0
        back = reward.now[t] - floor[t] >= STEP_BACK * (level - floor[t])
        holds[t] = level == level and not back
        steps = steps + 1 if back else 0
        level = np.nan if steps >= e.cadence.rows(BACK) else level
    state.value = level, steps
    return holds


@once
def flat_score(e: Evidence) -> Measurement:
    """The reward rises, but the score of correctness does not: between the last two windows, or
    between the first window and the last."""
    window = e.cadence.rows(SCORE_STEPS)

    def gains(name: str) -> d.Series:
        return on_measured(e.column(name), lambda v: _gains(v, window), e.data, series=2)

    rises = gains("reward")
    names = ["success", *(name for name in _components(e) if _RIGHT.match(name))]
    holds, flat = np.zeros(len(e.step), dtype=bool), np.full(len(e.step), -1)
    for i, name in enumerate(names):
        score = e.column(name)
        highest, lowest = d.accumulated(np.fmax, score), d.accumulated(np.fmin, score)
        solved = m.mean(e, name, SCORE_STEPS) >= NEARLY_ALL * np.fmax(highest, 1.0)
        solved |= (highest > 0) & (highest == lowest)  # every response has had all of it
        apart = ~np.isclose(e.column("reward"), score, equal_nan=True) & ~solved
        one = ((rises >= SCORE_RISE) & (gains(name) <= o.FLAT)).any(axis=0) & apart
        flat[one & ~holds] = i
        holds |= one
    rise = np.fmax(*rises)

    def what(row: int) -> str:
        name = names[flat[row]]
        return "the share of correct responses" if name == "success" else _bare(name)

    def message(row: int) -> str:
        return (
            f"over {2 * e.cadence.spans(SCORE_STEPS)} steps or more the reward rose by "
            f"{rise[row]:.1f} standard errors (limit {SCORE_RISE:g}) and {what(row)} by less than "
            f"{o.FLAT:g}{_rose_most(e, row, names[flat[row]])}"
        )

    return Measurement(
        holds, rise, SCORE_RISE, message,
        words=lambda row: (f"The reward rises, {what(row)} does not", READ),
    )


def _gains(values: d.Series, window: int) -> d.Series:
    """Gains in standard errors: of the last window over the previous one, and over the first, (2,
    N)."""
    mean = d.trailing_mean(values, window, window)
    error = np.sqrt(2 * d.shifted(d.noise_of_means(values), window) / window) + 1e-9
    start = d.from_first(mean, window)
    first = np.where(d.numbered(mean) < 2 * window - 1, np.nan, start)
    return (mean - np.stack([d.shifted(mean, window), first])) / error


def _components(e: Evidence) -> list[str]:
    return [name for name in e.signals if name.startswith(COMPONENT)]


def _bare(component: str) -> str:
    return component.removeprefix(COMPONENT)


def _rose_most(e: Evidence, row: int, fell: str) -> str:
    """In words: the component that has risen most, next to one that has not."""
    gains = {}
    for name in _components(e):
        values = e.so_far(name, row)
        values, n = values[~np.isnan(values)], e.cadence.rows(SMOOTH)
        if name != fell and len(values):
            gains[_bare(name)] = values[-n:].mean() - values[:n].mean()
    most = max(gains, key=lambda name: gains[name], default="")
    return f"; {most} rose by {gains[most]:.2g}" if most and gains[most] > 0 else ""


@once
def parsing(e: Evidence) -> Measurement:
    """The reward fell at once, while every measured signal of the policy stayed the same."""
    share, reward = m.reward_left(e), m.change(e, "reward")
    ratios = {name: (of := m.change(e, name)).now / of.before for name in POLICY}
    measured = {name: ~np.isnan(ratio) for name, ratio in ratios.items()}
    alone = m.reward_fell(e) & (share <= HALVED) & ~c.any_sign(e)
    alone &= measured["entropy"] & (measured["response_tokens"] | measured["answered_share"])
    alone &= ~(m.mean(e, "tool_fail_share", m.RECENT) >= TOOLS_WORK)
    for name, ratio in ratios.items():
        alone &= ~measured[name] | ((ratio >= STEADY[0]) & (ratio <= STEADY[1]))
    recent = e.cadence.rows(m.RECENT)
    at_once = alone & _in_one_step(o.reward_series(e), reward.now - reward.before, recent)
    # A row more, so that one bad batch is not enough.
    before = d.shifted(at_once, 1) > 0
    holds = _until_it_comes_back(e, alone & before)

    def message(row: int) -> str:
        same = ", ".join(f"{n} {x[row]:.2f} ×" for n, x in ratios.items() if measured[n][row])
        return (
            f"within one step {_went(e, share, row)}, and the policy did not change ({same})"
        )

    return Measurement(holds, share, HALVED, message)


@once
def replaced(e: Evidence) -> Measurement:
    """A component is below DECLINED of its best beyond noise, and the reward is not."""
    names, n = _components(e), len(e.step)
    holds, share = np.zeros(n, dtype=bool), np.full(n, np.nan)
    worst, (grave, low) = np.zeros(n, dtype=np.int64), np.zeros((2, n), dtype=bool)
    steady = ~np.isnan(o.outcome(e).level) & ~o.outcome(e).fallen
    says_right = [bool(_RIGHT.match(name)) for name in names]
    outcomes = [o.outcome_of(e, name) for name in names] if len(names) > 1 else []
    for i, one in enumerate(outcomes):
        fallen = one.under(o.DECLINED) & steady
        low |= d.accumulated(np.logical_or, fallen) & (one.share < o.RECOVERED)
        grave |= fallen & (says_right[i] or not any(says_right))
        first = fallen & ~(holds & (share <= one.share))  # of several the one that lost most
        share[first], worst[first] = one.share[first], i
        holds |= fallen

    def message(row: int) -> str:
        one, name = outcomes[worst[row]], names[worst[row]]
        return (
            f"{_bare(name)} is {one.level[row]:.2g} over "
            f"{e.cadence.spans(SMOOTH)} steps, {percent(max(share[row], 0.0))} of its best (about "
            f"{one.best[row]:.2g}; limit {percent(o.DECLINED)}), and the whole reward has not "
            f"fallen{_rose_most(e, row, name)}"
        )

    return Measurement(holds, share, o.DECLINED, message, grave=grave, back=~low)


def unpaid(e: Evidence) -> list[str]:
    """Components that have been 0 in every step, while the reward was not."""
    if not _extent(e, o.reward_signal(e))[1] > 0:
        return []
    extents = {name: _extent(e, name) for name in _components(e)}
    return [_bare(n) for n, (rows, most) in extents.items() if rows >= c.least_rows(e) and not most]


@once
def _extent(e: Evidence, name: str) -> tuple[int, float]:
    """The number of rows with a measurement so far, and the largest absolute value."""
    values, state = np.abs(e.column(name)), d.cell()
    rows, most = state.value or (0, 0.0)
    measured = values[~np.isnan(values)]
    state.value = rows + len(measured), max(most, measured.max(initial=0.0))
    return state.value


BEYOND_NOISE = (
    f"a mean over {o.WINDOWS[0]} to {o.WINDOWS[-1]} steps is under the best before it by more than "
    f"noise explains (confidence {percent(1 - o.LEVEL)} for all pairs of means at once; the noise "
    f"of independent steps, or of {LAGS[0]} to {LAGS[-1]} steps where that is more), for {o.LASTS} "
    "steps"
)
UNTIL = (
    f"It ends where the level is back at {percent(o.RECOVERED)} of the best. The best is less two "
    "standard errors; where rewards are under 0, shares are of the rise from the lowest level or "
    "of the size of the best, whichever is more."
)
CURRICULUM = "Harder questions from some step on: declare them as an event `data_change`."

RULES = (
    Rule(
        "reward-decline", measure=decline, needs=("reward", "success"), unit="of its best",
        cause="The reward is clearly under its best", action="look at what began before it",
        meaning=f"The reward has lost more than {percent(1 - o.DECLINED)} of its best, beyond its "
        "noise. This alarm does not say why.",
        evidence=f"{SMOOTH}-step mean of the reward (of fewer steps where there is little noise) "
        f"under {percent(o.DECLINED)} of its best; {BEYOND_NOISE}; and {o.DEEPER:g} × as deep as "
        f"any fall that the run has come back from. {UNTIL}",
        advice="Look at what began before it: Δ, entropy, gradient norm, the look-alikes. Where "
        "the held-out score falls too, lower the learning rate or go back to the best checkpoint.",
        confused_with=CURRICULUM,
    ),
    Rule(
        "reward-crash", measure=crash, severity=Severity.CRITICAL, needs=("reward", "success"),
        unit="of its best", back=True,
        cause="The reward is being lost", action="look for what broke first",
        meaning=f"The reward stays under {percent(o.HALF)} of its best, or under "
        f"{percent(o.CONFIRMED)} while another sign shows that the policy is breaking. The "
        "run is dying; this alarm does not say why.",
        evidence=f"{SMOOTH}-step mean of the reward under {percent(o.HALF)} of its best, for "
        f"{c.ALONE} steps, and {BEYOND_NOISE}. Or under {percent(o.CONFIRMED)}, by "
        f"{percent(o.NEARLY)} of the margin of independent steps for {o.SLIPS} steps, where within "
        f"{c.MEMORY} steps another sign showed: of entropy, gradient, KL, length, tool calls, "
        "numbers that are not finite, correct responses that lose likelihood, or a length that "
        f"changed by {percent(LENGTH_ALONE - 1)} within one step. Or the reward stays at its "
        "lowest, under half of the mean before, for longer than steps in any order would in "
        f"{percent(o.LEVEL)} of all runs. {UNTIL}",
        advice="A dead tool, truncation or a wrong mask make the same curve: the list of "
        "look-alikes says which of them this log rules out.",
        confused_with=CURRICULUM,
    ),
    Rule(
        "step-change", measure=step_change, needs=("reward",), needs_too=("response_tokens",),
        unit="of the reward before",
        cause="Reward and response length changed within one step",
        action="check the retriever, the tools and the data",
        meaning="From one step to the next the reward fell and the response length changed. A "
        "policy changes over many steps: something that the responses depend on is gone.",
        evidence=f"Mean reward of {m.RECENT} steps {percent(STEP_REWARD)} or less of that of the "
        f"{m.BEFORE} before, and the response length {percent(STEP_LENGTH - 1)} or more off, each "
        f"by {m.CLEAR:g} standard errors and half of it within one step; until the reward is back "
        f"at {percent(STEP_BACK)}.",
        advice="Check the retriever, the tools, the prompt and the data of that step; discard what "
        "was trained since if one of them failed.",
        confused_with="Other data or another length limit: declare it as an event `data_change`.",
    ),
    Rule(
        "score-flat", measure=flat_score, needs=("reward",), unit="standard errors", for_steps=20,
        cause="The reward rises, the share of correct responses does not", action=READ,
        meaning="The policy earns more without being right more often: it learns a part of the "
        "reward that is not the task, such as format or length.",
        evidence=f"Mean of the last {SCORE_STEPS} steps against the {SCORE_STEPS} before, or the "
        f"first: the reward is higher by {SCORE_RISE:g} standard errors, the share of correct "
        "responses, or a component whose name says that answers are right (accuracy, correct, "
        f"match …), by {o.FLAT:g} at most, and not near its highest.",
        advice="Read responses with a high reward; lower the weight of what they are paid for.",
        confused_with="A format that is learned first: correctness then follows.",
    ),
    Rule(
        "reward-parsing", measure=parsing, needs=("reward",),
        needs_too=("entropy", "response_tokens"), unit="of the reward before",
        rank=CauseRank.PRIMARY, fires_below=True,
        cause="The reward fell and the policy did not change",
        action="check how answers are scored",
        meaning=f"The reward has fallen to {percent(HALVED)} or less at once while the policy does "
        "what it did before: what changed is the reward, the questions, or what the tool returns.",
        evidence=f"Mean reward of {m.RECENT} steps against the {m.BEFORE} before, by {m.CLEAR:g} "
        "standard errors, twice in a row, most of it within one step, until it comes back. "
        f"Entropy, length, searches and answers are {STEADY[0]:g} to {STEADY[1]:g} × theirs, fewer "
        f"than {percent(TOOLS_WORK)} of the tool calls fail, and no sign from inside shows.",
        advice="Score some old rollouts again with the current reward; look for right answers that "
        "get nothing; check the data mix and the retrieved documents.",
        confused_with="Other data or another retrieval index: the log cannot tell them apart. A "
        "reward that is parsed wrongly from the first step on is not seen.",
    ),
    Rule(
        "reward-component", measure=replaced, needs=("reward",), unit="of its best",
        cause="One component of the reward takes over while another falls",
        action="look at responses, and weigh the component that rose less",
        meaning="A component of the reward has fallen, and the sum has not: the policy earns with "
        "another component what it loses with this one.",
        evidence=f"A component under {percent(o.DECLINED)} of its best, as in `reward-decline`, "
        "while the reward has not fallen. A warning where its name says that the answer is right "
        "(accuracy, correct, match …) or none does, info otherwise.",
        confused_with="A bonus for a shape or a length that is no longer needed.",
        promise="at most 1 % of runs for each component, for steps that are independent",
        advice="Read responses from before and after. Lower the weight of the component that rose, "
        "cap it, or give it only to correct responses.",
    ),
)
