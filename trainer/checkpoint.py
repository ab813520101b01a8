"""Checkpoints: everything that a run needs to continue.

One directory per checkpoint under `RUN/checkpoints/`: the policy as an ordinary Hugging Face
directory, the optimizer's state in one file per process, and `state.json`, which is written last.
`state.json` holds the next step, and checksums of itself and of every other file; a file whose
checksum is wrong is not loaded. Weights that a model's format renames have an additional file with
their own names. A checkpoint is renamed when it is complete, so a directory called `step-…` is
complete. Questions, sampling and minibatch order come from (seed, step): there is no generator to
save.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from lldscope.core.errors import UsageError
from lldscope.storage import json_files

from .guard import Cures

# Loading torch takes seconds, in which a run that cannot be resumed would not say so.
if TYPE_CHECKING:
    from torch import Tensor

    from .optim.optimizer import TorchOptimizer
    from .optim.processes import Processes
    from .policy.model import Policy

log = logging.getLogger("lldscope")

FOLDER = "checkpoints"
POLICY = "policy"
OPTIMIZER = "optimizer"
WEIGHTS = "weights.safetensors"
STATE = "state.json"


@dataclass(frozen=True)
class State:
    """The state of training. `step` is the next step; `cures` are in force (a guard may have
    changed them); `alarmed` are the alarms that were firing, `answered` those that the guard has
    acted on; `probe_set` is the fixed set of probes.py; `torch` is the version of torch."""

    step: int
    policy_version: int
    cures: Cures
    world_size: int
    alarmed: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
    probe_set: tuple[Any, ...] = ()
    torch: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk. `files`: name → (bytes, CRC-32) of all files but its state."""

    path: Path
    state: State
    files: Mapping[str, tuple[int, int]]

    def damage(self) -> str | None:
        """A file whose content has changed; None if all are intact. Reads every file."""
        for name, expected in self.files.items():
            try:
                if _fingerprint(self.path / name) != expected:
                    return f"{name} is not what was written"
            except OSError as error:
                return f"{name} cannot be read ({error.strerror})"
        return None

    def load(self, optimizer: TorchOptimizer) -> None:
        """Restore weights and optimizer on all ranks; the files must be intact. Raises
        LldscopeError if they belong to another model."""
        from safetensors.torch import load_file

        weights: dict[str, Tensor] = {}
        policy = [n for n in self.files if n.startswith(POLICY) and n.endswith(".safetensors")]
        for file in [WEIGHTS] if WEIGHTS in self.files else policy:
            weights |= load_file(self.path / file)
        optimizer.set_weights(weights)
        optimizer.load(self.path / OPTIMIZER)

    def retention(self, rank: int) -> dict[str, np.ndarray] | None:
        """The state of `recording.retention.Retention` of this rank; None if the checkpoint was
        written by fewer processes. Retention then begins anew."""
        file = _retention_file(self.path, rank)
        if not file.exists():
            return None
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)


class Checkpoints:
    """The checkpoints of one run. `margin`: the number of steps that an alarm may need to fire; see
    `healthy`."""

    def __init__(self, run: Path, keep: int, margin: int = 0) -> None:
        self._folder = run / FOLDER
        self._keep = keep
        self._margin = margin

    def all(self) -> list[Checkpoint]:
        """Every complete checkpoint, oldest first. Unreadable or truncated ones are left out, with
        a warning."""
        readable = []
        for path in sorted(self._folder.glob("step-*")):
            try:
                readable.append(_read(path))
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                _warn(path, str(error))
        return readable

    def healthy(self, now: int) -> Checkpoint | None:
        """The newest intact checkpoint made at least `margin` steps before step `now` while no
        alarm was firing: the trouble begins before its alarm fires."""
        return _newest_intact(self._clean(now))

    def _clean(self, now: int) -> list[Checkpoint]:
        latest = now - self._margin
        return [c for c in self.all() if not c.state.alarmed and c.state.step <= latest]

    def forget_after(self, step: int) -> None:
        """Delete checkpoints after the one of `step`: they belong to an abandoned branch."""
        for path in self._folder.glob("step-*"):
            if path.name > _name(step):
                shutil.rmtree(path, ignore_errors=True)

    def write(
        self,
        state: State,
        policy: Policy,
        optimizer: TorchOptimizer,
        processes: Processes,
        retention: Mapping[str, np.ndarray],
    ) -> None:
        """Write the checkpoint of `state`, all ranks together, then delete the oldest ones beyond
        the number to keep, except those that a rollback may need. Raises OSError on every rank if
        one rank could not write; no partial files remain."""
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
            if processes.most(failure is not None):
                if processes.rank == 0:
                    shutil.rmtree(draft, ignore_errors=True)
                raise OSError(failure or "another rank could not write its part")

    def _complete(self, draft: Path, state: State) -> None:
        files = {
            path.relative_to(draft).as_posix(): _fingerprint(path)
            for path in sorted(draft.rglob("*")) if path.is_file()
        }
        with (draft / STATE).open("wb") as file:
            file.write(
                json_files.with_checksum(json_files.to_json(asdict(state) | {"files": files}))
            )
            file.flush()
            os.fsync(file.fileno())
        final = self._folder / _name(state.step)
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
        oldest = max((c.state.step for c in self._clean(state.step)), default=0)
        for old in self.all()[: -self._keep]:
            # A clean one within the margin is the next to be rolled back to.
            if old.state.alarmed or old.state.step < oldest:
                shutil.rmtree(old.path, ignore_errors=True)


