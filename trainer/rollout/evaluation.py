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
from torch import Tensor

from ..data.datasets import Question
from ..environment.protocol import Environment
from ..environment.reward import em, f1
from .tokens import Rollout

_CPU = torch.device("cpu")
BATCH = 256
"""Questions played at once: what bounds the memory of an evaluation."""


def evaluate(
    player: Any,
    questions: Sequence[Question],
    environment: Environment,
    recorder: Any,
    step: int,
    *,
    name: str = "greedy",
    rank: int = 0,
    size: int = 1,
    device: torch.device = _CPU,
    add_up: Callable[[Tensor], Tensor] = lambda mine: mine,
    on_batch: Callable[[int, int], None] | None = None,
    on_rollouts: Callable[[list[Rollout]], None] | None = None,
) -> float | None:
    """Record `em_{name}` and `f1_{name}`, means over the questions of each data source, with
    their number, and both for each question; returns the mean exact match over all questions, None
    if there are none. `player` is a sampler or a player of an engine (`engines.players`).

    Of `size` processes each plays every size-th question on its `device`, the same at every
    evaluation; `add_up` sums a tensor over them, and rank 0 records. After each batch `on_rollouts`
    gets its rollouts and `on_batch` how many questions are done, of how many.
    """
    total = len(questions)
    if not total:
        return None
    scores = torch.zeros(total, 2, dtype=torch.float64)  # exact match and F1; 0 where others play
    mine = range(rank, total, size)
    generator = torch.Generator(device).manual_seed(rank)
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
    both = add_up(scores).numpy()
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
