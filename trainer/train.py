"""One step of training: sample -> score -> update -> record.

Where the sampler runs in this process with the trainer's own weights, the log-probabilities it kept
are `old`; another engine's are `behaviour`, and `old` is scored by the trainer before its first
update. Every random choice of a step comes from generators seeded by (seed, step): on the same CPU
a run repeats bit by bit, and a resumed one goes on as if it had never stopped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lldscope.losses.advantages import group_advantages
from lldscope.losses.llds import adaptive_answer_weight
from lldscope.recording.columns import tables, write
from lldscope.recording.rescore import rescore_sample
from lldscope.recording.retention import Retention

from .algorithms.update import Updater, UpdateStats
from .builtin.imitation import make_ready
from .checkpoint import Checkpoint, Checkpoints, State
from .config import TrainConfig
from .engines.players import make_player
from .meter import Meter
from .optim import make_optimizer
from .optim.processes import Processes, check_shares, start
from .policy.logprobs import action_scores, sequence_logps
from .policy.model import load_policy
from .preflight import need_memory
from .probes import Probes
from .records import loss_columns, recorded_batch, response_ids, update_columns
from .rollout.batch import RolloutBatch, answer_mask
from .rollout.evaluation import evaluate
from .rollout.tokens import Rollout
from .task import Draw, make_task


@dataclass
class StepReport:
    """The data of a finished step for a progress display. `seconds` by part of the step and
    `memory_peak`, in bytes, are rank 0's."""

    step: int
    reward: float
    delta_correct: float | None
    tokens_per_second: float
    seconds: dict[str, float] = field(default_factory=dict)
    memory_peak: int | None = None
    skipped: int = 0
    phase: str | None = None
    alerts: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Sample:
    """The rollouts of one step on this rank, and the rows of each update of them."""

    draw: Draw
    rollouts: Sequence[Rollout]
    batch: RolloutBatch
    minibatches: list[list[int]]

    @property
    def correct(self) -> list[bool]:
        return [r.episode.correct for r in self.rollouts]


