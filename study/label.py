"""What became of a run, by held-out exact match: degraded, held, or between the two.

The reward's ten-step mean cannot say it: three quarters of its best cuts through the middle of what
runs do, and fresh noise around the same curve gives one label in eleven another value. So the alarm
bank is labelled by greedy exact match on the same questions every ten steps, and a loss must be
large and larger than its error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

LOST = 0.75  # of the best evaluation so far: under it is a loss
KEPT = 0.85  # never under it: the run held
ERRORS = 3.0  # paired standard errors that a loss is, at least
IN_A_ROW = 2  # evaluations

Verdict = Literal["degraded", "held", "grey"]


@dataclass(frozen=True)
class Label:
    """`step`: of the first of the evaluations in a row that make a run degraded, else None."""

    verdict: Verdict
    step: int | None


def label(steps: ArrayLike, right: ArrayLike, snapshots: int = 1) -> Label:
    """The label of a run.

    steps (evaluations,): steps trained, ascending; right (evaluations, questions): 0 or 1. Each
    `snapshots` evaluations in a row are taken as one, their mean, at the step of the first: greedy
    exact match moves from one step to the next by more than its sampling error.

    An evaluation is a loss if its exact match is under LOST of the best one so far, and ERRORS
    paired standard errors under it: sqrt(var(d) / n) with d the differences of the n questions, var
    with n − 1. IN_A_ROW losses degrade a run; one that is never under KEPT of the best so far has
    held.
    """
    answers = np.asarray(right, dtype=np.float64)
    n = len(answers) // snapshots
    if not n:
        return Label("grey", None)
    answers = answers[: n * snapshots].reshape(n, snapshots, -1).mean(axis=1)
    means = answers.mean(axis=1)
    best = np.array([int(np.argmax(means[: i + 1])) for i in range(len(means))])
    share = np.divide(means, means[best], out=np.ones_like(means), where=means[best] > 0)
    fall = answers[best] - answers
    error = fall.std(axis=1, ddof=1) / np.sqrt(answers.shape[1])
    is_lost = (share < LOST) & (fall.mean(axis=1) > ERRORS * error)
    for i in range(len(is_lost) - IN_A_ROW + 1):
        if is_lost[i : i + IN_A_ROW].all():
            return Label("degraded", int(np.asarray(steps)[i * snapshots]))
    return Label("held" if (share >= KEPT).all() else "grey", None)
