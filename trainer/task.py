"""The task of a run: its questions, its search tool, its environment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .builtin.world import World
from .config import BUILT_IN, TrainConfig
from .data.datasets import Question, ShuffledQuestions, read_questions
from .engines.players import sampling_of
from .environment.corpus_index import open_index
from .environment.protocol import Environment, Scoring
from .environment.retrieval import Bm25Retriever, CorpusRetriever, Retriever
from .environment.retriever_client import HttpRetriever
from .policy.model import Policy
from .rollout.tokens import TokenProtocol


@dataclass(frozen=True)
class Draw:
    """The start of a step: this rank's questions and their group numbers, the generator for
    sampling, the generator for the rest of the step, and the number of updates behind the sampling
    weights."""

    step: int
    questions: Sequence[Question]
    groups: list[int]
    generator: torch.Generator
    rng: random.Random
    policy_version: int


@dataclass
class Task:
    """`environment` is for training, `evaluating` for evaluations."""

    questions: World | ShuffledQuestions
    evaluation: list[Question]
    environment: Environment
    evaluating: Environment


def make_task(config: TrainConfig, policy: Policy) -> Task:
    """Load everything that the configuration names. Raises UsageError if something is unusable."""
    world = World.real(config.two_hop)
    retriever = _retriever(config, world)
    source: World | ShuffledQuestions = world
    evaluation = _evaluation(config, world)
    protocol = TokenProtocol(policy, sampling_of(config))
    protocol.check(evaluation)
    if config.data != BUILT_IN:
        questions = _read(config.data)
        protocol.check(questions)
        source = ShuffledQuestions(questions, seed=config.seed)
        source.draw(0, config.prompts, random.Random(0))  # are there enough?
    environment = _environment(config, policy, retriever, config.max_turns)
    turns = config.eval_max_turns or config.max_turns
    return Task(
        source, evaluation, environment, _environment(config, policy, retriever, turns)
    )


def _retriever(config: TrainConfig, world: World) -> Retriever:
    if config.retriever_url:
        return HttpRetriever(
            config.retriever_url, top_k=config.top_k, timeout=config.retriever_seconds
        )
    if config.corpus != BUILT_IN:
        return CorpusRetriever(open_index(Path(config.corpus)), top_k=config.top_k)
    return Bm25Retriever(
        world.documents, top_k=config.top_k, miss_rate=config.miss_rate, seed=config.seed
    )


def _evaluation(config: TrainConfig, world: World) -> list[Question]:
    if not config.eval_questions:
        return []
    if config.eval_data:
        return _read(config.eval_data, limit=config.eval_questions)
    return world.held_out(config.eval_questions) if config.data == BUILT_IN else []


def _read(paths: str, limit: int = 0) -> list[Question]:
    return read_questions([path.strip() for path in paths.split(",")], limit=limit)


def _environment(
    config: TrainConfig, policy: Policy, retriever: Retriever, max_turns: int
) -> Environment:
    return Environment(
        retriever,
        max_turns=max_turns,
        invalid_text=config.invalid_text,
        tool_tags=config.tool_tags,
        tool_text=config.tool_text,
        reserved=policy.tokenizer.all_special_tokens,
        scoring=Scoring(config.answers_from, config.reward, config.format_reward),
    )
