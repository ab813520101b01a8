"""Runs on S3-compatible storage or any other file system of fsspec.

A `RemoteCopy` copies the requested files into a temporary folder, where the run is read: small
files at each sync, sealed parts once, because they never change. Nothing is ever written into a
remote run.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.errors import RunNotFound
from ..storage import json_files, layout
from ..storage.heartbeats import HEARTBEAT_DIR
from ..storage.manifest import MANIFEST_DIR
from ..storage.objects import ObjectStore
from ..storage.part import Part
from ..storage.url import Url, plain_errors

_CONNECTIONS = 16
_LEVELS = 2  # below a root, on which runs are looked for


def find_remote(root: Url) -> dict[Url, str]:
    """Run → fingerprint, for the runs at most two levels below a remote root, by name, or for the
    root itself if it is a run. The fingerprint holds names, sizes and times of all files but the
    parts.

    One listing of every object gives all of this. A store lists a thousand objects in an answer, so
    for many runs one listing is quicker than one per run. As in a folder, a run that lost its
    run.json is known by its manifest.
    """
    with plain_errors(root):
        root.filesystem.invalidate_cache()
        files = root.filesystem.find(root.path, detail=True)
        if not files and not root.filesystem.exists(root.path):
            raise RunNotFound(f"There is nothing at {root}.")
    runs: dict[str, dict[str, str]] = defaultdict(dict)
    for path, info in files.items():
        run, name = _place_in_run(path.removeprefix(root.path).lstrip("/"))
        if name and run.count("/") < _LEVELS:
            runs[run][name] = _state(info)
    runs = {run: states for run, states in runs.items() if any(map(_marks_run, states))}
    if "" in runs:
        runs = {"": runs[""]}
    return {root.at(f"{root.path}/{run}"): _digest(states) for run, states in sorted(runs.items())}


def _place_in_run(path: str) -> tuple[str, str]:
    """For a small file of a run, the run's folder and the file's name in it; otherwise empty
    texts."""
    folder, _, file = path.rpartition("/")
    run, _, last = folder.rpartition("/")
    if layout.is_small_file(f"{last}/{file}"):
        return run, f"{last}/{file}"
    return folder, file if layout.is_small_file(file) else ""


def _marks_run(name: str) -> bool:
    """Whether only a run holds a file of this name."""
    return name == layout.RUN_FILE or name.startswith(f"{MANIFEST_DIR}/")


def _digest(states: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {state}" for name, state in sorted(states.items()))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


class RemoteCopy:
    """A local copy of the requested parts of a remote run."""

    def __init__(self, url: Url) -> None:
        self.url, self._store = url, ObjectStore(url)
        self._folder = tempfile.TemporaryDirectory(prefix="lldscope-")
        self.path = Path(self._folder.name) / "run"
        self._states: dict[str, str] = {}  # small file → its state when it was copied
        self._attempted: set[str] = set()  # places of parts

    def close(self) -> None:
        self._folder.cleanup()

    def sync(self) -> None:
        """Copy the small files that have changed. Raises RunNotFound or LldscopeError."""
        listed: dict[str, str] = {}
        # A heartbeat tells the least length of a manifest, and a manifest that of the events: what
        # tells a length is copied first.
        for folder in (HEARTBEAT_DIR, MANIFEST_DIR, *layout.STREAM_DIRS, ""):
            names = {
                f"{folder}/{file}".lstrip("/"): _state(info)
                for file, info in self._store.listing(folder).items()
                if (info.get("size") or 0) <= json_files.MAX_BYTES
            }
            names = {name: state for name, state in names.items() if layout.is_small_file(name)}
            new = [name for name, state in names.items() if self._states.get(name) != state]
            for name, content in self._store.read(new).items():
                self._write(name, content)
                self._states[name] = names[name]
            listed |= names
        self._states = {n: state for n, state in self._states.items() if n in listed}
        if not any(map(_marks_run, listed)):
            why = f"It holds no {layout.RUN_FILE}: it is not a run that lldscope recorded."
            raise RunNotFound(f"There is no run at {self.url}. {why}")
        for folder in ("", MANIFEST_DIR, HEARTBEAT_DIR, *layout.STREAM_DIRS):
            for file in (self.path / folder).glob("*"):
                if file.is_file() and file.relative_to(self.path).as_posix() not in listed:
                    file.unlink()
        self._join_streams()

    def _join_streams(self) -> None:
        """Events and alerts of several recorders as one file, in the order of their times."""
        for folder, name in layout.STREAM_DIRS.items():
            files = sorted((self.path / folder).glob("*"))
            if files:
                lines = [x for file in (self.path / name, *files) for x in _lines(file)]
                lines.sort(key=_time)
                self._write(name, b"".join(lines))
                self._states.pop(name, None)

    def _write(self, name: str, content: bytes) -> None:
        """Replace a small file. An equal one stays, because a new manifest is read from its start.
        """
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != content:
            arriving = target.with_name(target.name + json_files.IN_PROGRESS)
            arriving.write_bytes(content)
            os.replace(arriving, target)

    def fetch(self, parts: Iterable[Part]) -> None:
        """Download sealed parts that are not local yet; one that does not exist stays missing."""
        new = [p for p in parts if not p.path(self.path).exists()]
        with plain_errors(self.url), ThreadPoolExecutor(_CONNECTIONS) as connections:
            for _ in connections.map(self._download, new):
                pass
        self._attempted |= {p.place for p in new}

    def _download(self, part: Part) -> None:
        target = part.path(self.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        arriving = target.with_name(target.name + json_files.IN_PROGRESS)
        with suppress(FileNotFoundError):
            self.url.filesystem.get_file(f"{self.url.path}/{part.place}", str(arriving))
            os.replace(arriving, target)

    def attempted(self, part: Part) -> bool:
        return part.place in self._attempted


def _lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []


def _time(line: bytes) -> float:
    try:
        time = json_files.parse(line)["time"]
        return float(time) if json_files.is_time(time) else 0.0
    except (ValueError, KeyError, TypeError):
        return 0.0


def _state(info: dict[str, Any]) -> str:
    """A text that changes with the file."""
    keys = (
        "size", "ETag", "etag", "LastModified", "last_modified", "mtime", "created", "updated",
        "md5", "blob_id", "xet_hash",  # the last two: Hugging Face
    )
    return repr([info.get(key) for key in keys])
