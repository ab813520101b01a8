"""Recording from TRL's GRPOTrainer, without a fork: one line before `trainer.train()`.

    from lldscope.integrations.trl import instrument

    recorder = instrument(trainer, "runs/mine")

Methods are replaced on this one object, so a subclass of your own works, too. A step of the run is
one rollout batch, however many micro-batches and optimizer steps TRL makes of it. Recording changes
no bit of the training, unless `llds` adds its loss.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import LldscopeError, missing_package

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise missing_package(error, "lldscope.integrations.trl", "trl") from None

from ...recording.batch import reaches
from ...recording.recorder import FailOpen, Recorder
from ...recording.retention import RESPONSES, Retention
from ..common.alarms import DEFAULT_RULES, AlarmAction, record_training
from ..common.hooks import replace
from ..common.step_log import StepLog
from .llds import Regularizer
from .observer import Observer
from .seams import METHODS, check
from .step import StepWriter

__all__ = ["instrument"]

Correct = float | Callable[..., list[bool | None]]


def instrument(
    trainer: Any,
    path: str | Path,
    *,
    correct: Correct = 1.0,
    name: str | None = None,
    group: str | None = None,
    resume: bool = False,
    tokens_every: int = 5,
    rescore_share: float = 0.25,
    retention: int = RESPONSES,
    llds: str | None = None,
    llds_coefficient: float = 0.2,
    on_alarm: str | None = None,
    alarms: Sequence[str] = DEFAULT_RULES,
    look_every: float = 5.0,
    log: bool = True,
) -> Recorder:
    """Record what `trainer` does from now on in the run directory `path`; returns the recorder.

    trainer: a `trl.GRPOTrainer`, or a subclass that keeps the methods which are replaced. With
    several processes, every process calls this.
    correct: a response is correct if its total reward (Σ weight · reward) is at least this number;
    or a function like a reward function, called with `prompts`, `completions`, `completion_ids`,
    `rewards` (the totals) and the columns of the data set, that returns a bool (or None: unknown)
    for each.
    resume: continue the run in `path` as a new attempt; needed with `resume_from_checkpoint`.
    tokens_every: steps between samples of texts and tokens; 0 is never.
    rescore_share: share of the rollouts of all ranks in which Δ is measured, taken from groups with
    correct and incorrect responses (`lldscope.recording.rescore`); 1 takes every rollout, 0 none.
    retention: correct responses of a step, on each rank, that are kept and scored again after each
    of the next 16 (docs/research/retention.md); 0 is none, and so are inputs with images.
    llds, llds_coefficient: add λ·L_LLDS (arXiv 2512.04220 v2, Eq. 6) with the gate "action",
    "response" or "token" to TRL's loss. Old log-probabilities are TRL's own, with its temperature.
    on_alarm: "save" a checkpoint when one of the rules `alarms` fires, or save and "stop";
    look_every: seconds between reads of the run, in a thread.
    log: add Δ and its kin, phase and verdict to the trainer's own log, as `lldscope/…`, and pass on
    alarms to its trackers (`common.step_log`).

    Δ is measured after the last optimizer step that used a rollout batch, by one forward pass over
    the sampled rollouts in evaluation mode. With dropout, π_old is measured that way, too: one more
    pass over all rollouts. The recorder is closed when `trainer.train()` ends, however it ends.

    Raises LldscopeError where the trainer lacks a method or attribute that recording needs, or has
    it with a signature that cannot be followed, or `llds` would have no effect; RunExists for a run
    in `path` without `resume`; ValueError for a wrong argument. After that, recording never ends
    the training, and what it misses is said in the log and by `lldscope check`; `llds` is part of
    the loss.
    """
    if not 0 <= rescore_share <= 1:
        raise ValueError(f"rescore_share must be from 0 to 1, got {rescore_share}")
    check(trainer, llds is not None)
    regularizer = Regularizer(trainer, llds, llds_coefficient) if llds is not None else None
    action = AlarmAction(on_alarm, alarms, look_every, trainer.accelerator.num_processes)
    scorer = trainer._get_per_token_logps_and_entropies
    is_correct, rule = _correct_rule(correct)
    recorder = _open_recorder(
        trainer, path, name=name, group=group, resume=resume, correct_rule=rule,
        config=_config(trainer, llds, llds_coefficient),
    )
    fail_open = FailOpen(recorder, "trl")
    writer = StepWriter(
        trainer, recorder, fail_open, scorer, Retention(retention), rescore_share, tokens_every
    )
    if log and recorder.path != recorder.place and trainer.accelerator.num_processes > 1:
        fail_open.missing("the trainer's own log", "other ranks' rows go to the object store")
        log = False
    observer = Observer(
        trainer, recorder, fail_open, scorer, writer, is_correct, action, regularizer,
        StepLog.of(recorder, fail_open, log),
    )
    replaced: tuple[Callable[..., Any], ...] = (
        observer.rollout, observer.rewards, observer.loss, observer.scoring,
        observer.training_step, observer.log,
        functools.partial(record_training, recorder, action),
    )
    for name, method in zip(METHODS, replaced, strict=True):
        replace(trainer, name, method)
    replace(trainer.accelerator, "clip_grad_norm_", observer.clipping)
    trainer.add_callback(observer)
    trainer.lldscope_recorder = recorder
    return recorder


def _correct_rule(correct: Correct) -> tuple[Callable[..., list[bool | None]], str]:
    """The function that says which responses are correct, and its description for the run."""
    if callable(correct):
        return correct, f"the function {getattr(correct, '__name__', type(correct).__name__)}"
    least = float(correct)
    return lambda rewards, **_: reaches(rewards, least), f"total reward at least {least:g}"


def _open_recorder(trainer: Any, path: str | Path, **about: Any) -> Recorder:
    """Rank 0 starts the attempt and broadcasts its number, or its error, to the others."""
    import trl

    rank, size = trainer.accelerator.process_index, trainer.accelerator.num_processes
    settings = about | {"trainer": f"trl {trl.__version__}", "rank": rank, "world_size": size}
    if size == 1:
        return Recorder(path, **settings)
    from accelerate.utils import broadcast_object_list

    recorder, error = None, None
    if rank == 0:
        try:
            recorder = Recorder(path, **settings)
        except LldscopeError as raised:
            error = raised
    attempt, message = broadcast_object_list([recorder and recorder.attempt, error and str(error)])
    if error is not None:
        raise error
    if message is not None:
        raise LldscopeError(message)
    return recorder or Recorder(path, **settings, attempt=attempt)


def _config(trainer: Any, llds: str | None, coefficient: float) -> dict[str, Any]:
    """TRL's arguments (whose JSON leaves out access tokens), the model, and LLDS."""
    return {
        **json.loads(trainer.args.to_json_string()),
        "model": getattr(trainer.model.config, "_name_or_path", None),
        "model_type": trainer.model.config.model_type,
        "reward_functions": list(getattr(trainer, "reward_func_names", [])),
        "llds": llds or "off",
        "llds_coefficient": coefficient if llds else None,
    }
