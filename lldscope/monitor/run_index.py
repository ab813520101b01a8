"""The index of a root of runs, a folder or an address: what the list of runs says of each.

It lies in the user's cache and is never the truth. An entry counts only while the files of its run
are those that it was made from (`fingerprint`; of a remote run what `query.remote.find_remote`
says) and the code is the same; any other run is read anew. An index that is lost, damaged or cannot
be written costs time only. Processes that write at once replace each other's index, each with what
the other had written before.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..storage.cache import Cache, cache_dir
from ..storage.json_files import parse, to_json
from ..storage.manifest import MANIFEST_DIR
from ..storage.url import Url

if TYPE_CHECKING:
    from .summary import Summary

MOST_ROOTS = 50  # whose index is kept
# Fingerprint; the time and the line of `Summary.row`; the summary as JSON, which takes longer.
_Entry = tuple[str, float | None, dict[str, Any], str]
_NONE: _Entry = "", None, {}, ""


class RunIndex:
    """The index of the runs under `root`, which is no run itself."""

    def __init__(self, root: Path | Url) -> None:
        self._key = os.path.abspath(root) if isinstance(root, Path) else str(root)
        self._cache = Cache(cache_dir() / "lists", MOST_ROOTS)
        self._entries = self._read()
        self._new: dict[str, _Entry] = {}

    def get(self, name: str, digest: str) -> Summary | None:
        """The summary of a run whose files are these now; None if it must be read. What was read
        from the cache is given once."""
        from .summary import Summary

        fingerprint, _, _, text = self._new.get(name) or self._entries.pop(name, _NONE)
        if fingerprint != digest or not digest:
            return None
        return Summary.from_dict(name, parse(text.encode()))

    def row(self, name: str, digest: str) -> dict[str, Any] | None:
        """The line of a run, as `get`."""
        fingerprint, last, row, _ = self._new.get(name) or self._entries.get(name, _NONE)
        if fingerprint != digest or not digest:
            return None
        return row if last is None else row | {"last_row_age_seconds": time.time() - last}

    def put(self, summary: Summary, digest: str) -> None:
        """Keep a summary that was made from these files, if time alone cannot change it: that of a
        run that is over or stalled, and has no alarm that is snoozed."""
        state = summary.state
        if state is None or not digest or state.life == "live" or any(state.silenced.values()):
            return
        text = to_json(summary.to_dict())
        self._new[summary.name] = digest, summary.last_time, summary.row, text

    def save(self, names: Collection[str]) -> None:
        """Write what is new, together with what others wrote meanwhile; `names` are the runs there
        are."""
        if not self._new:
            return
        self._entries = {n: e for n, e in (self._read() | self._new).items() if n in names}
        self._new = {}
        self._cache.store(self._key, self._entries, lambda _: None)

    def _read(self) -> dict[str, _Entry]:
        return self._cache.load(self._key, lambda _, entries: dict(entries)) or {}


def fingerprint(run: Path | str, every: bool = False) -> str:
    """Changes when a run does: names, sizes and times of its files and folders, and of its
    manifests or of `every` file. Empty if it cannot be read. A part that rots in its place is found
    by who reads it, not here."""
    states = []
    folders = [f"{run}"] if every else [f"{run}", f"{run}/{MANIFEST_DIR}"]
    try:
        for folder in folders:
            with os.scandir(folder) as entries:
                for entry in entries:
                    state = entry.stat()
                    is_folder = stat.S_ISDIR(state.st_mode)
                    if every and is_folder and folder == folders[0]:
                        folders.append(entry.path)
                    size = 0 if is_folder else state.st_size
                    name = entry.path if every else entry.name
                    states.append(f"{name} {size} {state.st_mtime_ns}")
    except (OSError, ValueError):
        return ""
    return hashlib.sha256("\n".join(sorted(states)).encode(errors="replace")).hexdigest()[:32]
