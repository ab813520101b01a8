"""Recording from ms-swift's GRPOTrainer (ms-swift 4.6): one line before `trainer.train()`.

    from lldscope.integrations.swift import instrument

    instrument(trainer, "runs/mine")

ms-swift descends from TRL 0.29, and keeps a rollout batch as samples and collated micro-batches. A
step of the run is one rollout batch. Not recorded: importance ratios and clipped tokens.
"""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

from ...core.errors import LldscopeError, missing_package

try:
    import torch
    from transformers import TrainerCallback
except ImportError as error:
    raise missing_package(error, "lldscope.integrations.swift", "swift") from None

from ...recording.columns import record
from ...recording.recorder import FailOpen, Recorder
from ...recording.retention import RESPONSES, Retention
from ..common.alarms import DEFAULT_RULES, AlarmAction, record_training
from ..common.hooks import can_follow, evaluation_mode, replace
from .batch import Pending, batch_of, score_kept

METHODS = {
    "_prepare_batch_inputs": (),
    "_postprocess_batch": ("samples", "batch_encoded_inputs"),
    "_get_per_token_logps_and_entropies": ("model", "model_inputs", "grpo_batch"),
    "train": (),
}
SCORING = "_get_per_token_logps_and_entropies"


def instrument(
    trainer: Any,
    path: str | Path,
    *,
    correct: float = 1.0,
    name: str | None = None,
    group: str | None = None,
    resume: bool = False,
    retention: int = RESPONSES,
    tokens_every: int = 5,
    on_alarm: str | None = None,
    alarms: tuple[str, ...] = DEFAULT_RULES,
    look_every: float = 5.0,
) -> Recorder:
    """Record what `trainer` does from now on in the run directory `path`; arguments as in
    `lldscope.integrations.trl.instrument`. `correct`: the least total reward of a correct response.

    Δ is measured in all rollouts, by one more pass over the batch after its last update. Raises
    LldscopeError where the trainer lacks what recording needs, with padding-free batches, sequence
    parallelism or several processes; after that it never ends the training.
    """
    _check(trainer)
    action = AlarmAction(on_alarm, alarms, look_every)
    import swift

    recorder = Recorder(
        path, name=name, group=group, resume=resume, trainer=f"ms-swift {swift.__version__}",
        correct_rule=f"total reward at least {correct:g}",
        config=json.loads(trainer.args.to_json_string()),
    )
    observer = Observer(trainer, recorder, correct, retention, tokens_every)
    replace(trainer, "_prepare_batch_inputs", observer.prepare)
    replace(trainer, "_postprocess_batch", observer.rollout)
    replace(trainer, SCORING, observer.scoring)
    replace(trainer.accelerator, "clip_grad_norm_", observer.clipping)
    replace(trainer, "train", functools.partial(record_training, recorder, action))
    trainer.add_callback(_Events(observer, action))
    trainer.lldscope_recorder = recorder
    return recorder


def _check(trainer: Any) -> None:
    for name, read in METHODS.items():
        method = getattr(trainer, name, None)
        if method is None or not can_follow(method, read):
            raise LldscopeError(
                f"{type(trainer).__name__} has no {name}({', '.join(read)}), which recording hooks "
                "into. This version of lldscope knows the GRPOTrainer of ms-swift 4.6."
            )
    template = trainer.template
    for what, there in (
        ("padding-free batches", template.padding_free),
        ("sequence parallelism", template.sequence_parallel_size > 1),
        ("several processes", trainer.accelerator.num_processes > 1),
    ):
        if there:
            raise LldscopeError(f"Recording from ms-swift with {what} is not supported.")


