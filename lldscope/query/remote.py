"""Runs on S3-compatible storage or any other file system of fsspec.

A `RemoteCopy` copies what is asked for into a temporary folder, and the run is read there: small
files again at each sync, sealed parts once, because they never change. Small files of a recorder
are in the entries of its log (`storage.logs`). Nothing is ever written into a remote run.
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
from ..storage import json_files, layout, logs
from ..storage.heartbeats import HEARTBEAT_DIR
from ..storage.manifest import MANIFEST_DIR
from ..storage.objects import ObjectStore
from ..storage.part import Part
from ..storage.url import Url, plain_errors

_CONNECTIONS = 16
_LEVELS = 2  # below a root, on which runs are looked for
_LISTINGS = 5  # of a log, where some entries are merged while they are fetched


def find_remote(root: Url) -> dict[Url, str]:
    """Runs under a remote root, by name, at most two levels down; the root itself if it is one. For
    each what changes when the run does: names, sizes and times of all but its parts.

    All of it is from one listing of every object, of which a store gives a thousand in an answer:
    for many runs that is quicker than to ask for the objects of each. As in a folder, what has a
    manifest is a run, too, if its run.json is lost.
    """
    with plain_errors(root):
        files = root.filesystem.find(root.path, detail=True)
        if not files and not root.filesystem.exists(root.path):
            raise RunNotFound(f"There is nothing at {root}.")
    runs: dict[str, dict[str, str]] = defaultdict(dict)
    for path, info in files.items():
        run, name = _place_in_run(path.removeprefix(root.path).lstrip("/"))
        if name and run.count("/") < _LEVELS:
            runs[run][name] = _state(info)
    runs = {run: states for run, states in runs.items() if any(map(_tells_of_run, states))}
    if "" in runs:
        runs = {"": runs[""]}
    return {root.at(f"{root.path}/{run}"): _digest(states) for run, states in sorted(runs.items())}


def _place_in_run(path: str) -> tuple[str, str]:
    """The folder of the run that a file is a small file of, and its name there; empty if it is
    none."""
    folder, _, file = path.rpartition("/")
    run, _, last = folder.rpartition("/")
    name = f"{last}/{file}"
    if layout.is_small_file(name) or (last == logs.LOG_DIR and logs.log_name(file)):
        return run, name
    return folder, file if layout.is_small_file(file) else ""


def _tells_of_run(name: str) -> bool:
    return name == layout.RUN_FILE or name.startswith((f"{MANIFEST_DIR}/", f"{logs.LOG_DIR}/"))


def _digest(states: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {state}" for name, state in sorted(states.items()))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


class RemoteCopy:
    """A local copy of the requested parts of a remote run."""

    def __init__(self, url: Url) -> None:
        self.url, self._store = url, ObjectStore(url)
        self._folder = tempfile.TemporaryDirectory(prefix="lldscope-")
        self.path = Path(self._folder.name) / "run"
        self._states: dict[str, str] = {}  # small file → what it was when it was copied
        self._entries: dict[logs.LogName, logs.Entry] = {}
        self._attempted: set[tuple[str, str]] = set()

    def close(self) -> None:
        self._folder.cleanup()

    def sync(self) -> None:
        """Copy the small files that have changed. Raises RunNotFound or LldscopeError."""
        if not (names := self._read_log() or self._copy_small_files()):
            why = f"It holds no {layout.RUN_FILE}: it is not a run that lldscope recorded."
            raise RunNotFound(f"There is no run at {self.url}. {why}")
        for folder in ("", MANIFEST_DIR, HEARTBEAT_DIR):
            for file in (self.path / folder).glob("*"):
                if file.is_file() and file.relative_to(self.path).as_posix() not in names:
                    file.unlink()

    def _read_log(self) -> set[str]:
        """Write the small files in the log of a recorder; returns their names. Entries that are
        merged meanwhile are gone: then the log is listed again."""
        for _ in range(_LISTINGS):
            listed = map(logs.log_name, self._store.listing(logs.LOG_DIR))
            names = logs.covering(filter(None, listed))
            new = {n.path: n for n in names if n not in self._entries}
            content = self._store.read(new)
            self._entries |= {new[path]: _parse(text) for path, text in content.items()}
            self._entries = {n: self._entries[n] for n in names if n in self._entries}
            if len(self._entries) == len(names):
                break
        files = logs.small_files(self._entries) if names else {}
        for file, text in files.items() if new else ():
            self._write(file, text)
        return {*files}

    def _copy_small_files(self) -> set[str]:
        """Copy the small files of a run that lies there as a directory; returns the names of those
        there are; none if it is no run."""
        listed = {}
        # Heartbeats say how long the manifests are at least, and these how long the events are:
        # fetch the index before the files it lists.
        for folder in (HEARTBEAT_DIR, MANIFEST_DIR, ""):
            for file, info in self._store.listing(folder).items():
                name = f"{folder}/{file}".lstrip("/")
                if layout.is_small_file(name) and (info.get("size") or 0) <= json_files.MAX_BYTES:
                    listed[name] = _state(info)
        if layout.RUN_FILE not in listed and not any(n.startswith(MANIFEST_DIR) for n in listed):
            return set()
        for folder in (HEARTBEAT_DIR, MANIFEST_DIR, ""):
            names = [n for n in listed if n.rpartition("/")[0] == folder]
            content = self._store.read(n for n in names if self._states.get(n) != listed[n])
            for name, text in content.items():
                self._write(name, text)
                self._states[name] = listed[name]
        self._states = {n: state for n, state in self._states.items() if n in listed}
        return {*listed}

    def _write(self, name: str, content: bytes) -> None:
        """Replace a small file, unless it is the same: the manifest is then read anew."""
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
        self._attempted |= {(p.table, p.file) for p in new}

    def _download(self, part: Part) -> None:
        target = part.path(self.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        arriving = target.with_name(target.name + json_files.IN_PROGRESS)
        with suppress(FileNotFoundError):
            remote = f"{self.url.path}/{part.table}/{part.file}"
            self.url.filesystem.get_file(remote, str(arriving))
            os.replace(arriving, target)

    def attempted(self, part: Part) -> bool:
        return (part.table, part.file) in self._attempted


def _parse(content: bytes) -> logs.Entry:
    """An entry; one that cannot be read is empty, and what it held is missed by its numbers."""
    try:
        return logs.parse(content)
    except ValueError:
        return {}


def _state(info: dict[str, Any]) -> str:
    """What is different when a file is."""
    keys = ("size", "ETag", "etag", "LastModified", "mtime", "created", "updated", "md5")
    return repr([info.get(key) for key in keys])