def with_settings(checkpoint: Checkpoint, settings: Any, names: Collection[str]) -> Checkpoint:
    """The checkpoint with changed settings `names`: they take precedence over a guard's changes."""
    state = checkpoint.state
    changes = {f.name: getattr(settings, f.name) for f in fields(state.cures) if f.name in names}
    changes |= {"lr_share": 1.0} if "lr" in names else {}
    return replace(checkpoint, state=replace(state, cures=replace(state.cures, **changes)))


def find_checkpoint(run: Path, step: int | None = None) -> Checkpoint:
    """The newest intact checkpoint of a run, at or before `step` if given. Raises UsageError if
    there is none."""
    candidates = Checkpoints(run, keep=1).all()
    checkpoint = _newest_intact(c for c in candidates if step is None or c.state.step <= step)
    if checkpoint is None:
        where = "" if step is None else f" at or before step {step}"
        raise UsageError(
            f"{run} holds no intact checkpoint{where} "
            "(checkpoint_every=N makes them, checkpoints_kept=N keeps more)"
        )
    return checkpoint


def _newest_intact(candidates: Iterable[Checkpoint]) -> Checkpoint | None:
    """The newest checkpoint with intact files; a warning for each damaged one."""
    for candidate in sorted(candidates, key=lambda c: -c.state.step):
        if (why := candidate.damage()) is None:
            return candidate
        _warn(candidate.path, why)
    return None


def _warn(path: Path, why: str) -> None:
    log.warning("lldscope: the checkpoint %s is not usable: %s", path, why)


def _name(step: int) -> str:
    """Directory name of a checkpoint; names sort in the order of steps."""
    return f"step-{step:08d}"


def _retention_file(folder: Path, rank: int) -> Path:
    return folder / f"retention-{rank}.npz"


def _begin(draft: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    (draft / OPTIMIZER).mkdir(parents=True)


def _write(draft: Path, policy: Policy, optimizer: TorchOptimizer, processes: Processes) -> None:
    from safetensors.torch import save_file

    with optimizer.full_weights():
        if processes.rank == 0:
            policy.save(draft / POLICY)
            weights = dict(policy.model.named_parameters())
            if not weights.keys() <= _names(draft / POLICY):
                weights = {n: p.detach().cpu().contiguous() for n, p in weights.items()}
                save_file(weights, draft / WEIGHTS)


def _names(directory: Path) -> set[str]:
    names: set[str] = set()
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="np") as file:
            names |= set(file.keys())
    return names


def _fingerprint(path: Path) -> tuple[int, int]:
    """Length and CRC-32 of a file."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_size, json_files.checksum(file)


def _failure(write: Callable[[], object]) -> str | None:
    """The reason of a failure in words; None without one. A full disk must cost the checkpoint, not
    the run; safetensors reports it as an error of its own."""
    try:
        write()
    except (OSError, SafetensorError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _read(path: Path) -> Checkpoint:
    """The checkpoint at `path`. Raises OSError, ValueError or LookupError if it is incomplete."""
    read, checked = json_files.parse_line((path / STATE).read_bytes().rstrip(b"\n"))
    if not checked:
        raise ValueError(f"its {STATE} has no checksum")
    files = {name: (length, crc) for name, (length, crc) in read.pop("files").items()}
    for name, (length, _) in files.items():
        if (path / name).stat().st_size != length:
            raise ValueError(f"{name} is not as long as it was")
    rules = {name: tuple(read[name]) for name in ("alarmed", "answered", "probe_set")}
    return Checkpoint(path, State(**read | rules | {"cures": Cures(**read["cures"])}), files)
