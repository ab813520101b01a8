"""Greedy evaluation: exact match and token F1 of each data source, into the table `evals`, and of
each question, into `eval_questions`.

The paper's Gen-Avg, MH-Avg and Avg are unweighted means over data sources (docs/data.md has the
query), so no row of them is kept beside what they are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..data.datasets import Question
from ..environment.protocol import Environment
from ..environment.reward import em, f1
from .tokens import Rollout

BATCH = 256
"""Questions played at once; bounds the memory of an evaluation."""


def evaluate(
    player: Any,
    questions: Sequence[Question],
    environment: Environment,
    recorder: Any,
    step: int,
    processes: Any,
    *,
    name: str = "greedy",
    on_batch: Callable[[int, int], None] | None = None,
    on_rollouts: Callable[[list[Rollout]], None] | None = None,
) -> float | None:
    """Record `em_{name}` and `f1_{name}`, means over the questions of each data source, with
    their number, and both for each question; returns the mean exact match over all questions, None
    if there are none. `player` is a sampler or a player of an engine (`engines.players`).

    Each of the `processes` (`optim.processes`) plays every size-th question, the same at every
    evaluation, and rank 0 records. After each batch `on_rollouts` gets its rollouts and `on_batch`
    how many questions are done, of how many.
    """
    total = len(questions)
    if not total:
        return None
    rank, size = processes.rank, processes.size
    scores = torch.zeros(total, 2, dtype=torch.float64)  # exact match and F1; 0 where others play
    mine = range(rank, total, size)
    generator = torch.Generator(processes.device).manual_seed(rank)
    for start in range(0, -(-total // size), BATCH):  # as often on every process
        batch = [questions[i] for i in mine[start : start + BATCH]]
        rollouts = player.play(environment, batch, generator)
        for i, question, rollout in zip(mine[start : start + BATCH], batch, rollouts, strict=True):
            answer, golds = rollout.episode.answer, question.golds
            scores[i] = torch.tensor([em(answer, golds), f1(answer, golds)], dtype=scores.dtype)
        if on_rollouts:
            on_rollouts(rollouts)
        if on_batch:
            on_batch(min(total, size * (start + len(batch))), total)
    both = processes.sum(scores.to(processes.device)).numpy(force=True)
    if rank:
        return None
    sources = np.array([q.data_source for q in questions])
    recorder.eval_questions(
        step=step, name=name, question=np.arange(total), data_source=sources.tolist(),
        em=both[:, 0], f1=both[:, 1],
    )
    for source in sorted(set(sources.tolist())):
        rows = both[sources == source]
        for metric, value in zip(("em", "f1"), rows.mean(0).tolist(), strict=True):
            recorder.evals(
                step=step, data_source=source, metric=f"{metric}_{name}", value=value, n=len(rows)
            )
    return float(both[:, 0].mean())
