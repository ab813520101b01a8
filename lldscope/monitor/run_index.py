"""The index of a root of runs (a folder or a URL): the line of each run in the list of runs.

The index lies in the user's cache and is never the truth. An entry counts only while the files of
its run (`fingerprint`; for a remote run, the listing of `query.remote.find_remote`) and the code
are unchanged; any other run is read anew. A lost, damaged or unwritable index costs only time. A
process that writes includes the entries that others have written before.
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
# Fingerprint; `last_time` and `row` of the summary; the summary as JSON, which is slow to parse.
_Entry = tuple[str, float | None, dict[str, Any], str]
_NONE: _Entry = "", None, {}, ""


class RunIndex:
    """The index of the runs under `root`; the root itself is no run."""

    def __init__(self, root: Path | Url) -> None:
        self._key = os.path.abspath(root) if isinstance(root, Path) else str(root)
        self._cache = Cache(cache_dir() / "lists", MOST_ROOTS)
        self._entries = self._read()
        self._new: dict[str, _Entry] = {}

    def get(self, name: str, digest: str) -> Summary | None:
        """The summary of a run with these files; None if the run must be read. Each cached summary
        is returned once."""
        from .summary import Summary

        fingerprint, _, _, text = self._new.get(name) or self._entries.pop(name, _NONE)
        if fingerprint != digest or not digest:
            return None
        return Summary.from_dict(name, parse(text.encode()))

    def row(self, name: str, digest: str) -> dict[str, Any] | None:
        """The line of a run, like `get`."""
        fingerprint, last, row, _ = self._new.get(name) or self._entries.get(name, _NONE)
        if fingerprint != digest or not digest:
            return None
        return row if last is None else row | {"last_row_age_seconds": time.time() - last}

    def put(self, summary: Summary, digest: str) -> None:
        """Store a summary made from these files, unless time alone can change it: the run must be
        over or stalled, without a snoozed alarm."""
        state = summary.state
        if state is None or not digest or state.life == "live" or any(state.silenced.values()):
            return
        text = to_json(summary.to_dict())
        self._new[summary.name] = digest, summary.last_time, summary.row, text

    def save(self, names: Collection[str]) -> None:
        """Write new entries, merged with those of other processes; `names` are the runs that
        exist."""
        if not self._new:
            return
        self._entries = {n: e for n, e in (self._read() | self._new).items() if n in names}
        self._new = {}
        self._cache.store(self._key, self._entries, lambda _: None)

    def _read(self) -> dict[str, _Entry]:
        return self._cache.load(self._key, lambda _, entries: dict(entries)) or {}


def fingerprint(run: Path | str, every: bool = False) -> str:
    """A value that changes with the run: names, sizes and times of its files and folders, and of
    its manifests or of `every` file. Empty if the run cannot be read. Readers detect a part that
    rots on disk; this value does not change with it."""
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
