"""Runs on S3-compatible storage or any other file system of fsspec.

A `RemoteCopy` copies what is asked for into a temporary folder, and the run is read there: small
files again at each sync, sealed parts once, because they never change. Nothing is ever written to
the remote place. An address may hold secrets: `str(url)` leaves them out, and messages show only
that.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from ..core.errors import LldscopeError, RunNotFound
from ..storage import heartbeats, json_files, layout, part
from ..storage.manifest import MANIFEST_DIR, is_manifest

_FOLDERS = ("", MANIFEST_DIR, heartbeats.HEARTBEAT_DIR)  # of the small files
_BATCH_FILES, _BATCH_BYTES = 64, 256 << 20  # fetched at once


def is_address(text: str) -> bool:
    return "://" in text


@dataclass(frozen=True)
class Url:
    """An address that fsspec knows; as text it shows neither user, password nor query."""

    address: str

    def __str__(self) -> str:
        protocol, _, rest = self.address.rpartition("://")
        host, slash, path = rest.partition("/")
        host = host.rpartition("@")[2].partition("?")[0]
        return f"{protocol}://{host}{slash}{path.partition('?')[0]}".rstrip("/")

    __repr__ = __str__

    @cached_property
    def _place(self) -> tuple[Any, str]:
        with plain_errors(self):
            from fsspec.core import url_to_fs

            filesystem, path = url_to_fs(self.address, use_listings_cache=False)
        return filesystem, path.rstrip("/")

    @property
    def filesystem(self) -> Any:
        return self._place[0]

    @property
    def path(self) -> str:
        """The place inside its file system."""
        return self._place[1]

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(str(self)).path).name or str(self)

    def at(self, path: str) -> Url:
        """Another place of the same file system, below this one."""
        inside = path.removeprefix(self.path).lstrip("/")
        bare, query, rest = self.address.partition("?")
        return Url(f"{bare.rstrip('/')}/{inside}{query}{rest}" if inside else self.address)

    def relative_to(self, root: Url) -> PurePosixPath:
        return PurePosixPath(self.path).relative_to(root.path)

    def resolve(self) -> Url:
        return self

    def is_dir(self) -> bool:
        with plain_errors(self):
            return bool(self.filesystem.isdir(self.path))


@contextmanager
def plain_errors(url: Url) -> Iterator[None]:
    """Whatever a file system raises becomes one sentence without the text of the error, which may
    hold an address with its secrets."""
    try:
        yield
    except LldscopeError:
        raise
    except FileNotFoundError:
        raise RunNotFound(f"There is nothing at {url}.") from None
    except ImportError as error:
        what = error.name or "what its protocol needs"
        raise LldscopeError(
            f"Reading {url} needs {what}: pip install 'lldscope[remote]', or the package of that "
            "protocol."
        ) from None
    except Exception as error:  # each file system has errors of its own
        code = getattr(error, "errno", None)
        why = os.strerror(code) if isinstance(code, int) else type(error).__name__
        raise LldscopeError(
            f"{url} cannot be read: {why}. Check the address, and the credentials where its file "
            "system looks for them (for s3: the AWS_… variables or ~/.aws)."
        ) from None


def find_remote(root: Url) -> list[Url]:
    """Runs under a remote root, by name, at most two levels down; the root itself if it is one.

    As in a folder, what has a manifest is a run, too, if its run.json is lost.
    """
    with plain_errors(root):
        fs, base = root.filesystem, root.path
        if not fs.exists(base):
            raise RunNotFound(f"There is nothing at {root}.")
        if fs.exists(f"{base}/{layout.RUN_FILE}") or _has_manifest(fs, base):
            return [root]
        seen = [p.rpartition("/") for p in fs.find(base, maxdepth=3, withdirs=True)]
        found = {run for run, _, name in seen if name == layout.RUN_FILE}
        lost = {run for run, _, name in seen if name == MANIFEST_DIR} - found
        found |= {run for run in lost if _has_manifest(fs, run)}
    return [root.at(run) for run in sorted(found)]


def _has_manifest(fs: Any, run: str) -> bool:
    try:
        names = fs.ls(f"{run}/{MANIFEST_DIR}", detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(is_manifest(PurePosixPath(name).name) for name in names)


def traces(url: Url) -> tuple[Any, ...]:
    """What changes at a remote place when its run does."""
    with plain_errors(url):
        return tuple(sorted((p, _state(i)) for p, i in _small_files(url).items()))


class RemoteCopy:
    """A local copy of the requested parts of a remote run."""

    def __init__(self, url: Url) -> None:
        self.url = url
        self._folder = tempfile.TemporaryDirectory(prefix="lldscope-")
        self.path = Path(self._folder.name) / "run"
        self._states: dict[str, str] = {}  # small file → what it was when it was copied
        self._attempted: set[tuple[str, str]] = set()

    def close(self) -> None:
        self._folder.cleanup()

    def sync(self) -> None:
        """Copy the small files that have changed. Raises RunNotFound or LldscopeError."""
        with plain_errors(self.url):
            found = _small_files(self.url)
            folders = {name.rpartition("/")[0] for name in found}
            if layout.RUN_FILE not in found and MANIFEST_DIR not in folders:
                why = f"It holds no {layout.RUN_FILE}: it is not a run that lldscope recorded."
                raise RunNotFound(f"There is no run at {self.url}. {why}")
            changed = {n: i for n, i in found.items() if self._states.get(n) != _state(i)}
            # Heartbeats say how long the manifests are at least, and these how long the events
            # are: what speaks of a file must not be newer.
            got: set[str] = set()
            for folder in (heartbeats.HEARTBEAT_DIR, MANIFEST_DIR, ""):
                names = [n for n in changed if n.rpartition("/")[0] == folder]
                got |= self._fetch(names, lambda name: found[name]["size"])
            # A file that failed to download has no state and is fetched again at the next sync.
            self._states = {n: _state(i) for n, i in found.items() if n not in changed or n in got}
        for folder in _FOLDERS:
            for file in (self.path / folder).glob("*"):
                if file.is_file() and file.relative_to(self.path).as_posix() not in found:
                    file.unlink()

    def fetch(self, parts: Iterable[part.Part]) -> None:
        """Download sealed parts that are not local yet; one that does not exist stays missing."""
        sizes = {f"{p.table}/{p.file}": p.size for p in parts}
        wanted = [name for name in sizes if not (self.path / name).exists()]
        with plain_errors(self.url):
            self._fetch(wanted, sizes.__getitem__)
        self._attempted |= {tuple(name.split("/")) for name in sizes}  # type: ignore[misc]

    def attempted(self, part: part.Part) -> bool:
        return (part.table, part.file) in self._attempted

    def _fetch(self, names: list[str], size_of: Callable[[str], int]) -> set[str]:
        """Copy files, many at once; the names of those that came. Names are ours: none of them can
        leave the folder."""
        got = set()
        for batch in _batches(names, size_of):
            paths = {f"{self.url.path}/{name}": name for name in batch}
            found = self.url.filesystem.cat(list(paths), on_error="omit")
            for path, content in found.items():
                target = self.path / paths[path]
                target.parent.mkdir(parents=True, exist_ok=True)
                arriving = target.with_name(target.name + json_files.IN_PROGRESS)
                arriving.write_bytes(content)
                os.replace(arriving, target)
                got.add(paths[path])
        return got


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


def _small_files(url: Url) -> dict[str, dict[str, Any]]:
    """Name in the run → the file system's entry, of run.json, manifests, heartbeats, events."""
    url.filesystem.invalidate_cache()
    found = {}
    for folder in _FOLDERS:
        try:
            listed = url.filesystem.ls(f"{url.path}/{folder}".rstrip("/"), detail=True)
        except FileNotFoundError:
            continue
        for info in listed:
            name = f"{folder}/{PurePosixPath(info['name']).name}".lstrip("/")
            small = (info.get("size") or 0) <= json_files.MAX_BYTES
            if info["type"] == "file" and small and layout.is_small_file(name):
                found[name] = info
    return found


def _state(info: dict[str, Any]) -> str:
    """What is different when a file is."""
    keys = ("size", "ETag", "etag", "LastModified", "mtime", "created", "updated", "md5")
    return repr([info.get(key) for key in keys])
