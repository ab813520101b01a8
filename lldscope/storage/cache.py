"""The caches of a user. Each entry is a folder; the oldest entries are deleted first.

    FOLDER/<digest of the key>/state.json, and whatever files the entry consists of

The caches lie in the user's own folder, which nobody else can read, and never in a run. An entry
is valid only for the code that wrote it; whoever loads it checks that the files of the run are the
same. A damaged entry, or one that cannot be written, costs only time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TypeVar

from . import json_files

_T = TypeVar("_T")
_STATE = "state.json"


class Cache:
    """A folder with at most `most` entries. `packages` names further code that the entries depend
    on."""

    def __init__(self, folder: Path, most: int, *packages: Path) -> None:
        self._folder, self._most = folder, most
        self._code = partial(code_version, *packages)

    def load(self, key: str, read: Callable[[Path, dict[str, Any]], _T]) -> _T | None:
        """What `read` makes of the entry's folder and state; None without a valid entry."""
        folder = self._place(key)
        try:
            state = json.loads(json_files.read_bytes(folder / _STATE, folder))
            return read(folder, state["state"]) if state["code"] == self._code() else None
        except Exception:  # whatever is in it
            return None

    def store(self, key: str, state: Mapping[str, Any], write: Callable[[Path], object]) -> None:
        """Replace the entry of a key; `write` puts its files into a folder."""
        final = self._place(key)
        new = final.with_name(f"{final.name}.{uuid.uuid4().hex}.new")
        with suppress(Exception):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            new.mkdir(mode=0o700)
            write(new)
            (new / _STATE).write_text(json.dumps({"code": self._code(), "state": state}))
            shutil.rmtree(final, ignore_errors=True)
            new.rename(final)
            newest = sorted(self._folder.iterdir(), key=lambda p: -p.stat().st_mtime)
            for old in newest[self._most :]:
                shutil.rmtree(old, ignore_errors=True)

    def _place(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode(errors="backslashreplace")).hexdigest()[:32]


def cache_dir() -> Path:
    """The folder for caches of this user, in the XDG cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lldscope"


@cache
def code_version(*packages: Path) -> str:
    """A text that changes whenever the same run could give another answer: with any file of
    lldscope or of `packages`, and with the version of each library that computes."""
    libraries = [_installed(name) for name in ("duckdb", "numpy", "pandas", "pyarrow")]
    digest = hashlib.sha256("\n".join(libraries).encode())
    for package in (Path(__file__).parents[1], *packages):
        for file in sorted([*package.rglob("*.py"), *package.rglob("*.sql")]):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


def _installed(name: str) -> str:
    """Name and version of a library, from its metadata's folder: `importlib.metadata` takes long to
    import."""
    spec = PathFinder.find_spec(name)
    folder = Path(spec.origin).parents[1] if spec and spec.origin else Path()
    return " ".join(sorted(path.name for path in folder.glob(f"{name}-*.dist-info")))
