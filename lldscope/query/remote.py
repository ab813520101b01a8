"""Runs on S3-compatible storage or any other file system of fsspec.

A `RemoteCopy` copies what is asked for into a temporary folder, and the run is read there: small
files again at each sync, sealed parts once, because they never change. Small files that a recorder
has put there in pieces (`storage.logs`) are joined. Nothing is ever written into a remote run.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from ..core.errors import RunNotFound
from ..storage import heartbeats, json_files, layout, logs, part
from ..storage.logs import LOG_DIR, LogName, log_name
from ..storage.manifest import MANIFEST_DIR
from ..storage.url import Url, plain_errors

_BATCH_FILES, _BATCH_BYTES = 64, 256 << 20  # fetched at once
_LEVELS = 2  # below a root, on which runs are looked for
_LISTINGS = 5  # of the pieces of small files, where some are replaced while they are fetched


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
    if last == LOG_DIR and log_name(file):
        return run, f"{last}/{file}"
    if layout.is_small_file(f"{last}/{file}"):
        return run, f"{last}/{file}"
    return folder, file if layout.is_small_file(file) else ""


def _tells_of_run(name: str) -> bool:
    return name == layout.RUN_FILE or name.startswith((f"{MANIFEST_DIR}/", f"{LOG_DIR}/"))


def _digest(states: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {state}" for name, state in sorted(states.items()))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


class RemoteCopy:
    """A local copy of the requested parts of a remote run."""

    def __init__(self, url: Url) -> None:
        self.url = url
        self._folder = tempfile.TemporaryDirectory(prefix="lldscope-")
        self.path = Path(self._folder.name) / "run"
        self._states: dict[str, str] = {}  # small file → what it was when it was copied
        self._pieces: dict[LogName, bytes] = {}  # of small files, as long as they are current
        self._sources: dict[str, list[LogName]] = {}  # small file → the pieces it was made of
        self._attempted: set[tuple[str, str]] = set()

    def close(self) -> None:
        self._folder.cleanup()

    def sync(self) -> None:
        """Copy the small files that have changed. Raises RunNotFound or LldscopeError."""
        with plain_errors(self.url):
            listed = self._join_pieces()
            small = {name: info for name, info in listed.items() if layout.is_small_file(name)}
            folders = {name.rpartition("/")[0] for name in small}
            if layout.RUN_FILE not in small and MANIFEST_DIR not in folders and not self._sources:
                why = f"It holds no {layout.RUN_FILE}: it is not a run that lldscope recorded."
                raise RunNotFound(f"There is no run at {self.url}. {why}")
            diff = {n: i for n, i in small.items() if self._states.get(n) != _state(i)}
            # Heartbeats say how long the manifests are at least, and these how long the events
            # are: what speaks of a file must not be newer.
            copies: set[str] = set()
            for folder in (heartbeats.HEARTBEAT_DIR, MANIFEST_DIR, ""):
                names = [n for n in diff if n.rpartition("/")[0] == folder]
                copies |= self._fetch(names, lambda name: small[name]["size"])
            # A file that failed to download has no state and is fetched again at the next sync.
            self._states = {n: _state(i) for n, i in small.items() if n not in diff or n in copies}
        for folder in ("", MANIFEST_DIR, heartbeats.HEARTBEAT_DIR):
            for file in (self.path / folder).glob("*"):
                name = file.relative_to(self.path).as_posix()
                if file.is_file() and name not in small and name not in self._sources:
                    file.unlink()

    def _join_pieces(self) -> dict[str, dict[str, Any]]:
        """Write the small files that are there in pieces; returns the listing they are from.
        Pieces that are replaced meanwhile by larger ones are gone: then they are listed again."""
        for _ in range(_LISTINGS):
            listed = _listing(self.url)
            folders = (name.rpartition("/") for name in listed)
            targets = logs.sources(
                name for folder, _, file in folders
                if folder == LOG_DIR and (name := log_name(file)) is not None
            )
            names = {name for pieces in targets.values() for name in pieces}
            self._pieces = {n: c for n, c in self._pieces.items() if n in names}
            new = {f"{self.url.path}/{n.path}": n for n in names if n not in self._pieces}
            if new:
                content = self.url.filesystem.cat(list(new), on_error="omit")
                self._pieces |= {new[path]: data for path, data in content.items()}
            if len(self._pieces) == len(names):
                break
        for target, pieces in targets.items():
            complete = all(name in self._pieces for name in pieces)
            if complete and self._sources.get(target) != pieces:
                self._write(target, logs.join_pieces((n, self._pieces[n]) for n in pieces))
                self._sources[target] = pieces
        self._sources = {t: pieces for t, pieces in self._sources.items() if t in targets}
        return listed

    def _write(self, name: str, content: bytes) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".jsonl") and target.exists():
            old = target.read_bytes()
            if content.startswith(old):  # appended: a reader goes on where it was
                with open(target, "ab") as file:
                    file.write(content[len(old) :])
                return
        arriving = target.with_name(target.name + json_files.IN_PROGRESS)
        arriving.write_bytes(content)
        os.replace(arriving, target)

    def fetch(self, parts: Iterable[part.Part]) -> None:
        """Download sealed parts that are not local yet; one that does not exist stays missing."""
        sizes = {f"{p.table}/{p.file}": p.size for p in parts}
        names = [name for name in sizes if not (self.path / name).exists()]
        with plain_errors(self.url):
            self._fetch(names, sizes.__getitem__)
        self._attempted |= {tuple(name.split("/")) for name in sizes}  # type: ignore[misc]

    def attempted(self, part: part.Part) -> bool:
        return (part.table, part.file) in self._attempted

    def _fetch(self, names: list[str], size_of: Callable[[str], int]) -> set[str]:
        """Copy files, many at once; the names of those that came. Names are ours: none of them can
        leave the folder."""
        copies = set()
        for batch in _batches(names, size_of):
            paths = {f"{self.url.path}/{name}": name for name in batch}
            entries = self.url.filesystem.cat(list(paths), on_error="omit")
            for path, content in entries.items():
                self._write(paths[path], content)
                copies.add(paths[path])
        return copies


def _batches(names: list[str], size_of: Callable[[str], int]) -> Iterator[list[str]]:
    batch: list[str] = []
    total = 0
    for name in names:
        if batch and (len(batch) == _BATCH_FILES or total + size_of(name) > _BATCH_BYTES):
            yield batch
            batch, total = [], 0
        batch.append(name)
        total += size_of(name)
    if batch:
        yield batch


def _listing(url: Url) -> dict[str, dict[str, Any]]:
    """Name in the run → the file system's entry, of the files in the folders of small files. The
    folders of parts are not listed: they have most of the objects."""
    url.filesystem.invalidate_cache()
    listed = {}
    for folder in ("", MANIFEST_DIR, heartbeats.HEARTBEAT_DIR, LOG_DIR):
        with suppress(FileNotFoundError, NotADirectoryError):
            for info in url.filesystem.ls(f"{url.path}/{folder}".rstrip("/"), detail=True):
                if info["type"] == "file" and (info.get("size") or 0) <= json_files.MAX_BYTES:
                    listed[f"{folder}/{PurePosixPath(info['name']).name}".lstrip("/")] = info
    return listed


def _state(info: dict[str, Any]) -> str:
    """What is different when a file is."""
    keys = ("size", "ETag", "etag", "LastModified", "mtime", "created", "updated", "md5")
    return repr([info.get(key) for key in keys])
