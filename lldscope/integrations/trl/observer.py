"""Follows a TRL trainer through its own methods and records each rollout batch as one step.

A method with a parameter `original` replaces the trainer's method, calls it and returns its result;
the other methods are callbacks. An error in recording is logged once, counted, and costs the rows
of that step, never the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from ...core.errors import LldscopeError
from ...core.schema import COMPONENT
from ...losses.llds import LLDS
from ...recording.recorder import FailOpen
from ..common.alarms import AlarmAction
from ..common.step_log import StepLog
from .llds import Regularizer
from .rollouts import (
    Correct,
    Inputs,
    Rewarded,
    Samples,
    StepRollouts,
    micro_batches,
    of_all_ranks,
    rewarded_samples,
)
from .scoring import is_noisy, measure, score
from .seams import LOSS, REWARDED, SCORING
from .step import StepWriter

# Added to TRL's inputs: the rollout batch that a micro-batch comes from, and its rows there.
BATCH, ROWS = "lldscope_batch", "lldscope_rows"
_HIDDEN = (
    "it does not score its tokens by _get_per_token_logps_and_entropies (a Liger loss, or a "
    "subclass with its own?)"
)
_NO_SCORES = (
    "importance ratios, clipped tokens and the KL of the loss",
    f"{_HIDDEN}. Log-probabilities, entropy and Δ are from two passes of lldscope's own, before "
    "the updates and after them",
)
Method = Callable[..., Any]


@dataclass(eq=False)
class Observer(TrainerCallback):
    """`correct(prompts, completions, completion_ids, rewards, **columns)` judges the rollouts of
    this rank; `scorer` is the trainer's own scoring method; `writer` records each rollout batch
    after its last update; `action` is the action on an alarm; `step_log` writes entries for the
    trainer's own log."""

    trainer: Any
    recorder: Any
    fail_open: FailOpen
    scorer: Method
    writer: StepWriter
    correct: Correct
    action: AlarmAction
    regularizer: Regularizer | None
    step_log: StepLog | None

    def __post_init__(self) -> None:
        self._noisy = is_noisy(self.trainer.model)
        self._open: dict[int, StepRollouts] = {}
        self._next_step = 0
        self._phase: str | None = None
        self._scores: tuple[Tensor, Tensor | None] | None = None
        self._rewarded: Rewarded | None = None
        self._latest: StepRollouts | None = None  # the rollout batch of the last micro-batch
        self._grad_norm: Any = None
        self._lr: float | None = None
        self._sampling = 0.0  # seconds of rollouts inside training steps
        self._update_started = 0.0
        self._unlogged: list[int] = []  # recorded steps since the last entry of the trainer's log

    def rewards(self, original: Method, *args: Any, **kwargs: Any) -> Tensor:
        """`_calculate_rewards`: (N of all ranks, functions), NaN where a function gives none."""
        per_function: Tensor = original(*args, **kwargs)
        if self._phase == "rollout":
            self._rewarded = dict(zip(REWARDED, args, strict=False)) | kwargs, per_function
        return per_function

    def rollout(self, original: Method, *args: Any, **kwargs: Any) -> Inputs:
        """`_generate_and_score_completions`: a new rollout batch, or one for an evaluation."""
        if not self.trainer.model.training:
            return original(*args, **kwargs)
        start = time.perf_counter()
        self._phase, self._scores, self._rewarded = "rollout", None, None
        try:
            output = original(*args, **kwargs)
        finally:
            self._phase = None
        seconds = time.perf_counter() - start
        self._sampling += seconds
        step = self._next_step
        self._next_step += 1
        n, samples = 0, None
        with self.fail_open("a rollout batch"):
            n = output["completion_ids"].size(0)
            samples = rewarded_samples(self.trainer, self._rewarded, n, self._judge)
            self._record_parts(step)
        with self.fail_open("a rollout batch"):
            # Every rank takes part in this, also one where recording failed.
            correct = [None] * n if samples is None else samples.correct
            all_correct = of_all_ranks(self.trainer.accelerator, correct)
            if samples is not None:
                self._begin(step, output, samples, all_correct, seconds)
        return output

    def scoring(self, original: Method, *args: Any, **kwargs: Any) -> Any:
        """`_get_per_token_logps_and_entropies`: store what it returns. TRL's fused head computes
        the entropies in any case."""
        if self._phase is None:
            return original(*args, **kwargs)
        params = dict(zip(SCORING, args, strict=False))
        model = (params | kwargs).get("model")
        of_policy = model is not getattr(self.trainer, "ref_model", None)
        if self._phase == "rollout" and of_policy and "compute_entropy" not in params:
            kwargs["compute_entropy"] = True
        result = original(*args, **kwargs)
        if of_policy and self._scores is None:
            with self.fail_open("log-probabilities"):
                logps, entropies, *_ = result
                self._scores = logps, entropies
        return result

    def loss(self, original: Method, *args: Any, **kwargs: Any) -> Any:
        """`compute_loss` of a micro-batch, plus the LLDS term. If a subclass returns more than the
        loss, the rest is unchanged."""
        if not self.trainer.model.training:
            return original(*args, **kwargs)
        inputs = (dict(zip(LOSS, args, strict=False)) | kwargs)["inputs"]
        self._phase, self._scores = "loss", None
        try:
            result = original(*args, **kwargs)
        finally:
            self._phase = None
        loss = result[0] if isinstance(result, tuple) else result
        term = None
        if self.regularizer is not None:
            if self._scores is None:
                raise LldscopeError(f"llds needs the log-probabilities of the loss, but {_HIDDEN}.")
            term = self.regularizer(inputs, self._scores[0])
        with self.fail_open("a micro-batch"):
            self._add_micro_batch(inputs, loss.detach(), term)
        self._scores = None
        if term is None:
            return result
        loss = loss + term.loss
        return (loss, *result[1:]) if isinstance(result, tuple) else loss

    def training_step(self, original: Method, *args: Any, **kwargs: Any) -> Any:
        start, elsewhere = time.perf_counter(), self._elsewhere
        result = original(*args, **kwargs)
        if self._latest is not None:
            seconds = time.perf_counter() - start - (self._elsewhere - elsewhere)
            self._latest.seconds_update += seconds
        return result

    def clipping(self, original: Method, *args: Any, **kwargs: Any) -> Any:
        """`accelerator.clip_grad_norm_` returns the norm before clipping."""
        norm = original(*args, **kwargs)
        if norm is not None:
            self._grad_norm = norm
        return norm

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """After a checkpoint, the next step is the number of micro-batches done / those of a
        rollout batch."""
        state, per_update = self.trainer.state, self.trainer.args.gradient_accumulation_steps
        every = micro_batches(self.trainer)
        self._next_step = state.global_step * per_update // every
        with self.fail_open("the planned length"):
            self.recorder.plan(-(-state.max_steps * per_update // every))
        self.action.begin(self.recorder)

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        with self.fail_open("an update"):
            self._lr = float(kwargs["optimizer"].param_groups[0]["lr"])
            self._update_started = time.perf_counter()

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        if self.regularizer is not None:
            self.regularizer.next_update()
        with self.fail_open("an update"):
            if self._latest is not None:
                self._latest.seconds_update += time.perf_counter() - self._update_started
            norm = None if self._grad_norm is None else float(self._grad_norm)
            is_skipped = bool(self.trainer.accelerator.optimizer_step_was_skipped)
            for rollouts in self._open.values():
                rollouts.close_update(norm, is_skipped, self._lr)
            self._grad_norm = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After an update: record the rollout batches that no later update will use, and act on an
        alarm."""
        newest, every = max(self._open, default=-1), micro_batches(self.trainer)
        done = [s for s, r in self._open.items() if r.n_micro_batches >= every or s < newest]
        ready = [s for s in done if self._open[s].open_update is None and self._open[s].updates]
        for step in ready:
            self.writer.write(self._open.pop(step))
        if ready:
            self._unlogged += ready
            self.action.act(control, max(ready))
            if control.should_log and self.step_log is not None:  # every rank comes by here
                self.recorder.flush()
                self.trainer.accelerator.wait_for_everyone()
        if control.should_save:
            self.recorder.flush()  # a run resumed from the checkpoint continues after these steps

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.recorder.rank == 0:
            self.recorder.event(
                "checkpoint", step=self._next_step - 1, global_step=state.global_step
            )

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        for step in list(self._open):
            self.writer.write(self._open.pop(step))
        if self.step_log is not None:
            self.step_log.close()

    def log(self, original: Method, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """`log`; the summary and evaluations belong to no step."""
        if self._unlogged and self.step_log is not None and "loss" in logs:
            steps, self._unlogged = self._unlogged, []
            if self.recorder.rank == 0:
                with self.fail_open("the trainer's own log"):
                    self.recorder.flush()
                    logs.update(self.step_log.entry(steps))
        original(logs, *args, **kwargs)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "eval_reward" in (logs or {}) and self.recorder.rank == 0:
            self.recorder.evals(
                step=self._next_step, data_source="eval", metric="reward", value=logs["eval_reward"]
            )

    @property
    def _elsewhere(self) -> float:
        """Seconds so far of rollouts and recording, which are not update time."""
        return self._sampling + self.fail_open.seconds

    def _record_parts(self, step: int) -> None:
        """Means of several reward functions, over all ranks, where each gave every rollout one."""
        names = getattr(self.trainer, "reward_func_names", [])
        if self._rewarded is None or len(names) < 2 or self.recorder.rank:
            return
        per_function = self._rewarded[1]  # (N of all ranks, functions)
        if not per_function.isnan().any():
            self.recorder.scalars(
                step=step, name=[f"{COMPONENT}{name}" for name in names],
                value=per_function.double().mean(0).tolist(),
            )

    def _judge(self, **samples: Any) -> list[bool | None]:
        """Which rollouts are correct; None for all of them if `correct=` fails."""
        n = len(samples["completions"])
        try:
            verdicts = self.correct(**samples)
            if len(verdicts) != n:
                raise LldscopeError(f"correct= gave {len(verdicts)} answers for {n} rollouts")
            return [None if c is None else bool(c) for c in verdicts]
        except Exception as error:
            self.fail_open.failed("which responses are correct", error)
            return [None] * n

    def _begin(
        self,
        step: int,
        output: Inputs,
        samples: Samples,
        all_correct: list[bool | None],
        seconds: float,
    ) -> None:
        rollouts = StepRollouts(
            dict(output), step, self.trainer.state.global_step, samples, all_correct,
            self.trainer.num_generations,
        )
        rollouts.seconds_rollout = seconds
        old = output.get("old_per_token_logps")
        if self._noisy:
            # TRL scores in training mode; with dropout two of its passes differ by themselves.
            rollouts.set_old(*score(self.scorer, self.trainer, output))
        elif old is not None:
            rollouts.set_old(old, self._scores[1] if self._scores is not None else None)
        device = output["completion_ids"].device
        output[ROWS] = torch.arange(len(rollouts.mask), device=device)
        output[BATCH] = torch.tensor(step, device=device)
        self._open[step] = rollouts

    def _add_micro_batch(self, inputs: Inputs, loss: Tensor, term: LLDS | None) -> None:
        if not self._open:
            return  # the rollout batch could not be recorded, which was said
        if BATCH not in inputs:
            raise LldscopeError("the loss received other inputs than the rollouts")
        if int(inputs[BATCH]) not in self._open:
            return
        rollouts, rows = self._open[int(inputs[BATCH])], inputs[ROWS]
        self._latest = rollouts
        new = None if self._scores is None else self._scores[0].detach()
        if new is None:
            self.fail_open.missing(*_NO_SCORES)
            if not rollouts.updates and not rollouts.has_old.all():
                rollouts.set_old(*score(self.scorer, self.trainer, rollouts.inputs))
        if self._noisy and not rollouts.has_old.all():
            raise LldscopeError("π_old was not measured")
        entropy = None if self._scores is None else self._scores[1]
        update = rollouts.add_micro_batch(rows, new, None if entropy is None else entropy.detach())
        update.window = self.trainer.current_gradient_accumulation_steps
        measure(update, self.trainer, inputs, new, loss)
        if term is not None:
            update.llds.append(term.unweighted.detach())
            rollouts.add_llds(rows, term.gate_open, term.penalty)