class Trainer:
    """One run: policy, task, engine, optimizer, and the steps between them."""

    def __init__(
        self,
        config: TrainConfig,
        recorder: Any,
        *,
        processes: Processes | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.config = config
        self.recorder = recorder
        self.processes = processes or start(config.device)
        check_shares(config, self.processes.size)
        device = self.processes.device
        if device.type == "cpu":
            torch.set_num_threads(config.threads)
        make_ready(config.model)
        need_memory(config)
        self.policy = load_policy(
            config.model, device, getattr(torch, config.dtype),
            gradient_checkpointing=config.gradient_checkpointing,
            half_layers=config.optimizer == "deepspeed", head_dtype=config.head_dtype,
            packing=config.packing, shared_prefixes=config.shared_prefixes,
        )
        if config.frozen_embeddings:
            self.policy.model.get_input_embeddings().requires_grad_(False)
        self._reference: Any = None
        if config.kl_coefficient > 0:
            self.load_reference()
        self._meter = Meter(device)
        self.optimizer = make_optimizer(self.policy, config, self.processes)
        if self._reference is not None and config.optimizer == "deepspeed":
            # The KL must start at 0, so the reference is rounded like DeepSpeed's policy: bfloat16
            # weights, float32 buffers. Rotary frequencies in bfloat16 would be wrong by radians.
            for weight in self._reference.parameters():
                weight.data = weight.data.to(self.policy.model.dtype)
        self.updater = Updater(config, self.optimizer, self.processes)
        self._task = make_task(config, self.policy)
        with self.optimizer.full_weights():
            self._players = make_player(config, self.policy)
        self.probes = Probes(config, self.policy)
        self.retention = Retention(-(-config.retention // self.processes.size))
        self.next_step = 0
        self.answered: tuple[str, ...] = ()  # alarms that the guard had acted on before a resume
        if checkpoint is not None:
            self.restore(checkpoint)
            self.next_step = checkpoint.state.step
            self.answered = checkpoint.state.answered

    def load_reference(self) -> None:
        """Load the reference policy of the KL: the one that training starts from."""
        c, device = self.config, self.processes.device
        self._reference = load_policy(
            c.model, device, getattr(torch, c.dtype), half_layers=True, head_dtype=c.head_dtype,
            packing=c.packing, shared_prefixes=c.shared_prefixes,
        ).model

    def step(self, step: int) -> StepReport:
        """One RL step: sample → score → update → record."""
        return self.finish(self.sample(step))

    def sample(self, step: int, again: int = 0) -> Sample:
        """The sample for a step's updates: rollouts by the current weights, B on this rank, T
        positions. `again` > 0: the same questions, played with other random numbers."""
        part = self._meter.part
        with self.optimizer.full_weights():
            with part("rollout"):
                draw = self._draw(step, again)
                rollouts = self._players.sampling.play(
                    self._task.environment, draw.questions, draw.generator
                )
                self._players.sleep()  # what follows has the whole card
            with part("prepare"):
                batch = self._batch(rollouts)  # ids, mask, old: (B, T); advantages: (B,)
                # Drawn before `old` is scored, in the very passes of the updates: in other ones the
                # same weights round otherwise, and in bfloat16 that alone opens strict gates.
                minibatches = self.updater.minibatches(batch, draw.rng)
                passes = self.updater.passes(batch, minibatches)
            sample = Sample(draw, rollouts, batch, minibatches)
            with part("score"):
                batch.measure(self.policy.model, passes)
            with part("probes"):
                self.probes.record(self.recorder, step, batch, sample.correct, draw.groups)
            if self._reference is not None:
                with part("reference"):
                    self.score_reference(batch, passes)
        return sample

    def _draw(self, step: int, again: int = 0) -> Draw:
        """This rank's share of the step's fresh questions, `group_size` times each. All ranks draw
        the same questions and take every size-th; `again` changes everything but the questions."""
        c, p = self.config, self.processes
        rng = random.Random(f"{c.seed}|{step}")
        questions = self._task.questions.draw(step, c.prompts, rng)
        groups = [g for g in range(p.rank, c.prompts, p.size) for _ in range(c.group_size)]
        if again:
            rng = random.Random(f"{c.seed}|{step}|{again}")
        generator = torch.Generator(p.device).manual_seed(rng.getrandbits(62) + p.rank)
        batch = [questions[g] for g in groups]
        return Draw(step, batch, groups, generator, rng, self.updater.n_applied)

    def _batch(self, rollouts: Sequence[Rollout]) -> RolloutBatch:
        """The rollouts' tensors, with advantages within groups."""
        c = self.config
        rewards = torch.tensor([r.episode.reward for r in rollouts])
        keys = [r.episode.question.key for r in rollouts]
        advantages = group_advantages(rewards, keys, std=c.advantage_std)
        # Whether the sampler's log-probabilities belong to the updated policy.
        same = c.dtype == c.head_dtype == "float32"
        return RolloutBatch.of(rollouts, advantages, self.processes.device, apart=not same)

    @torch.no_grad()
    def score_reference(self, batch: RolloutBatch, passes: list[list[int]]) -> None:
        """Fill in the batch's `ref`, in the passes of the updates."""
        forward = partial(action_scores, self._reference)
        batch.ref = batch.score_passes(forward, passes).logp  # (B, T)

    def update(self, sample: Sample) -> list[UpdateStats]:
        """All updates of a step; measurements are stored in the sample's batch."""
        batch = sample.batch
        batch.answer_weight = self._answer_weight(sample.rollouts)
        if batch.answer_weight != 1:
            batch.answer_mask = answer_mask(self.policy, sample.rollouts, batch.ids.shape)
        with self.optimizer.moments_at_hand():
            return self.updater.run(batch, sample.draw.step, sample.minibatches)

    def _answer_weight(self, rollouts: Sequence[Rollout]) -> float:
        """β of the step: fixed, or by the mean number of valid searches over all ranks."""
        c = self.config
        if self.updater.cures.llds == "off":
            return 1.0
        if c.llds_adaptive == "off":
            return c.llds_answer_weight
        searches = sum(a.kind == "search" for r in rollouts for a in r.episode.actions)
        counts = self.processes.sum(
            torch.tensor([searches, len(rollouts)], device=self.processes.device)
        )
        return adaptive_answer_weight((counts[0] / counts[1]).item(), rule=c.llds_adaptive)

    def finish(self, sample: Sample) -> StepReport:
        """The step after its sampling: updates, re-score, record."""
        part, step = self._meter.part, sample.draw.step
        with part("update"):
            updates = self.update(sample)
        for number, update in enumerate(updates):
            if update.skipped:
                self.event("nonfinite_gradient", step=step, update=number)
        with self.optimizer.full_weights():
            # Before the engine wakes, which takes the memory that scoring needs.
            with part("record"):
                self._rescore(step, sample.batch, sample.correct, sample.draw.groups)
                retained = self.score_retained(step)
            with part("sync"):
                self._players.sync()
        return self._record(sample, updates, retained)

    @torch.inference_mode()
    def _rescore(
        self, step: int, batch: RolloutBatch, correct: Sequence[bool], groups: Sequence[int]
    ) -> None:
        """Score a sample of the step's rollouts under the policy after the last update.

        At loss time old and new policy nearly agree, so only this shows what the step did to the
        likelihood (Δ of arXiv 2512.04220 v2, Def. 4.1). All ranks draw the same sample of all
        rollouts, and each scores its own part of it.
        """
        c = self.config
        if c.rescore_share == 0:
            return
        ids = response_ids(groups, c.group_size)
        right = torch.zeros(c.prompts * c.group_size, device=self.processes.device)
        right[torch.from_numpy(ids)] = torch.tensor(correct, dtype=right.dtype).to(right.device)
        everywhere = self.processes.sum(right).bool().tolist()
        group_of = [i // c.group_size for i in range(len(everywhere))]
        sample = set(rescore_sample(everywhere, group_of, c.rescore_share, step))
        rows = [row for row, i in enumerate(ids.tolist()) if i in sample]
        if rows:
            where = torch.tensor(rows, device=self.processes.device)
            batch.rescored[rows] = True
            batch.post[where] = batch.score(self.policy.model, rows, c.micro_tokens)

    @torch.inference_mode()
    def score_retained(self, step: int) -> list[Any]:
        """Log-probabilities of the kept responses of earlier steps, by the policy after the last
        update, token by token."""
        due = self.retention.due(step)
        return sequence_logps(
            self.policy.model, [r.ids.tolist() for r in due], [r.mask.tolist() for r in due],
            self.config.micro_tokens,
        )

    def _record(
        self, sample: Sample, updates: Sequence[UpdateStats], retained: list[Any]
    ) -> StepReport:
        """Record the step, including the cost of recording itself (but for its last row)."""
        c, meter, draw, batch = self.config, self._meter, sample.draw, sample.batch
        with meter.part("record"):
            record = recorded_batch(draw, sample.rollouts, batch, c.group_size, self.policy)
            rows = tables(record, updates=update_columns(updates), tokens_every=c.tokens_every)
            sums = rows.pop("steps")
            self.retention.record(self.recorder, record, lambda due: retained)
            write(self.recorder, rows)
        cost = meter.columns()
        self.recorder.step(
            **sums, **loss_columns(updates), **cost, policy_version=draw.policy_version,
            lr=self.optimizer.lr,
        )
        self.next_step = draw.step + 1
        return self._report(sample, sums, cost, sum(u.skipped for u in updates))

    def _report(
        self, sample: Sample, sums: Mapping[str, Any], cost: Mapping[str, Any], skipped: int
    ) -> StepReport:
        """The step over all ranks."""
        delta = sample.batch.delta_sum(torch.tensor(sample.correct))
        mine = [sums[n] for n in ("reward_sum", "n_responses", "n_tokens")]
        total = self.processes.sum(
            torch.tensor([*mine, *delta], dtype=torch.float64, device=self.processes.device)
        )
        reward, n, tokens, delta_sum, n_deltas = total.tolist()
        return StepReport(
            step=sample.draw.step,
            reward=reward / n,
            delta_correct=delta_sum / n_deltas if n_deltas else None,
            tokens_per_second=tokens
            / sum(cost[f"seconds_{part}"] for part in ("rollout", "update", "record")),
            seconds=self._meter.last,
            memory_peak=cost["memory_peak"],
            skipped=skipped,
        )

    def event(self, kind: str, **details: Any) -> None:
        """Record an event of the whole run, once for all ranks."""
        if self.processes.rank == 0:
            self.recorder.event(kind, **details)

    def evaluate(self, on_batch: Callable[[int, int], None] | None = None) -> float | None:
        """em_greedy or em_sampled, played by all ranks and recorded under the next step by rank 0,
        which alone knows it."""
        with self._meter.part("evaluation"), self.optimizer.full_weights():
            return evaluate(
                self._players.evaluating, self._task.evaluation, self._task.evaluating,
                self.recorder, self.next_step, self.processes,
                name="sampled" if self.config.eval_temperature else "greedy", on_batch=on_batch,
                on_rollouts=self.probes.collect if self.processes.rank == 0 else None,
            )

    def save(
        self,
        checkpoints: Checkpoints,
        step: int,
        *,
        alarmed: tuple[str, ...] = (),
        answered: tuple[str, ...] = (),
    ) -> None:
        """Write the checkpoint to go on from at `step`. Raises OSError if it cannot be written. For
        `alarmed` and `answered` see `State`."""
        state = State(
            step=step,
            policy_version=self.updater.n_applied,
            cures=self.updater.cures,
            world_size=self.processes.size,
            alarmed=alarmed,
            answered=answered,
            probe_set=self.probes.state,
            torch=torch.__version__,
        )
        self.recorder.flush()
        checkpoints.write(
            state, self.policy, self.optimizer, self.processes, self.retention.state()
        )

    def save_policy(self, directory: Path) -> None:
        """Write the policy as an ordinary Hugging Face directory."""
        with self.optimizer.full_weights():
            if self.processes.rank == 0:
                self.policy.save(directory)

    def restore(self, checkpoint: Checkpoint, *, keep_cures: bool = False) -> None:
        """Restore weights, optimizer and the guard's changes from a checkpoint."""
        checkpoint.load(self.optimizer)
        self.updater.n_applied = checkpoint.state.policy_version
        if retained := checkpoint.retention(self.processes.rank):
            self.retention.restore(retained)
        if self.processes.rank == 0:
            self.probes.restore(checkpoint.state.probe_set)
        if not keep_cures:
            self.updater.cures = checkpoint.state.cures
        with self.optimizer.full_weights():
            self._players.sync()

    def close(self) -> None:
        """Release everything that the engine holds."""
        self._players.close()
