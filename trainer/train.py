"""The train loop: rollouts -> rewards -> advantages -> updates -> re-score -> recorder rows.

The sampler runs in this process with the trainer's own weights, so the log-probabilities it kept
are `old`, and there is no `behaviour` policy to tell apart. Every random choice of a step comes
from generators seeded by (seed, step): a run repeats bit by bit on the same machine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .advantages import group_advantages
from .batch import Batch, answer_mask
from .config import TrainConfig
from .environment import Environment
from .evaluation import Evaluator
from .llds import adaptive_answer_weight
from .optimizer import make_optimizer
from .policy import load_policy
from .processes import start
from .records import StepRows, loss_columns, update_columns
from .rescore import mean_delta, rescore_sample
from .retrieval import Bm25Retriever, UnrelatedRetriever
from .rollout import Rollout, Sampler, Sampling
from .update import Updater, UpdateStats
from .world import World, WorldQuestions

READ_PER_STEP = 4
"""Rollouts whose tokens are kept in a step that keeps any."""


@dataclass
class StepReport:
    """What a progress display wants to know of a finished step."""

    step: int
    reward: float
    delta_correct: float | None
    entropy: float
    grad_norm: float


@dataclass
class Summary:
    """How a run went. Times in seconds over all steps; `recorder_calls` is part of `record`."""

    steps: int
    final_reward: float
    em_greedy: float | None
    em_closed_book: float | None
    rollout: float = 0.0
    update: float = 0.0
    record: float = 0.0
    recorder_calls: float = 0.0


class Trainer:
    """One run: policy, environment, optimizer, and the questions of each step."""

    def __init__(self, config: TrainConfig, recorder: Any) -> None:
        self.config = config
        self.recorder = recorder
        processes = start(config.device)
        self._device = processes.device
        if self._device.type == "cpu":
            torch.set_num_threads(config.threads)
        dtype = getattr(torch, config.dtype)
        self.policy = load_policy(config.model, self._device, dtype)
        self._reference = None
        if config.kl_coefficient > 0:
            self._reference = load_policy(config.model, self._device, dtype).model
        self._world = World.real()
        self._retriever = Bm25Retriever(
            self._world.documents, top_k=config.top_k, miss_rate=config.miss_rate, seed=config.seed
        )
        self._environment = Environment(self._retriever, max_turns=config.max_turns)
        names = Sampling.__dataclass_fields__
        sampling = Sampling(**{k: v for k, v in config.to_dict().items() if k in names})
        self._sampler = Sampler(self.policy, sampling)
        self._updater = Updater(config, make_optimizer(self.policy, config, processes), processes)
        self._questions = WorldQuestions(self._world, two_hop=config.two_hop)
        self._evaluator = Evaluator(
            Sampler(self.policy, replace(sampling, temperature=0.0)),
            self._questions.held_out(config.eval_questions),
        )
        self.seconds = dict.fromkeys(("rollout", "update", "record", "recorder_calls"), 0.0)

    def step(self, step: int) -> StepReport:
        """One RL step, recorded."""
        c = self.config
        rng = random.Random(f"{c.seed}|{step}")
        policy_version = self._updater.n_applied
        clock = _Clock()

        rollouts, groups = self._rollouts(step, rng)
        seconds_rollout = clock.lap()

        rewards = torch.tensor([r.episode.reward for r in rollouts])
        keys = [(r.episode.question.data_source, g) for r, g in zip(rollouts, groups, strict=True)]
        advantages = group_advantages(rewards, keys, std=c.advantage_std)
        batch = Batch.of(rollouts, advantages, self._device)
        if self._reference is not None:
            with torch.no_grad():
                batch.ref = batch.score(self._reference, range(len(rollouts)), c.buckets)
        weight = self._answer_weight(rollouts)
        if weight != 1:
            batch.answer_mask = answer_mask(self.policy, rollouts, batch.ids.shape)
        updates = self._updater.run(batch, step, rng, answer_weight=weight)
        seconds_update = clock.lap()

        self._rescore(batch, rewards.tolist(), groups, rng)
        rows = StepRows(step, rollouts, batch, groups)
        self._record_tables(rows, updates, step)
        sums = rows.steps()
        seconds_record = clock.lap()
        started = time.perf_counter()
        self.recorder.step(
            **sums,
            policy_version=policy_version,
            **loss_columns(updates),
            lr=self._updater.lr,
            seconds_rollout=seconds_rollout,
            seconds_update=seconds_update,
            seconds_record=seconds_record,
        )
        self.seconds["recorder_calls"] += time.perf_counter() - started
        self.seconds["rollout"] += seconds_rollout
        self.seconds["update"] += seconds_update
        self.seconds["record"] += seconds_record + clock.lap()
        return StepReport(
            step=step,
            reward=sums["reward_sum"] / sums["n_responses"],
            delta_correct=mean_delta(batch, rewards == 1),
            entropy=sums["entropy_sum"] / max(1, sums["n_tokens"]),
            grad_norm=sorted(u.grad_norm for u in updates)[len(updates) // 2],
        )

    def _rollouts(self, step: int, rng: random.Random) -> tuple[list[Rollout], list[int]]:
        """`group_size` rollouts of each of `prompts` fresh questions, and their group numbers."""
        c = self.config
        questions = self._questions.draw(step, c.prompts, rng)
        groups = [g for g in range(c.prompts) for _ in range(c.group_size)]
        generator = torch.Generator(self._device).manual_seed(rng.getrandbits(62))
        played = self._sampler.play(self._environment, [questions[g] for g in groups], generator)
        return played, groups

    def _answer_weight(self, rollouts: Sequence[Rollout]) -> float:
        """β of the step: fixed, or by the mean number of valid searches."""
        c = self.config
        if c.llds == "off":
            return 1.0
        if c.llds_adaptive == "off":
            return c.llds_answer_weight
        searches = sum(a.kind == "search" for r in rollouts for a in r.episode.actions)
        return adaptive_answer_weight(searches / len(rollouts), rule=c.llds_adaptive)

    @torch.no_grad()
    def _rescore(
        self, batch: Batch, rewards: Sequence[float], groups: Sequence[int], rng: random.Random
    ) -> None:
        """Score a sample of the rollouts under the policy after the step's last update.

        At loss time old and new policy nearly agree, so only this shows what the step did to the
        likelihood (Δ of arXiv 2512.04220 v2, Def. 4.1). Only groups with both classes are looked
        at, whole groups at a time and in random order, correct rollouts before incorrect ones.
        """
        n = round(self.config.rescore_share * len(rewards))
        chosen = rescore_sample(rewards, groups, n, rng)
        if chosen:
            where = torch.tensor(chosen, device=self._device)
            batch.rescored[chosen] = True
            batch.post[where] = batch.score(self.policy.model, chosen, self.config.buckets)

    def _record_tables(self, rows: StepRows, updates: Sequence[UpdateStats], step: int) -> None:
        """Everything but the row of `steps`, which must come last."""
        every = self.config.tokens_every
        read = rows.worth_reading(READ_PER_STEP) if every and step % every == 0 else []
        responses = rows.responses(self.policy, read)
        actions = rows.actions()
        tokens = rows.tokens(self.policy, read) if read else None
        started = time.perf_counter()
        for name, update in enumerate(updates):
            if update.skipped:
                self.recorder.event("nonfinite_gradient", step=step, update=name)
        self.recorder.updates(step=step, **update_columns(updates))
        self.recorder.responses(**responses)
        self.recorder.actions(**actions)
        if tokens:
            self.recorder.tokens(**tokens)
        self.seconds["recorder_calls"] += time.perf_counter() - started

    def evaluate(self, step: int, *, closed_book: bool) -> tuple[float | None, float | None]:
        """(em_greedy, em_closed_book), recorded; the second one only where asked for."""
        greedy = self._evaluator.run(self._environment, self.recorder, step)
        if not closed_book:
            return greedy, None
        unrelated = UnrelatedRetriever(self._world.documents, top_k=self.config.top_k)
        environment = Environment(unrelated, max_turns=self.config.max_turns)
        return greedy, self._evaluator.run(environment, self.recorder, step, name="closed_book")


def train(
    config: TrainConfig,
    recorder: Any,
    *,
    on_step: Callable[[StepReport], None] | None = None,
    save_to: Path | None = None,
) -> Summary:
    """Train as configured, recording into `recorder` (a lldscope.Recorder or NullRecorder, which
    the caller closes). `on_step` is called after every step; `save_to` gets the trained policy."""
    trainer = Trainer(config, recorder)
    trainer.evaluate(0, closed_book=True)
    rewards = []
    for step in range(config.steps):
        report = trainer.step(step)
        rewards.append(report.reward)
        if on_step:
            on_step(report)
        done = step + 1
        if config.eval_every and done % config.eval_every == 0 and done < config.steps:
            trainer.evaluate(done, closed_book=False)
    greedy, closed = trainer.evaluate(config.steps, closed_book=True)
    if save_to:
        trainer.policy.save(save_to)
    last = rewards[-10:]
    return Summary(config.steps, sum(last) / len(last), greedy, closed, **trainer.seconds)


class _Clock:
    """Seconds since the last lap."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        lap, self._last = now - self._last, now
        return lap
