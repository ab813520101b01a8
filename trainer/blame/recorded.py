"""A recorded run of this trainer: its settings and checkpoints, where its steps can be repeated."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lldscope import __version__
from lldscope.core.errors import LldscopeError, UsageError

from ..checkpoint import Checkpoint, Checkpoints, find_checkpoint
from ..config import TrainConfig, recorded_config
from ..guard import Cures
from ..preflight import check

log = logging.getLogger("lldscope")


def recorded_settings(run: Any) -> TrainConfig:
    """The settings of a run that this version of the trainer made, in one process; UsageError for
    another."""
    name, trainer = run.info.get("name"), str(run.info.get("trainer") or "")
    if not trainer.startswith("lldscope_trainer"):
        raise UsageError(
            f"{name} was not recorded by `lldscope train` but by {trainer or 'another'}: its steps "
            "cannot be run again here"
        )
    if trainer != (this := f"lldscope_trainer {__version__}"):
        raise UsageError(f"{name} was recorded with {trainer}, and this is {this}: its steps would "
                         f'not come out as they were. pip install "{_pin(trainer)}"')
    try:
        config = recorded_config(run.info["config"])
    except (TypeError, LookupError, LldscopeError) as error:
        raise UsageError(f"The settings of {name} cannot be read: {error}") from error
    if int(run.info.get("world_size") or 1) > 1 or config.optimizer != "torch":
        raise UsageError(f"{name} was trained by several processes, or with DeepSpeed: its steps "
                         "can be run again in one process with optimizer=torch only")
    check(config)
    return config


def _pin(version: str) -> str:
    return "lldscope[train]==" + version.partition(" ")[2]


def last_checkpoint(path: Path, step: int) -> Checkpoint:
    """The newest intact checkpoint at or before a step, made with this version of torch; UsageError
    where there is none."""
    import torch

    steps = [c.state.step for c in Checkpoints(path, keep=1).all() if c.state.step <= step]
    for start in sorted(steps, reverse=True):
        try:
            checkpoint = find_checkpoint(path, start)
        except UsageError as error:
            log.warning("lldscope: %s", error)
            continue
        version = checkpoint.state.torch
        if version and version != torch.__version__:
            raise UsageError(
                f"The checkpoint before step {start} was made with torch {version}, and this is "
                f"torch {torch.__version__}: its steps would not come out as they were"
            )
        return checkpoint
    raise UsageError(
        f"{path} holds no intact checkpoint at or before step {step} "
        "(checkpoint_every=N makes them, checkpoints_kept=N keeps more)"
    )


def changes_by_guard(run: Any, config: TrainConfig, start: int) -> Callable[[int, Cures], Cures]:
    """What a guard changed after step `start`: a function of a step and the cures before it."""
    events = [e for e in run.events() if isinstance(e.get("step"), int)]

    def cures(step: int, before: Cures) -> Cures:
        for event in events:
            kind, at = event["kind"], event["step"]
            if kind == "lr_change" and at == step > start:
                before = replace(before, lr_share=event["lr"] / config.lr)
            elif kind == "llds" and at + 1 == step > start:
                before = replace(before, llds=event["gate"], llds_coefficient=event["coefficient"])
            elif kind == "importance_sampling" and at + 1 == step > start:
                before = replace(before, importance_sampling=event["mode"])
        return before

    return cures
