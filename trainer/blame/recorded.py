"""A recorded run of this trainer: its settings, and checkpoints from which its steps can be
repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lldscope import __version__
from lldscope.core.errors import LldscopeError, UsageError

from ..checkpoint import Checkpoint, find_checkpoint
from ..config import TrainConfig, recorded_config
from ..preflight import check


def recorded_settings(run: Any) -> TrainConfig:
    """The settings of a run made by this version of the trainer in one process. Raises UsageError
    for any other run."""
    name, trainer = run.info.get("name"), str(run.info.get("trainer") or "")
    if not trainer.startswith("lldscope_trainer"):
        raise UsageError(
            f"{name} was recorded by {trainer or 'another trainer'}, and only steps of "
            "`lldscope train` can be repeated."
        )
    if trainer != (this := f"lldscope_trainer {__version__}"):
        version = trainer.partition(" ")[2]
        raise UsageError(f"{name} was recorded with {trainer}, and {this} may repeat its steps "
                         f'differently. pip install "lldscope[train]=={version}"')
    try:
        config = recorded_config(run.info["config"])
    except (TypeError, LookupError, LldscopeError) as error:
        raise UsageError(f"The settings of {name} cannot be read: {error}") from error
    if int(run.info.get("world_size") or 1) > 1 or config.optimizer != "torch":
        raise UsageError(f"{name} was trained by several processes, or with DeepSpeed. Only steps "
                         "of one process with optimizer=torch can be repeated.")
    check(config)
    return config


def last_checkpoint(path: Path, step: int) -> Checkpoint:
    """The newest intact checkpoint at or before a step. Raises UsageError if there is none, or if
    another version of torch made it."""
    import torch

    checkpoint = find_checkpoint(path, step)
    version = checkpoint.state.torch
    if version and version != torch.__version__:
        raise UsageError(
            f"The checkpoint before step {checkpoint.state.step} was made with torch {version}, "
            f"and torch {torch.__version__} may repeat its steps differently. Install that version."
        )
    return checkpoint


def refuse_changes(run: Any, start: int, step: int) -> None:
    """Raises UsageError if a guard acted between the checkpoint before `start` and `step`: a replay
    does not repeat that."""
    for event in run.events():
        if event["kind"] in ("rollback", "llds", "importance_sampling", "lr_change"):
            first = event["step"] + (event["kind"] != "lr_change")  # the first step with the change
            if start < first <= step:
                raise UsageError(
                    f"The guard changed the run ({event['kind']}) between its checkpoint before "
                    f"step {start} and step {step}; a replay does not repeat that."
                )
