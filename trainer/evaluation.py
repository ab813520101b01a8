"""Greedy evaluation on held-out questions, with the search tool and without a useful one."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch

from .config import TrainConfig
from .environment import Environment
from .policy import Policy
from .retrieval import Retriever
from .rollout import Sampler, Sampling
from .world import World

QUESTION_SEED = 20_512
"""The held-out questions are the same for every run, whatever its seed."""


class Evaluator:
    """A fixed set of held-out questions."""

    def __init__(
        self, policy: Policy, config: TrainConfig, sampling: Sampling, world: World
    ) -> None:
        self._sampler = Sampler(policy, replace(sampling, temperature=0.0))
        self._max_turns = config.max_turns
        self._questions = world.questions(
            random.Random(QUESTION_SEED),
            config.eval_questions,
            two_hop=config.two_hop,
            held_out=True,
        )

    def run(self, recorder: Any, step: int, metric: str, retriever: Retriever) -> float | None:
        """Record the share of exact matches per data source; returns it over all questions."""
        if not self._questions:
            return None
        environment = Environment(retriever, max_turns=self._max_turns)
        rollouts = self._sampler.play(environment, self._questions, torch.Generator())
        by_source: dict[str, list[float]] = {}
        for rollout in rollouts:
            by_source.setdefault(rollout.episode.question.data_source, []).append(
                rollout.episode.reward
            )
        for source, rewards in sorted(by_source.items()):
            recorder.evals(
                step=step, data_source=source, metric=metric,
                value=sum(rewards) / len(rewards), n=len(rewards),
            )  # fmt: skip
        return sum(r.episode.reward for r in rollouts) / len(rollouts)
