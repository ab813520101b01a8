"""The held-out score departs from the training reward, or is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from ...core.numbers import short
from .. import detectors as d
from ..decay_test import RUN_RATE
from ..evidence import SMOOTH, Evidence, on_measured, once
from ..outcome import BIAS, HALF, outcome, upper_noise
from ..rule import Measurement, Rule, Severity
from .measures import percent, reward_name

# × the earlier score, where it is a share. With many questions any loss is more than chance, but
# the score of a policy that holds may lose a tenth from one step to the next.
MATERIAL = 0.15
LASTING = 0.1  # in two evaluations in a row


class _Evaluations(NamedTuple):
    """All evaluations so far, one entry each. `reward` is the mean of the steps before; `early`,
    the mean of the first steps, replaces it for evaluations before them."""

    score: d.Series
    binomial: d.Series
    noise: d.Series
    reward: d.Series
    early: d.Series
    part: d.Series
    row: d.Series
    step: d.Series

    def rewards(self, i: int, first: int) -> d.Series:
        """The rewards as of evaluation `i`; the first `first` rows are too few for a mean of their
        own."""
        return np.where(self.row[: i + 1] < first, self.early[i], self.reward[: i + 1])

    def error(self, before: Any, now: Any) -> Any:
        """The standard error of the difference between evaluations: binomial, or else estimated
        from the evaluations up to the earlier one (up to the later one while that is unknown),
        because a fall is not noise."""
        noise = self.noise[before]
        by_noise = 2 * np.where(np.isnan(noise), self.noise[now], noise)
        both = self.binomial[before] + self.binomial[now]
        return np.sqrt(np.where(np.isnan(both), by_noise, both))


def _for_each(
    e: Evidence, judge: Callable[[_Evaluations, int, list[bool]], Sequence[float]], fields: int
) -> d.Series:
    """Apply a function to each evaluation and those before it, and repeat its result until the next
    evaluation, (fields, N). The third argument is a list in which the function may keep state."""
    score, count = e.column("eval_score"), e.column("eval_n")
    level, first = outcome(e).level, e.cadence.rows(SMOOTH)
    parts, rows = np.isin(np.arange(len(score)), e.data), e.start + np.arange(len(score))
    series = (score, count, level, d.from_first(level, first), d.total(parts), rows, e.step)

    def evaluations(new: d.Series) -> d.Series:
        score, count, *others = new
        state = d.cell()
        before, memory = state.value or (np.empty((len(_Evaluations._fields), 0)), [])
        block = np.stack([score, _binomial(score, count), upper_noise(score), *others])
        whole = np.concatenate([before, block], axis=1)
        state.value = whole, memory
        numbers = range(before.shape[1], whole.shape[1])
        return np.array([judge(_Evaluations(*whole), i, memory) for i in numbers]).T

    return on_measured(np.stack(series), evaluations, series=fields)


@once
def gap(e: Evidence) -> Measurement:
    """Each evaluation against earlier ones at which the reward was no higher."""
    first = e.cadence.rows(SMOOTH) - 1

    def judge(of: _Evaluations, i: int, losses: list[bool]) -> Sequence[float]:
        rewards = of.rewards(i, first)
        comparable = (rewards[:i] <= rewards[i]) & (of.part[:i] == of.part[i])
        error = of.error(np.arange(i), i)
        falls = np.where(comparable, (of.score[:i] - of.score[i]) / error, np.nan)
        least, lost_before, holds = _limit(i) if i else np.nan, any(losses), False
        value, worst = np.nan, i
        losses.clear()
        if not np.isnan(falls).all():
            worst = int(np.nanargmax(falls))
            value, pair = falls[worst], (of.score[worst], of.score[i])
            losses.append(bool(value >= least and _is_material(*pair, LASTING)))
            holds = losses[0] and (lost_before or _is_material(*pair, MATERIAL))
        ends = [x[k] for x in (of.score, of.step, rewards) for k in (worst, i)]
        return value, least, holds, *ends

    value, limit, holds, *ends = _for_each(e, judge, 9)

    def message(row: int) -> str:
        then, now, before, last, *rewards = (float(x[row]) for x in ends)
        return (
            f"the held-out score is {short(now, 2)} at step {last:.0f} and was "
            f"{short(then, 2)} at step {before:.0f}, {value[row]:.1f} standard errors "
            f"higher (limit {limit[row]:.1f}), while {reward_name(e)} went from "
            f"{short(rewards[0], 2)} to {short(rewards[1], 2)}"
        )

    return Measurement(holds > 0, value, limit, message)


@once
def loss(e: Evidence) -> Measurement:
    """Two evaluations in a row against the best before them."""

    def judge(of: _Evaluations, i: int, _: list[bool]) -> Sequence[float]:
        before = np.flatnonzero(of.part[: max(i - 1, 0)] == of.part[i])
        if not len(before) or np.nanmin(of.score[: i + 1]) < 0:  # a score under 0 has no scale
            return np.nan, *[0.0] * 7
        best = before[np.argmax(of.score[before])]
        alone = of.error(best, best) / np.sqrt(2)  # of one evaluation
        height, last, share, holds = of.score[best] - BIAS * alone, [i - 1, i], np.nan, False
        if height > 0:
            share = of.score[last].max() / height
            beyond = of.score[best] - of.score[last] >= _limit(i) * of.error(best, np.array(last))
            holds = beyond.all() and share < HALF
        return share, holds, *[x[k] for k in (i - 1, i, best) for x in (of.score, of.step)]

    share, holds, *ends = _for_each(e, judge, 8)

    def message(row: int) -> str:
        then, before, now, last, best, step = (float(x[row]) for x in ends)
        return (
            f"the held-out score is {short(then, 2)} at step {before:.0f} and "
            f"{short(now, 2)} at step {last:.0f}, at most {percent(share[row])} of its "
            f"best, {short(best, 2)} at step {step:.0f} (limit {percent(HALF)})"
        )

    return Measurement(holds > 0, share, HALF, message)


def _is_material(before: float, now: float, share: float) -> bool:
    """Whether a loss is large enough to matter. If scores are not shares, every loss is."""
    return not 0 <= now <= before <= 1 or before - now >= share * before


def _limit(n: int) -> float:
    """The number of standard errors by which an evaluation must differ from one of the `n` before
    it. The shares 5 / ((n + 4) (n + 5)) of RUN_RATE add up to 1, however many evaluations there
    are."""
    return NormalDist().inv_cdf(1 - RUN_RATE * 5 / ((n + 4) * (n + 5)) / n)


def _binomial(score: d.Series, count: d.Series) -> d.Series:
    """Squared standard errors, with two right and two wrong answers added (Agresti and Coull 1998);
    NaN if the score is not a share of so many questions."""
    share = (score * count + 2) / (count + 4)
    return np.where((score >= 0) & (score <= 1), share * (1 - share) / count, np.nan)


PROMISE = (
    f"at most {percent(RUN_RATE)} of the runs whose held-out score does not fall, if it is a share "
    "and its questions are drawn anew each time"
)
CHANGED = "Another evaluation set or sampling setting."

RULES = (
    Rule(
        "eval-gap", measure=gap, needs=("eval_score",), needs_too=("reward",),
        unit="standard errors",
        cause="The held-out score fell, the reward did not", action="read held-out answers",
        meaning="The policy learns to raise the reward, no longer the task.",
        evidence=f"An evaluation is under one before it at which the {SMOOTH}-step mean of the "
        f"reward was no higher: by more than chance (confidence {percent(1 - RUN_RATE)} for all "
        f"pairs of a run at once), and of shares by {percent(MATERIAL)}, or {percent(LASTING)} "
        "twice in a row. The error is binomial for a share of `eval_n` questions, otherwise from "
        "the differences of successive evaluations, ten at least.",
        advice="Go back to the checkpoint with the best evaluation. Read held-out answers beside "
        "rewarded ones; add KL or lower the learning rate.",
        confused_with=f"Training questions that became easier (a curriculum). {CHANGED}",
        promise=f"{PROMISE}; fewer if they are the same",
    ),
    Rule(
        "eval-loss", measure=loss, severity=Severity.CRITICAL, needs=("eval_score",),
        unit="of its best", back=True,
        cause="The held-out score is being lost",
        action="go back to the checkpoint with the best evaluation",
        meaning=f"Two evaluations in a row are under {percent(HALF)} of the best. The run is "
        "dying; this alarm does not say why.",
        evidence=f"The higher of the last two evaluations against the best before both, less "
        f"{BIAS:g} standard errors: under {percent(HALF)}, and each by more than chance, counted "
        "as for eval-gap. Not where a score was ever under 0.",
        advice="Look at what began before it: Δ, entropy, gradient norm, look-alikes.",
        confused_with=CHANGED,
        promise=PROMISE,
    ),
)
