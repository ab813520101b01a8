"""Which format each path has: detected from its content, or forced."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import LldscopeError, UsageError
from .formats import Candidate, Source, sources
from .reading import head, natural_key
from .source import HEAD_BYTES, Findings

_PICKLES = (".pt", ".pth", ".pkl", ".pickle")
MAX_FILES = 100_000  # and folders, in a folder
MAX_DEPTH = 32  # of folders in each other


@dataclass(frozen=True)
class Group:
    """The paths of one format, which are read together."""

    source: Source
    paths: list[Path]

    @property
    def size(self) -> int:
        return sum(p.stat().st_size for path in self.paths for p in files_of(path))


def groups(paths: Sequence[Path], format_id: str | None, findings: Findings) -> list[Group]:
    """The paths by format, in the order of `sources`. Folders are searched; files that no format
    claims are counted.

    Raises UsageError for a format that is not there, LldscopeError for a path that is not.
    """
    candidates = sources()
    if format_id is not None:
        candidates = [s for s in candidates if s.name == format_id]
        if not candidates:
            names = ", ".join(s.name for s in sources())
            raise UsageError(f"There is no format {format_id}. There are: {names}.")
    claimed: dict[str, dict[Path, None]] = {}  # format → its paths, each once
    for path in paths:
        if not _exists(path):
            raise LldscopeError(f"{path} does not exist.")
        if not os.access(path, os.R_OK):
            raise LldscopeError(f"{path} cannot be read: permission denied.")
        for file in _files(path, findings):
            if not file.is_file():
                findings.skip("pipes, devices and sockets, which are not read")
            elif not os.access(file, os.R_OK):
                findings.skip("files without permission to read them")
            elif format_id is not None:
                claimed.setdefault(format_id, {})[file] = None
            elif source := _source_of(file, candidates, findings):
                claimed.setdefault(source.name, {})[file] = None
    return [Group(s, list(claimed[s.name])) for s in candidates if s.name in claimed]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _files(path: Path, findings: Findings) -> Iterator[Path]:
    """The file, or those in a folder and in the folders within it, step 2 before step 10."""
    if path.is_dir():
        files_under(path)  # refuses what is too large to be searched
    waiting = [(path, 0)]
    while waiting:
        at, depth = waiting.pop()
        if not at.is_dir():
            yield at
        elif depth == MAX_DEPTH:
            findings.skip(f"folders deeper than {MAX_DEPTH}")
        else:
            inside = (p for p in at.iterdir() if not p.is_symlink())
            waiting += [(p, depth + 1) for p in sorted(inside, key=natural_key, reverse=True)]


def _source_of(path: Path, candidates: list[Source], findings: Findings) -> Source | None:
    file = Candidate(path, head(path, HEAD_BYTES), findings.request.columns)
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


def files_of(path: Path) -> list[Path]:
    """The regular files behind a path; what was last written to a database is in its WAL."""
    if path.is_dir():
        return files_under(path)
    wal = path.with_name(path.name + "-wal")
    return [path, wal] if wal.is_file() else [path]


def files_under(folder: Path) -> list[Path]:
    """The regular files in a folder and in those within it, sorted; links are not followed.

    Raises LldscopeError if there are more than MAX_FILES.
    """
    files: list[Path] = []
    for n, (here, folders, names) in enumerate(os.walk(folder)):
        if len(Path(here).relative_to(folder).parts) >= MAX_DEPTH:
            folders.clear()
        if n + len(files) + len(names) + len(folders) > MAX_FILES:
            raise LldscopeError(
                f"{folder} holds more than {MAX_FILES:,} files. Name the files of the run, or the "
                "folder that holds nothing else."
            )
        paths = (Path(here, name) for name in names)
        files += [path for path in paths if path.is_file() and not path.is_symlink()]
    return sorted(files)


def fingerprint(path: Path) -> list[list[Any]]:
    """Changes whenever the files behind a path are written to."""
    stats = [(file, file.stat()) for file in files_of(path) if file.exists()]
    return [[str(file), stat.st_size, stat.st_mtime_ns] for file, stat in stats]
