"""verl's trainers with a recorder: `trainer.v1.trainer_mode=lldscope_sync` instead of `sync`.

A step of the run is one batch that the actor is updated on. Recording happens on the driver: it
reads the batch from TransferQueue after the update, and has the workers score it once more, in the
pass by which verl measured π_old. Recording neither changes nor ends the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from transfer_queue import KVBatchMeta
from verl import __version__
from verl.trainer.ppo.v1 import (
    PPOTrainerColocateAsync,
    PPOTrainerSeparateAsync,
    PPOTrainerSync,
    register_trainer,
)
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested

from ...core.errors import LldscopeError
from ...recording.columns import record
from ...recording.recorder import FailOpen, Recorder
from ...recording.retention import RESPONSES, KeptResponse, Retention
from ..common.alarms import DEFAULT_RULES, AlarmAction, record_training
from ..common.step_log import StepLog
from .batch import FIELDS, batch_of

SETTINGS = {
    "path": None, "name": None, "group": None, "correct": 1.0, "tokens_every": 5,
    "retention": RESPONSES,
    "on_alarm": None, "alarms": DEFAULT_RULES, "look_every": 5.0, "log": True,
}
SCALARS = {"actor/pg_loss": "loss_policy", "kl_loss": "loss_kl", "actor/llds_loss": "loss_llds"}
PARTITION = "lldscope"  # of TransferQueue
ESTIMATOR = "verl: mean over its mini-batches, each weighing the same"


_VerlTrainer: Any = object  # for the type checker; the classes below add one of verl's trainers


class Recording(_VerlTrainer):
    """A mixin for verl's trainers. Its settings are `trainer.lldscope` in verl's configuration:

    path: the run directory or an address; runs/<experiment_name> if not given. name, group: its.
    correct: the least score of a correct response, or the name of an extra value of the reward
    function (such as "acc"). tokens_every: steps between samples of texts and tokens; 0 is never.
    retention: correct responses of a step that are kept and scored again after each of the next 16
    (docs/research/retention.md); 0 is none, and so are prompts with images.
    on_alarm: "save" a checkpoint when one of the rules `alarms` fires, or save and "stop";
    look_every: seconds between reads of the run, in a thread.
    log: add Δ and its kin, phase and verdict to verl's own log, as `lldscope/…`, and pass on alarms
    to its trackers (`common.step_log`).
    """

    MODE = ""
    """verl's own name of the trainer."""

    def __init__(self, config: Any) -> None:
        """Raises LldscopeError for unknown or meaningless settings."""
        node = OmegaConf.select(config, "trainer.lldscope")
        settings = {} if node is None else dict(OmegaConf.to_container(node))
        if unknown := set(settings) - set(SETTINGS):
            raise LldscopeError(
                f"trainer.lldscope has no {', '.join(sorted(unknown))}; "
                f"there are {', '.join(SETTINGS)}"
            )
        self._lldscope = SETTINGS | settings
        if not isinstance(self._lldscope["correct"], float | int | str):
            raise LldscopeError(
                "trainer.lldscope.correct must be a minimum score, or the name of an extra value "
                f"of the reward function; it is {self._lldscope['correct']!r}"
            )
        self._action = AlarmAction(
            *(self._lldscope[name] for name in ("on_alarm", "alarms", "look_every"))
        )
        with open_dict(config):  # verl selects more by this name, such as the replay buffer
            config.trainer.v1.trainer_mode = self.MODE
        super().__init__(config)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Raises RunExists or LldscopeError before the first step."""
        self._recorder = self._open()
        self._fail_open = FailOpen(self._recorder, "verl")
        self._step_log = StepLog.of(self._recorder, self._fail_open, self._lldscope["log"])
        # With a processor there are images, which are not kept.
        images = getattr(self, "processor", None) is not None
        self._retention = Retention(0 if images else self._lldscope["retention"])
        if images and self._lldscope["retention"]:
            self._fail_open.missing("retention", "the model has a processor of images")
        self._action.begin(self._recorder)
        return record_training(self._recorder, self._action, super().fit, *args, **kwargs)

    def on_step_end(self) -> None:
        """Also the action on an alarm: verl stops after the step that it takes for the last one."""
        super().on_step_end()
        control = SimpleNamespace(should_save=False, should_training_stop=False)
        self._action.act(control, self._step)
        if control.should_save:
            self._save_checkpoint()
        if control.should_training_stop:
            self.total_training_steps = self.global_steps

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """verl's own saving; the path is stored for `lldscope rescue --plan`."""
        super()._save_checkpoint(*args, **kwargs)
        with self._fail_open("a checkpoint"):
            self._recorder.event("checkpoint", step=self._step, global_step=self.global_steps)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        old = None
        with self._fail_open("π_old"):
            correction = self.config.algorithm.get("rollout_correction", None) or {}
            # In this mode verl takes the engine's log-probabilities for the policy's.
            if correction.get("bypass_mode", False):
                old = self._score(batch)
        updates: dict[str, Any] = {}
        start = time.perf_counter()
        batch = self._updated(updates, batch, metrics)
        seconds = time.perf_counter() - start
        with self._fail_open("a step"):
            self._record(batch, updates, old, seconds)
        if self._step_log is not None:
            self._recorder.flush()
            with self._fail_open("verl's own log"):
                metrics.update(self._step_log.entry([self._step]))
        return batch

    def _validate(self) -> dict[str, float]:
        metrics: dict[str, float] = super()._validate()
        with self._fail_open("an evaluation"):
            self._evaluated(metrics)
        return metrics

    def _open(self) -> Recorder:
        config, settings = self.config.trainer, self._lldscope
        place = settings["path"] or f"runs/{config.experiment_name}"
        correct = settings["correct"]
        rule = (
            f"`{correct}` of the reward function"
            if isinstance(correct, str)
            else f"score at least {correct:g}"
        )
        recorder = Recorder(
            place, name=settings["name"] or config.experiment_name, group=settings["group"],
            trainer=f"verl {__version__}", correct_rule=rule, resume=self.global_steps > 0,
            config=OmegaConf.to_container(self.config, resolve=True),
        )
        recorder.plan(self.total_training_steps * self.parameter_sync_step)
        return recorder

    @property
    def _step(self) -> int:
        """verl counts from 1, and a step may make several updates of the actor."""
        before = (self.global_steps - 1) * self.parameter_sync_step
        return int(before + self.local_trigger_step)

    def _updated(
        self, updates: dict[str, Any], batch: KVBatchMeta, metrics: dict[str, Any]
    ) -> KVBatchMeta:
        """The trainer's own update; `updates` gets the workers' metrics of each mini-batch, of
        which verl only logs the means."""
        workers = self.actor_rollout_wg
        original = workers.update_actor

        def update_actor(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            with self._fail_open("the updates"):
                updates.update(output["metrics"])
            return output

        workers.update_actor = update_actor
        try:
            return super()._update_actor(batch, metrics)
        finally:
            workers.update_actor = original

    def _score(self, batch: KVBatchMeta) -> Any:
        """Log-probabilities of the responses under the present weights, nested (N, length), as
        `_compute_old_log_prob` has them; the entropy that it stored is not overwritten."""
        rollout = self.config.actor_rollout_ref.rollout
        request = KVBatchMeta(
            keys=batch.keys, tags=batch.tags, partition_id=batch.partition_id,
            extra_info=(batch.extra_info or {}) | {
                "calculate_entropy": False, "compute_loss": False,
                "temperature": rollout.temperature,
            },
        )
        self.actor_rollout_wg.compute_log_prob(request)
        data = _get(batch, ("log_probs", "response_mask"))
        return response_from_nested(data["log_probs"], data["response_mask"])

    def _record(
        self, batch: KVBatchMeta, updates: Mapping[str, Any], old: Any, seconds: float
    ) -> None:
        post = self._score(batch)
        step = self._step
        rollouts = batch_of(
            _get(batch, FIELDS), post, step=step, old=old,
            limit=self.config.actor_rollout_ref.rollout.response_length,
            padding=[bool(tag.get("is_padding", False)) for tag in batch.tags],
            correct=self._lldscope["correct"], decode=self.tokenizer.decode,
        )
        with self._fail_open("the likelihood of responses of earlier steps"):
            self._retention.record(self._recorder, rollouts, self._score_kept)
        norms, lr = _numbers(updates.get("grad_norm")), _numbers(updates.get("lr"))
        self._scalars(step, updates)
        record(
            self._recorder, rollouts, tokens_every=self._lldscope["tokens_every"],
            updates={"grad_norm": norms, "grad_finite": [bool(np.isfinite(n)) for n in norms]}
            if norms else None,
            lr=lr[-1] if lr else None, seconds_update=seconds,
            # With several updates per step verl adds their times up.
            seconds_rollout=self.timing_raw.get("gen") if self.parameter_sync_step == 1 else None,
            seconds_record=self._fail_open.take,
        )

    def _score_kept(self, due: Sequence[KeptResponse]) -> list[np.ndarray]:
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        rows = self.config.actor_rollout_ref.rollout.get("log_prob_micro_batch_size_per_gpu")
        return score_kept(due, ranks * (rows or 1), self._score)

    def _scalars(self, step: int, updates: Mapping[str, Any]) -> None:
        """Losses, of which verl reports means. With LLDS, pg_loss is not the policy loss alone."""
        losses = {
            signal: _numbers(updates.get(name))
            for name, signal in SCALARS.items()
            if not (signal == "loss_policy" and "actor/llds_loss" in updates)
        }
        means = {signal: float(np.mean(values)) for signal, values in losses.items() if values}
        if means:
            self._recorder.scalars(
                step=step, name=list(means), value=list(means.values()), estimator=ESTIMATOR
            )

    def _evaluated(self, metrics: Mapping[str, float]) -> None:
        """Metrics are named val-core/<data source>/<variable>/<metric>."""
        parts = {name: name.split("/") for name in metrics if name.startswith("val-")}
        scores = {name: p for name, p in parts.items() if len(p) >= 4}
        if scores:
            self._recorder.evals(
                step=self.global_steps,
                data_source=["/".join(p[1:-2]) for p in scores.values()],
                metric=["/".join(p[-2:]) for p in scores.values()],
                value=[float(metrics[name]) for name in scores],
            )


def score_kept(
    due: Sequence[KeptResponse], multiple: int, score: Callable[[KVBatchMeta], Any]
) -> list[np.ndarray]:
    """For each kept response that is due, (T,) log π of its tokens, nats; 0 on the prompt. The rows
    get a partition of TransferQueue of their own, are scored, and are cleared.

    multiple: the workers take only a multiple of this number of rows; copies of the first row fill
    up. score: from a batch to the log-probabilities of its responses, nested.
    """
    if not due:
        return []
    rows = [_row(r) for r in due]
    rows += rows[:1] * (-len(rows) % multiple)
    keys = [f"{PARTITION}-{i}" for i in range(len(rows))]
    # As verl's tags are: workers share the rows out by these lengths.
    tags = [
        {"prompt_len": len(row["prompts"]), "response_len": len(row["responses"]),
         "seq_len": len(row["input_ids"])}
        for row in rows
    ]
    tq.kv_batch_put(
        keys=keys, partition_id=PARTITION, fields=list_of_dict_to_tensordict(rows), tags=tags
    )
    try:
        logps = score(KVBatchMeta(keys=keys, tags=tags, partition_id=PARTITION)).unbind()
    finally:
        tq.kv_clear(keys=keys, partition_id=PARTITION)
    return [
        np.concatenate([np.zeros(len(r.ids) - len(logp)), logp.double().numpy()])
        for r, logp in zip(due, logps, strict=False)
    ]


def _row(response: KeptResponse) -> dict[str, Any]:
    """The fields of a rollout that verl's scoring reads."""
    ids, policy_mask = torch.from_numpy(response.ids).long(), torch.from_numpy(response.mask)
    first = int(policy_mask.argmax())
    return {
        "input_ids": ids,
        "position_ids": torch.arange(len(ids)),
        "prompts": ids[:first],
        "responses": ids[first:],
        "response_mask": policy_mask[first:],
        "loss_mask": policy_mask[first:],
    }


def _numbers(metric: Any) -> list[float]:
    """A metric of the workers, one number or more for each mini-batch."""
    if metric is None:
        return []
    if isinstance(metric, list | tuple):
        return [number for part in metric for number in _numbers(part)]
    return [float(metric.aggregate() if hasattr(metric, "aggregate") else metric)]


def _get(batch: KVBatchMeta, fields: tuple[str, ...]) -> Any:
    return tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields)
    )


@register_trainer("lldscope_sync")
class RecordingSync(Recording, PPOTrainerSync):
    MODE = "sync"


@register_trainer("lldscope_colocate_async")
class RecordingColocateAsync(Recording, PPOTrainerColocateAsync):
    MODE = "colocate_async"


@register_trainer("lldscope_separate_async")
class RecordingSeparateAsync(Recording, PPOTrainerSeparateAsync):
    MODE = "separate_async"
