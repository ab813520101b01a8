"""Open and find runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.errors import LldscopeError, RunNotFound
from .run import Run
from .storage import layout
from .storage.manifest import manifest_names
from .storage.url import Url, place_of

if TYPE_CHECKING:
    from .query.contents import RunBatch
    from .query.signal_cache import SignalCache

__all__ = ["Run", "find_runs", "open_run", "title"]


def open_run(
    path: str | Path | Url, root: Path | Url | None = None, cache: SignalCache | None = None,
    batch: RunBatch | None = None,
) -> Run:
    """Open a run: a directory, or a URL that fsspec supports, such as `s3://bucket/run`.

    The run must be inside the `root`, if one is given: a link that leads elsewhere is refused.
    `cache` keeps the signals of long runs between openings. A run opened with a `batch` has no
    signals until the batch computes them. Raises RunNotFound, NewerSchema or LldscopeError.
    """
    from .query.remote import RemoteCopy

    path = place_of(path)
    if isinstance(path, Url):
        return Run(RemoteCopy(path), cache)
    if isinstance(root, Path) and not path.resolve().is_relative_to(root.resolve()):
        raise LldscopeError(
            f"{path} is a link to a folder outside of {root}. Name that folder instead."
        )
    encoded = os.fsencode(path.absolute())
    try:
        encoded.decode("utf-8")
    except UnicodeDecodeError:
        readable = encoded.decode("utf-8", "replace")
        raise LldscopeError(f"The name of {readable} is not UTF-8: rename the folder.") from None
    return Run(path, cache, batch)


def title(info: Mapping[str, Any], place: str) -> str:
    """Display name of a run: the name in its run.json, else its path below the folder of runs."""
    name = info.get("name")
    return place if name is None or str(name) == place.rsplit("/", 1)[-1] else str(name)


def find_runs(root: str | Path | Url) -> list[Any]:
    """Run directories under a root, sorted by name, at most two levels down; the root itself if it
    is a run. Runs of a remote root are `Url`s. Raises RunNotFound if the root does not exist."""
    from .query.remote import find_remote

    root = place_of(root)
    if isinstance(root, Url):
        return [*find_remote(root)]
    return [root / name for name in names_below(root)]


def names_below(root: Path) -> list[str]:
    """Relative paths of the runs under a folder; "." if the folder is a run. Raises like
    `find_runs`."""
    if not root.is_dir():
        raise RunNotFound(f"There is no folder {root}.")
    if _is_run(str(root)):
        return ["."]
    names: list[str] = []
    for name in _folders(f"{root}"):
        if _is_run(f"{root}/{name}"):
            names.append(name)
        else:
            inner = (f"{name}/{one}" for one in _folders(f"{root}/{name}"))
            names += [one for one in inner if _is_run(f"{root}/{one}")]
    return sorted(names, key=lambda name: name.split("/"))


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except OSError:  # it may vanish meanwhile, or may not be read
        return []


def _is_run(path: str) -> bool:
    try:
        return os.path.isfile(f"{path}/{layout.RUN_FILE}") or bool(manifest_names(Path(path)))
    except PermissionError:
        return False