class _Events(TrainerCallback):
    def __init__(self, observer: Observer, action: AlarmAction) -> None:
        self._observer, self._action = observer, action

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._observer.begin()
        self._action.begin(self._observer.recorder)

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._observer.updated(kwargs.get("optimizer"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = self._observer.step_end()
        if step is not None:
            self._action.act(control, step)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self._observer.step_end(last=True)


class Observer:
    """A method that takes an `original` replaces the trainer's and returns what it returns."""

    def __init__(
        self, trainer: Any, recorder: Recorder, correct: float, retention: int, tokens_every: int
    ) -> None:
        self.trainer, self.recorder = trainer, recorder
        self._fail_open = FailOpen(recorder, "ms-swift")
        self._correct, self._tokens_every = correct, tokens_every
        self._scorer = getattr(trainer, SCORING)
        # Images of earlier steps are not kept.
        self._retention = Retention(0 if trainer.is_multimodal else retention)
        self._entropies: list[Any] | None = None
        self._pending: Pending | None = None
        self._next_step, self._norm = 0, None
        self._fail_open.missing(
            "importance ratios and clipped tokens", "ms-swift computes them inside its loss"
        )

    def begin(self) -> None:
        with self._fail_open("the planned length"):
            state, per_update = self.trainer.state, self.trainer.args.gradient_accumulation_steps
            self._next_step = state.global_step * per_update // self._every
            self.recorder.plan(-(-state.max_steps * per_update // self._every))

    @property
    def _every(self) -> int:
        """Micro-batches that a rollout batch serves."""
        return int(self.trainer.args.steps_per_generation * self.trainer.num_iterations)

    def prepare(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._entropies = []
        return original(*args, **kwargs)

    def scoring(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """π_old's pass gives the entropies, too."""
        if self._entropies is None or model is not self.trainer.model:
            return original(model, *args, **kwargs)
        result = original(model, *args, **kwargs | {"compute_entropy": True})
        self._entropies.append(result[1])
        return result

    def rollout(self, original: Any, samples: Any, batch_encoded_inputs: Any) -> Any:
        entropies, self._entropies = self._entropies or [], None
        result = original(samples, batch_encoded_inputs)
        if self.trainer.model.training:
            with self._fail_open("a rollout batch"):
                t = self.trainer
                weights = t.reward_weights.to(t._rewards_per_func.device)
                total = (t._rewards_per_func * weights).nansum(1).double()
                total[t._rewards_per_func.isnan().all(1)] = torch.nan
                self._pending = Pending(
                    self._next_step, samples, batch_encoded_inputs, total.cpu().numpy(), entropies
                )
            self._next_step += 1
        return result

    def clipping(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._norm = original(*args, **kwargs)
        return self._norm

    def updated(self, optimizer: Any) -> None:
        with self._fail_open("an update"):
            if self._pending is not None:
                self._pending.norms.append(None if self._norm is None else float(self._norm))
                self._pending.lr = float(optimizer.param_groups[0]["lr"])
            self._norm = None

    def step_end(self, last: bool = False) -> int | None:
        """Record the rollout batch if no later update uses it; returns its step."""
        pending = self._pending
        if pending is None or not (last or self.trainer._step % self._every == 0):
            return None
        self._pending = None
        with self._fail_open("a step"):
            seconds = time.perf_counter() - pending.started
            post = [self._post(micro) for micro in pending.micro_batches]
            batch = batch_of(self.trainer, pending, post, self._correct)
            with self._fail_open("the likelihood of responses of earlier steps"):
                self._retention.record(
                    self.recorder, batch, lambda due: score_kept(self._scorer, self.trainer, due)
                )
            norms = pending.norms
            record(
                self.recorder, batch, tokens_every=self._tokens_every, lr=pending.lr,
                updates={"grad_norm": norms} if norms else None, seconds_update=seconds,
                seconds_record=self._fail_open.take,
            )
        return pending.step

    def _post(self, micro: dict[str, Any]) -> Any:
        """Log-probabilities of a micro-batch under the present weights, (B, T)."""
        with torch.no_grad(), evaluation_mode(self.trainer.model):
            return self._scorer(
                self.trainer.model, dict(micro["model_inputs"]), micro["grpo_batch"]
            )[0]
