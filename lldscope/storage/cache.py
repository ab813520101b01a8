"""The caches of a user: a folder per entry, and the entries written longest ago are deleted first.

    FOLDER/<digest of the key>/state.json, and whatever files the entry consists of

They lie in the reader's own folder, which only its user can read, never in a run. An entry counts
only for the code that made it; whether it is of the same files, its reader decides. One that is
damaged or cannot be written costs time only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TypeVar

from . import json_files

_T = TypeVar("_T")
_STATE = "state.json"


class Cache:
    """At most `most` entries in a folder; `packages` is further code that they depend on."""

    def __init__(self, folder: Path, most: int, *packages: Path) -> None:
        self._folder, self._most, self._packages = folder, most, packages

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

    def _code(self) -> str:
        return code_version(*self._packages)


def cache_dir() -> Path:
    """The folder for caches of this user, in the XDG cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lldscope"


@cache
def code_version(*packages: Path) -> str:
    """Changes with any file of lldscope and of other packages, and with the libraries that compute:
    whenever the same run could give another answer."""
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
    return " ".join(sorted(path.name for path in folder.glob(f"{name}-*.dist-info"))) or name
