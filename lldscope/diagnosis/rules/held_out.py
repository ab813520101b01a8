"""The held-out score: it parts from the training reward, or is lost."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from ...core.numbers import short
from .. import detectors as d
from ..decay_test import RUN_RATE
from ..evidence import SMOOTH, Evidence, once
from ..outcome import BIAS, HALF, outcome, upper_noise
from ..rule import Measurement, Rule, Severity
from .measures import percent, reward_name

# × the earlier score, where it is a share. With many questions any loss is more than chance, but
# the score of a policy that holds may lose a tenth from one step to the next.
MATERIAL = 0.15
LASTING = 0.1  # in two evaluations in a row


@once
def gap(e: Evidence) -> Measurement:
    """Each evaluation against those before it at which the reward was no higher; both are repeated
    until the next one."""
    score, count = e.column("eval_score"), e.column("eval_n")
    rows = np.flatnonzero(~np.isnan(score))
    values, variance = score[rows], _variances(score[rows], count[rows])
    reward = _reward_at(e, rows)
    part = np.searchsorted(e.data, rows, side="right")
    value, limit = np.full((2, len(score)), np.nan)
    holds = np.zeros(len(score), dtype=bool)
    before = np.zeros(len(score), dtype=np.int64)  # row of the evaluation compared with
    loses = False  # the last evaluation has lost LASTING
    for i in range(1, len(rows)):
        error = _error(variance, np.arange(i), i)
        comparable = (reward[:i] <= reward[i]) & (part[:i] == part[i])
        falls = np.where(comparable, (values[:i] - values[i]) / error, np.nan)
        until = _until_next(rows, i)
        limit[until] = least = _limit(i)
        lost_before, loses = loses, False
        if not np.isnan(falls).all():
            worst = int(np.nanargmax(falls))
            value[until], before[until] = falls[worst], rows[worst]
            loses = falls[worst] >= least and _is_material(values[worst], values[i], LASTING)
            is_large = _is_material(values[worst], values[i], MATERIAL)
            holds[until] = loses and (lost_before or is_large)

    def message(row: int) -> str:
        now, then = int(rows[rows <= row][-1]), int(before[row])
        rewards = _reward_at(e, np.array([then, now]))
        return (
            f"the held-out score is {short(score[now], 2)} at step {e.step[now]} and was "
            f"{short(score[then], 2)} at step {e.step[then]}, {value[row]:.1f} standard errors "
            f"higher (limit {limit[row]:.1f}), while {reward_name(e)} went from "
            f"{rewards[0]:.2f} to {rewards[1]:.2f}"
        )

    return Measurement(holds, value, limit, message)


@once
def loss(e: Evidence) -> Measurement:
    """Two evaluations in a row against the best before both; repeated until the next one."""
    score = e.column("eval_score")
    rows = np.flatnonzero(~np.isnan(score))
    values = score[rows]
    variance = _variances(values, e.column("eval_n")[rows])
    part = np.searchsorted(e.data, rows, side="right")
    share, holds = np.full(len(score), np.nan), np.zeros(len(score), dtype=bool)
    best_row = np.zeros(len(score), dtype=np.int64)
    for i in range(2, len(rows)):
        before = np.flatnonzero(part[: i - 1] == part[i])
        if not len(before) or np.nanmin(values[: i + 1]) < 0:  # a score under 0 has no scale
            continue
        best = before[np.argmax(values[before])]
        alone = _error(variance, best, best) / np.sqrt(2)  # of one evaluation
        height = values[best] - BIAS * alone
        until = _until_next(rows, i)
        last = np.array([i - 1, i])
        if height > 0:
            share[until], best_row[until] = values[last].max() / height, rows[best]
            beyond = values[best] - values[last] >= _limit(i) * _error(variance, best, last)
            holds[until] = beyond.all() and share[rows[i]] < HALF

    def message(row: int) -> str:
        then, now = rows[rows <= row][-2:].tolist()
        best = int(best_row[row])
        return (
            f"the held-out score is {short(score[then], 2)} at step {e.step[then]} and "
            f"{short(score[now], 2)} at step {e.step[now]}, at most {percent(share[row])} of its "
            f"best, {short(score[best], 2)} at step {e.step[best]} (limit {percent(HALF)})"
        )

    return Measurement(holds, share, d.constant(HALF, share), message)


def _until_next(rows: np.ndarray, i: int) -> slice:
    """The rows for which evaluation `i` is the last one."""
    return slice(rows[i], rows[i + 1] if i + 1 < len(rows) else None)


def _is_material(before: float, now: float, share: float) -> bool:
    """Whether a loss is large enough to matter; any is where the scores are no shares."""
    return not 0 <= now <= before <= 1 or before - now >= share * before


def _limit(n: int) -> float:
    """Standard errors by which an evaluation must differ from one of the `n` before it: the shares
    5 / ((n + 4) (n + 5)) of RUN_RATE add up to 1, however many evaluations there are."""
    return NormalDist().inv_cdf(1 - RUN_RATE * 5 / ((n + 4) * (n + 5)) / n)


def _variances(score: d.Series, count: d.Series) -> d.Series:
    """Squared standard errors of each evaluation, (2, N): binomial, with two right and two wrong
    answers added (Agresti and Coull 1998), where it is a share of so many questions; and from the
    differences of the evaluations up to it."""
    share = (score * count + 2) / (count + 4)
    binomial = np.where((score >= 0) & (score <= 1), share * (1 - share) / count, np.nan)
    return np.stack([binomial, upper_noise(score)])


def _error(variances: d.Series, before: Any, now: Any) -> Any:
    """The standard error of the difference between evaluations: binomial, otherwise by the noise of
    those up to the earlier one, or to the later while that is not known, because a fall is no
    noise."""
    binomial, noise = variances
    by_noise = 2 * np.where(np.isnan(noise[before]), noise[now], noise[before])
    both = binomial[before] + binomial[now]
    return np.sqrt(np.where(np.isnan(both), by_noise, both))


def _reward_at(e: Evidence, rows: np.ndarray) -> d.Series:
    """Mean reward of the steps before a row; of the first steps where there are too few."""
    first = e.cadence.rows(SMOOTH) - 1
    return outcome(e).level[np.minimum(np.maximum(rows, first), len(e.step) - 1)]


PROMISE = (
    f"at most {percent(RUN_RATE)} of the runs whose held-out score does not fall, if it is a share "
    "and its questions are drawn anew each time"
)
CHANGED = "Another evaluation set or sampling setting."

RULES = (
    Rule(
        "eval-gap",
        needs=("eval_score",),
        needs_too=("reward",),
        cause="The held-out score fell, the reward did not",
        action="read held-out answers",
        meaning="The policy learns to raise the reward, no longer the task.",
        evidence=f"The last evaluation against each before it at which the {SMOOTH}-step mean of "
        f"the reward was no higher: by more than chance (confidence {percent(1 - RUN_RATE)} for "
        f"all pairs of a run at once), and where the scores are shares by {percent(MATERIAL)}, or "
        f"by {percent(LASTING)} twice in a row. The standard error is binomial where the score is "
        "a share of `eval_n` questions, otherwise from the differences of successive evaluations, "
        "ten at least.",
        advice="Go back to the checkpoint with the best evaluation. Read held-out answers beside "
        "rewarded ones; add KL or lower the learning rate.",
        confused_with=f"Training questions that became easier (a curriculum). {CHANGED}",
        measure=gap,
        unit="standard errors",
        false_alarms=f"{PROMISE}; fewer if they are the same",
    ),
    Rule(
        "eval-loss",
        severity=Severity.CRITICAL,
        needs=("eval_score",),
        cause="The held-out score is being lost",
        action="go back to the checkpoint with the best evaluation",
        back=True,
        meaning=f"Two evaluations in a row are under {percent(HALF)} of the best. The run is "
        "dying; this alarm does not say why.",
        evidence=f"The higher of the last two evaluations against the best before both, less "
        f"{BIAS:g} standard errors: under {percent(HALF)}, and each by more than chance, counted "
        "as for eval-gap. Not where a score was ever under 0.",
        advice="Look at what began before it: Δ, entropy, gradient norm, look-alikes.",
        confused_with=CHANGED,
        measure=loss,
        unit="of its best",
        fires_below=True,
        false_alarms=PROMISE,
    ),
)
