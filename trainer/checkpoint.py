"""Checkpoints: what a run needs to go on as if nothing had happened.

One directory per checkpoint under `RUN/checkpoints/`: the policy as an ordinary Hugging Face
directory, what the optimizer keeps, in as many files as there were processes, and `state.json` with
the step to go on from and the lengths of those files. Trained weights that are not in the policy's
files under their own names, such as adapters, have a file beside it. A checkpoint is written under
another name and renamed when complete, so a directory called `step-…` is a whole one.
Questions, sampling and minibatch order come from (seed, step): there is no generator to save.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError, safe_open

from lldscope.core.errors import LldscopeError, UsageError

from .guard import Cures

# Loading torch takes seconds, in which a run that cannot be resumed would not say so.
if TYPE_CHECKING:
    from torch import Tensor

    from .optim.optimizer import Optimizer
    from .optim.processes import Processes
    from .policy.model import Policy

log = logging.getLogger("lldscope")

FOLDER = "checkpoints"
POLICY = "policy"
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer"
STATE = "state.json"


@dataclass(frozen=True)
class State:
    """Where training stood. `step` is the next one to do; `cures` is what was in force, which a
    guard may have changed; `alarmed` names the alarms that were firing, and `answered` those of
    them that the guard had acted on; `probe_set` is the fixed set of probes.py."""

    step: int
    policy_version: int
    cures: Cures
    world_size: int
    alarmed: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
    probe_set: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    state: State

    def load(self, optimizer: Optimizer) -> None:
        """Put weights and optimizer back to what they were, on all ranks. Raises LldscopeError
        for files that are missing, damaged, or of another model."""
        from safetensors.torch import load_file

        files = [self.path / WEIGHTS]
        if not files[0].is_file():
            files = sorted((self.path / POLICY).glob("*.safetensors"))
        weights: dict[str, Tensor] = {}
        for file in files:
            try:
                weights |= load_file(file)
            except (OSError, SafetensorError) as error:
                raise LldscopeError(f"{file} cannot be read: {error}") from error
        optimizer.set_weights(weights)
        optimizer.load(self.path / OPTIMIZER)

    def retention(self, rank: int) -> dict[str, np.ndarray] | None:
        """What `recording.retention.Retention` kept on this rank; None where that is not at hand:
        a checkpoint of a run with fewer processes, or a damaged file. Retention then begins
        anew."""
        try:
            with np.load(_retention_file(self.path, rank), allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError, BadZipFile):
            return None


class Checkpoints:
    """The checkpoints of one run. `margin`: steps that an alarm takes to fire, see `healthy`."""

    def __init__(self, run: Path, keep: int, margin: int = 0) -> None:
        self._folder = run / FOLDER
        self._keep = keep
        self._margin = margin

    def all(self) -> list[Checkpoint]:
        """Every complete checkpoint, the oldest first. One that cannot be read, or whose files are
        not as long as they were, is left out, with a warning."""
        found = []
        for path in sorted(self._folder.glob("step-*")):
            try:
                found.append(Checkpoint(path, _read_state(path)))
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                log.warning("lldscope: the checkpoint %s is not usable: %s", path, error)
        return found

    def healthy(self, now: int) -> Checkpoint | None:
        """The newest one made at least `margin` steps before step `now`, while no alarm was firing:
        what makes an alarm fire had begun before it did."""
        latest = now - self._margin
        clean = [c for c in self.all() if not c.state.alarmed and c.state.step <= latest]
        return max(clean, key=lambda c: c.state.step, default=None)

    def forget_after(self, step: int) -> None:
        """Drop what was made after the checkpoint of `step`: a branch that was given up."""
        for path in self._folder.glob("step-*"):
            if path.name > _name(step):
                shutil.rmtree(path, ignore_errors=True)

    def write(
        self,
        state: State,
        policy: Policy,
        optimizer: Optimizer,
        processes: Processes,
        retention: Mapping[str, np.ndarray],
    ) -> None:
        """Write the checkpoint of `state`, all ranks together, then drop the oldest beyond the
        number to keep, but none that a rollback may need. Raises OSError on every rank if one rank
        could not write; nothing half-written stays."""
        draft = self._folder / f".{_name(state.step)}"
        stages = (
            lambda: _begin(draft) if processes.rank == 0 else None,
            lambda: optimizer.save(draft / OPTIMIZER),
            lambda: np.savez(
                _retention_file(draft, processes.rank), allow_pickle=False, **retention
            ),
            lambda: _write(draft, policy, optimizer, processes),
            lambda: self._complete(draft, state) if processes.rank == 0 else None,
        )
        for stage in stages:
            failure = _failure(stage)
            # Every rank must know: the others would wait for this one at the next collective.
            if processes.any(failure is not None):
                if processes.rank == 0:
                    shutil.rmtree(draft, ignore_errors=True)
                raise OSError(failure or "another rank could not write its part")

    def _complete(self, draft: Path, state: State) -> None:
        with (draft / STATE).open("w", encoding="utf-8") as file:
            json.dump(asdict(state) | {"files": _lengths(draft)}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        final = self._folder / _name(state.step)
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
        healthy = self.healthy(state.step)
        oldest = healthy.state.step if healthy else 0
        for old in self.all()[: -self._keep]:
            # A clean one within the margin is the next to be rolled back to.
            if old.state.alarmed or old.state.step < oldest:
                shutil.rmtree(old.path, ignore_errors=True)


def find_checkpoint(run: Path, step: int | None = None) -> Checkpoint:
    """The newest checkpoint of a run that can be read, or the one made before `step`. Raises
    UsageError where there is none."""
    found = {c.state.step: c for c in Checkpoints(run, keep=1).all()}
    if not found:
        raise UsageError(
            f"{run} holds no checkpoint to go on from (checkpoint_every=N makes them); "
            "start a new run instead"
        )
    if step is None:
        step = max(found)
    if step not in found:
        raise UsageError(
            f"{run} holds no checkpoint before step {step}; there are those before "
            f"{', '.join(map(str, sorted(found)))}"
        )
    return found[step]


def _name(step: int) -> str:
    """Of a checkpoint's directory; in the order of their steps."""
    return f"step-{step:08d}"


