"""Greedy evaluation: exact match and token F1 of each data source, into the table `evals`.

The paper's Gen-Avg, MH-Avg and Avg are unweighted means over data sources (docs/data.md has the
query), so no row of them is kept beside what they are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

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
    their number; returns the mean exact match over all questions, None if there are none.

    After each batch `on_rollouts` gets its rollouts and `on_batch` how many questions are done, of
    how many.
    """
    scores: dict[str, list[tuple[float, float]]] = {}
    total = len(questions)
    for start in range(0, total, BATCH):
        batch = questions[start : start + BATCH]
        rollouts = player.play(environment, batch, torch.Generator())
        for question, rollout in zip(batch, rollouts, strict=True):
            answer = rollout.episode.answer
            scores.setdefault(question.data_source, []).append(
                (em(answer, question.golds), f1(answer, question.golds))
            )
        if on_rollouts:
            on_rollouts(rollouts)
        if on_batch:
            on_batch(start + len(batch), total)
    for source, pairs in sorted(scores.items()):
        for metric, values in zip(("em", "f1"), zip(*pairs, strict=True), strict=True):
            recorder.evals(
                step=step, data_source=source, metric=f"{metric}_{name}",
                value=sum(values) / len(values), n=len(values),
            )  # fmt: skip
    return sum(exact for pairs in scores.values() for exact, _ in pairs) / total if total else None
