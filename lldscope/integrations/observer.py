"""Watches a TRL trainer at work and records each rollout batch as one step of the run.

Every method here that takes an `original` stands in for the trainer's method of that kind, calls it
and passes on what it returns. Whatever goes wrong in recording is logged once, counted, and costs
the rows of that step, never the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.errors import LldscopeError
from ..recording.guarded import FailOpen
from .regularizer import Regularizer, Term
from .rollouts import Inputs, Rollouts, action_mask
from .samples import Correct, judge
from .scoring import is_noisy, ratios, score
from .trl_step import StepWriter

BATCH, ROWS = "lldscope_batch", "lldscope_rows"  # what a micro-batch tells of where it comes from
Method = Callable[..., Any]


class Observer:
    """`correct(prompts, completions, completion_ids, rewards, **columns)` judges the rollouts of
    this rank; `scorer` is the trainer's own scoring method; `writer` gets each rollout batch when
    its last update is made."""

    def __init__(
        self,
        trainer: Any,
        recorder: Any,
        guard: FailOpen,
        scorer: Method,
        writer: StepWriter,
        correct: Correct,
        regulariser: Regularizer | None,
    ) -> None:
        self.trainer, self.recorder = trainer, recorder
        self._guarded, self._scorer, self._writer = guard, scorer, writer
        self._correct, self._regulariser = correct, regulariser
        self._noisy = is_noisy(trainer.model)
        self._open: dict[int, Rollouts] = {}
        self._next_step = 0
        self._phase: str | None = None
        self._scores: tuple[Tensor, Tensor | None] | None = None
        self._samples: tuple[Any, Any, Tensor] | None = None
        self._latest: Rollouts | None = None  # whose micro-batch was the last
        self._grad_norm: Any = None
        self._lr: float | None = None
        self._sampling = 0.0  # seconds spent on rollouts, inside training steps
        self._update_started = 0.0

    # -- in place of the trainer's methods --------------------------------------------------------

    def rewards(self, original: Method, *args: Any, **kwargs: Any) -> Tensor:
        """`_calculate_rewards`: (N of all ranks, functions), NaN where one has no opinion."""
        found = original(*args, **kwargs)
        if self._phase == "rollout":
            self._samples = (args, kwargs, found)
        return found

    def rollout(self, original: Method, inputs: Any) -> Inputs:
        """`_generate_and_score_completions`: a new rollout batch, or one for an evaluation."""
        if not self.trainer.model.training:
            return original(inputs)
        started = time.perf_counter()
        self._phase, self._scores, self._samples = "rollout", None, None
        try:
            output = original(inputs)
        finally:
            self._phase = None
        seconds = time.perf_counter() - started
        self._sampling += seconds
        step = self._next_step
        self._next_step += 1
        with self._guarded("a rollout batch"):
            self._begin(step, output, seconds)
        return output

    def scoring(self, original: Method, model: Any, *args: Any, **kwargs: Any) -> Any:
        """`_get_per_token_logps_and_entropies`: keep what it found. With TRL's fused head the
        entropies are there anyway, asked for or not."""
        policys = model is not getattr(self.trainer, "ref_model", None)
        if self._phase == "rollout" and policys and len(args) < 5:  # else asked for by position
            kwargs["compute_entropy"] = True
        result = original(model, *args, **kwargs)
        if self._phase is not None and policys and self._scores is None:
            self._scores = result[0], result[1]
        return result

    def loss(self, original: Method, model: Any, inputs: Inputs) -> Tensor:
        """`_compute_loss` of a micro-batch, plus the LLDS term."""
        if not self.trainer.model.training:
            return original(model, inputs)
        self._phase, self._scores = "loss", None
        try:
            loss = original(model, inputs)
        finally:
            self._phase = None
        term = None
        if self._regulariser is not None:
            if self._scores is None:
                raise LldscopeError(_NO_SCORES)
            term = self._regulariser(inputs, self._scores[0])
        with self._guarded("a micro-batch"):
            self._file(inputs, loss.detach(), term)
        self._scores = None
        return loss if term is None else loss + term.loss

    def training_step(self, original: Method, *args: Any, **kwargs: Any) -> Any:
        started, elsewhere = time.perf_counter(), self._elsewhere
        result = original(*args, **kwargs)
        if self._latest is not None:
            seconds = time.perf_counter() - started - (self._elsewhere - elsewhere)
            self._latest.seconds_update += seconds
        return result

    def clipping(self, original: Method, *args: Any, **kwargs: Any) -> Any:
        """`accelerator.clip_grad_norm_` returns the norm before clipping."""
        norm = original(*args, **kwargs)
        if norm is not None:
            self._grad_norm = norm
        return norm

    # -- what the trainer's callbacks tell --------------------------------------------------------

    def begin_training(self) -> None:
        """Steps go on where a checkpoint left them: micro-batches done / those of a batch."""
        done = self.trainer.state.global_step * self.trainer.args.gradient_accumulation_steps
        self._next_step = done // self._every

    def before_update(self, optimizer: Any) -> None:
        with self._guarded("an update"):
            self._lr = float(optimizer.param_groups[0]["lr"])
            self._update_started = time.perf_counter()

    def updated(self) -> None:
        if self._regulariser is not None:
            self._regulariser.next_update()
        with self._guarded("an update"):
            if self._latest is not None:
                self._latest.seconds_update += time.perf_counter() - self._update_started
            norm = None if self._grad_norm is None else float(self._grad_norm)
            skipped = bool(self.trainer.accelerator.optimizer_step_was_skipped)
            for rollouts in self._open.values():
                rollouts.close_update(norm, skipped, self._lr)
            self._grad_norm = None

    def step_end(self) -> int | None:
        """After an update: record the rollout batches that no later one will use. Returns the
        latest step recorded."""
        newest = max(self._open, default=-1)
        done = [s for s, r in self._open.items() if r.n_micro_batches >= self._every or s < newest]
        ready = [s for s in done if self._open[s].open_update is None and self._open[s].updates]
        for step in ready:
            self._writer.write(self._open.pop(step))
        return max(ready, default=None)

    def end_training(self) -> None:
        for step in list(self._open):
            self._writer.write(self._open.pop(step))

    def evaluated(self, logs: dict[str, Any]) -> None:
        if "eval_reward" in logs and self.recorder.rank == 0:
            self.recorder.evals(
                step=self._next_step, data_source="eval", metric="reward", value=logs["eval_reward"]
            )

    @property
    def last_step(self) -> int:
        """The newest rollout batch's step; −1 before the first."""
        return self._next_step - 1

    # -- inside -----------------------------------------------------------------------------------

    @property
    def _elsewhere(self) -> float:
        """Seconds so far that are none of the updates'."""
        return self._sampling + self._guarded.seconds

    @property
    def _every(self) -> int:
        """Micro-batches that one rollout batch serves."""
        return int(self.trainer.args.steps_per_generation * self.trainer.num_iterations)

    def _begin(self, step: int, output: Inputs, seconds: float) -> None:
        n = output["completion_ids"].size(0)
        if self._samples is None:
            raise LldscopeError("TRL did not call _calculate_rewards for these rollouts")
        samples = judge(self.trainer, *self._samples, n, self._correct)
        rollouts = Rollouts(
            dict(output), step, self.trainer.state.global_step, samples,
            self.trainer.num_generations,
        )  # fmt: skip
        rollouts.seconds_rollout = seconds
        old = output.get("old_per_token_logps")
        if self._noisy:
            # TRL scores in training mode; with dropout two of its passes differ by themselves.
            rollouts.set_old(*score(self._scorer, self.trainer, output))
        elif old is not None:
            rollouts.set_old(old, self._scores[1] if self._scores is not None else None)
        device = output["completion_ids"].device
        output[ROWS] = torch.arange(n, device=device)
        output[BATCH] = torch.tensor(step, device=device)
        self._open[step] = rollouts

    def _file(self, inputs: Inputs, loss: Tensor, term: Term | None) -> None:
        if BATCH not in inputs or int(inputs[BATCH]) not in self._open:
            return
        if self._scores is None:
            raise LldscopeError(_NO_SCORES)
        rollouts, rows = self._open[int(inputs[BATCH])], inputs[ROWS]
        self._latest = rollouts
        new, entropy = self._scores[0].detach(), self._scores[1]
        if self._noisy and not rollouts.has_old.all():
            raise LldscopeError("π_old was not measured")
        update = rollouts.file(rows, new, None if entropy is None else entropy.detach())
        update.window = self.trainer.current_gradient_accumulation_steps
        mask = action_mask(inputs)
        used = inputs.get("old_per_token_logps")
        ratio, clipped = ratios(
            self.trainer, new, new if used is None else used, mask, inputs["advantages"]
        )
        update.ratios.append(ratio[mask])
        if clipped is not None:
            update.clipped.append((clipped & mask).sum())
        if inputs.get("ref_per_token_logps") is not None:
            gap = (inputs["ref_per_token_logps"] - new)[mask].double()
            update.kl_sums.append((gap.exp() - gap - 1).sum())
        if self._loss_is_the_policys:
            update.losses.append(loss)
        if term is not None:
            update.llds.append(term.unweighted.detach())
            rollouts.file_llds(rows, term.gate, term.penalty)

    @property
    def _loss_is_the_policys(self) -> bool:
        """TRL returns one number: with a KL, an entropy bonus or a router loss in it, it is not the
        policy loss."""
        t = self.trainer
        more = (getattr(t, "_entropy_bonus_enabled", False), getattr(t, "aux_loss_enabled", False))
        return t.beta == 0 and not any(more)


_NO_SCORES = (
    "TRL's loss did not score its tokens by _get_per_token_logps_and_entropies (a Liger loss, or a "
    "subclass of its own?), so there are no log-probabilities to work with."
)