def _retention_file(folder: Path, rank: int) -> Path:
    return folder / f"retention-{rank}.npz"


def _begin(draft: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    (draft / OPTIMIZER).mkdir(parents=True)


def _write(draft: Path, policy: Policy, optimizer: Optimizer, processes: Processes) -> None:
    from safetensors.torch import save_file

    with optimizer.full_weights():
        if processes.rank == 0:
            trained = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
            policy.save(draft / POLICY)
            if not trained.keys() <= _names(draft / POLICY):
                trained = {n: p.detach().cpu().contiguous() for n, p in trained.items()}
                save_file(trained, draft / WEIGHTS)


def _names(directory: Path) -> set[str]:
    """Of the tensors in a model's files."""
    found: set[str] = set()
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="np") as file:
            found |= set(file.keys())
    return found


def _lengths(draft: Path) -> dict[str, int]:
    """Bytes of each file of tensors."""
    files = sorted(draft.rglob("*.safetensors"))
    return {path.relative_to(draft).as_posix(): path.stat().st_size for path in files}


def _failure(write: Callable[[], object]) -> str | None:
    """What went wrong, in words; None if nothing did. A full disk must cost the checkpoint, not
    the run; safetensors reports one as an error of its own."""
    try:
        write()
    except (OSError, SafetensorError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _read_state(path: Path) -> State:
    """Of the checkpoint at `path`. Raises OSError, ValueError or KeyError if it is not whole."""
    read = json.loads((path / STATE).read_text("utf-8"))
    if not isinstance(read, dict):
        raise ValueError("its state is no mapping")
    lengths = _lengths(path)
    for name, length in read.pop("files").items():
        if lengths.get(name) != length:
            raise ValueError(f"{name} is missing or not as long as it was")
    rules = {name: tuple(read.get(name, ())) for name in ("alarmed", "answered")}
    return State(**read | rules | {"cures": Cures(**read.get("cures", {}))})
