"""Greedy evaluation: exact match and token F1 of each data source, into the table `evals`, and of
each question, into `eval_questions`.

The paper's Gen-Avg, MH-Avg and Avg are unweighted means over data sources (docs/data.md has the
query), so no row of them is kept beside what they are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ..data.questions import Question
from ..environment.protocol import Environment
from ..environment.reward import em, f1
from .tokens import Rollout

BATCH = 256
"""Questions played at once: what bounds the memory of an evaluation."""


class Player(Protocol):
    """What plays questions; for an evaluation, one that takes the likeliest token."""

    def play(
        self, environment: Environment, questions: Sequence[Question], generator: torch.Generator
    ) -> list[Rollout]:
        """One rollout per question, in order."""
        ...


def evaluate(
    player: Player,
    questions: Sequence[Question],
    environment: Environment,
    recorder: Any,
    step: int,
    *,
    name: str = "greedy",
    on_batch: Callable[[int, int], None] | None = None,
    on_rollouts: Callable[[list[Rollout]], None] | None = None,
) -> float | None:
    """Record `em_{name}` and `f1_{name}`, means over the questions of each data source, with
    their number, and both for each question; returns the mean exact match over all questions, None
    if there are none.

    After each batch `on_rollouts` gets its rollouts and `on_batch` how many questions are done, of
    how many.
    """
    scores: list[tuple[float, float]] = []
    total = len(questions)
    for start in range(0, total, BATCH):
        batch = questions[start : start + BATCH]
        rollouts = player.play(environment, batch, torch.Generator())
        answers = [rollout.episode.answer for rollout in rollouts]
        scores += [(em(a, q.golds), f1(a, q.golds)) for q, a in zip(batch, answers, strict=True)]
        if on_rollouts:
            on_rollouts(rollouts)
        if on_batch:
            on_batch(start + len(batch), total)
    if not total:
        return None
    sources = np.array([q.data_source for q in questions])
    both = np.array(scores)
    recorder.eval_questions(
        step=step, name=name, question=np.arange(total), data_source=sources.tolist(),
        em=both[:, 0], f1=both[:, 1],
    )  # fmt: skip
    for source in sorted(set(sources.tolist())):
        own = both[sources == source]
        for metric, value in zip(("em", "f1"), own.mean(0).tolist(), strict=True):
            recorder.evals(
                step=step, data_source=source, metric=f"{metric}_{name}", value=value, n=len(own)
            )
    return float(both[:, 0].mean())
