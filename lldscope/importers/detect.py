"""The importable formats, and the format of each path.

A source recognizes and reads files of one format. It keeps the file's own metric names; `mapping`
maps them to signals, and `build` writes them. A source never raises for bad content: it counts
skipped content in its `Findings` and reads on as far as possible.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ..core.errors import LldscopeError, UsageError
from .console import Console
from .metrics import Metrics
from .reading import natural_key
from .rollouts import RolloutRows
from .rows import Candidate
from .source import Findings, Rows, Scalars
from .sqlite import MLFLOW, TRACKIO
from .tensorboard import TensorBoard
from .wandb_offline import WandbOffline

_PICKLES = (".pt", ".pth", ".pkl", ".pickle")
MAX_FILES = 100_000  # and folders, in a folder
MAX_DEPTH = 32  # of folders in each other


class Source(Protocol):
    """One format: its name for `--format`, and a description."""

    name: str
    description: str

    def looks_like(self, file: Candidate, /) -> bool:
        """Whether the file has this format. Cheap, and strict enough that no two sources claim one
        file; the last ones see only files that no other source claims."""
        ...

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars | Rows]:
        """The content of the paths of one run, in the order of writing."""
        ...


def sources() -> list[Source]:
    """All formats; the first one that claims a file reads it. Formats of means come before
    rollouts, because rollouts are assigned to the attempts that means reveal."""
    return [
        TensorBoard(), WandbOffline(), MLFLOW, TRACKIO, Metrics(), Console(),
        RolloutRows(),
    ]


def by_format(
    paths: Sequence[Path], format_id: str | None, findings: Findings
) -> dict[Source, list[Path]]:
    """The paths by format, in the order of `sources`. Folders are searched; files of no known
    format are counted. Raises UsageError for an unknown format, LldscopeError for a missing
    path."""
    candidates = sources()
    if format_id is not None:
        candidates = [s for s in candidates if s.name == format_id]
        if not candidates:
            names = ", ".join(s.name for s in sources())
            raise UsageError(f"There is no format {format_id}. There are: {names}.")
    claimed: dict[Source, dict[Path, None]] = {s: {} for s in candidates}  # each path once
    for path in paths:
        if not os.path.exists(path):  # False for a name that no file can have, too
            raise LldscopeError(f"{path} does not exist.")
        if not os.access(path, os.R_OK):
            raise LldscopeError(f"{path} cannot be read: permission denied.")
        for file in files_under(path, findings):
            if not file.is_file():
                findings.skip("pipes, devices and sockets, which are not read")
            elif not os.access(file, os.R_OK):
                findings.skip("files without permission to read them")
            elif source := candidates[0] if format_id else _source_of(file, candidates, findings):
                claimed[source][file] = None
    return {source: list(files) for source, files in claimed.items() if files}


def files_under(path: Path, findings: Findings) -> list[Path]:
    """The file, or the files below a folder, step 2 before step 10; links are not followed. Raises
    LldscopeError for more than MAX_FILES."""
    if not path.is_dir():
        return [path]
    files: list[Path] = []

    def count(error: OSError) -> None:
        findings.skip("folders without permission to read them")

    for n, (here, folders, names) in enumerate(os.walk(path, onerror=count)):
        if len(Path(here).relative_to(path).parts) == MAX_DEPTH and folders:
            findings.skip(f"folders deeper than {MAX_DEPTH}", len(folders))
            folders.clear()
        if n + len(files) + len(names) + len(folders) > MAX_FILES:
            raise LldscopeError(
                f"{path} holds more than {MAX_FILES:,} files. Name the files of the run, or the "
                "folder that holds nothing else."
            )
        files += [file for name in names if not (file := Path(here, name)).is_symlink()]
    return sorted(files, key=natural_key)


def _source_of(path: Path, candidates: list[Source], findings: Findings) -> Source | None:
    file = Candidate(path, findings.request.columns)
    if path.suffix in _PICKLES:
        findings.skip("pickles, which are not loaded")
        findings.note(
            f"{path} is a pickle: loading it would run code in it. Import the trainer's console "
            "output, W&B or TensorBoard, or write its rollouts as JSON lines from the trainer's "
            "own environment: docs/importing.md has the fields."
        )
        return None
    source = next((source for source in candidates if source.looks_like(file)), None)
    if source is None:
        findings.skip("files of no known format")
    return source
