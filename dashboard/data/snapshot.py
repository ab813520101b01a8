"""Snapshots of runs, as of one moment, and a cache of the snapshots of ended runs: a server that
starts anew opens these without reading the runs again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lldscope.figures.series import floats
from lldscope.figures.view import Subject
from lldscope.monitor.health import RunState
from lldscope.runs import Run, title
from lldscope.storage.cache import Cache

MAX_RUNS = 300


@dataclass(frozen=True)
class Snapshot:
    """A run as of one moment; pages see nothing else of it. `version` names the rows behind
    `subject`; `open` gives the run itself, for the rows of one page."""

    version: str
    info: dict[str, Any]
    state: RunState
    subject: Subject
    tables: tuple[str, ...]  # those that have rows
    columns: tuple[str, ...]  # of metrics that are no signals: `metrics`
    open: Callable[[], Run] = field(compare=False)

    @property
    def name(self) -> str:
        """The place of the run under the root."""
        return self.subject.name

    @property
    def run(self) -> Run:
        """The run behind the snapshot. Raises LldscopeError if it cannot be read any more."""
        return self.open()

    @property
    def title(self) -> str:
        """What people call the run."""
        return title(self.info, self.subject.name)

    @property
    def last_time(self) -> float | None:
        """When the last row was written (Unix time); None if no row says."""
        times = floats(self.subject.table, "time")
        return float(times[-1]) if len(times) and not math.isnan(times[-1]) else None


def aged(snapshot: Snapshot) -> Snapshot:
    """The same snapshot, with the age that its last row has now."""
    if (moment := snapshot.last_time) is None:
        return snapshot
    state = replace(snapshot.state, last_row_age_seconds=time.time() - moment)
    return replace(snapshot, state=state)


class SnapshotCache:
    """Snapshots of local runs. One is used again only if no file of the run has another size or
    time."""

    def __init__(self, folder: Path) -> None:
        self._cache = Cache(folder, MAX_RUNS, Path(__file__).parent)

    def load(
        self, name: str, path: Path, etag: str, open_it: Callable[[], Run]
    ) -> Snapshot | None:
        """The cached snapshot, if `etag`, its `fingerprint` of every file, is unchanged since."""

        def read(folder: Path, meta: dict[str, Any]) -> Snapshot | None:
            if meta["seen"] != etag or not etag:
                return None
            table = pd.read_parquet(folder / "table.parquet")
            state = RunState.from_dict(meta["state"])
            events, label = meta["events"], title(meta["info"], name)
            fields = (state.phases, state.alerts, events, state.arl, label)
            subject = Subject(name, table, *fields)
            args = (meta["version"], meta["info"], state, subject)
            return Snapshot(*args, tuple(meta["tables"]), tuple(meta["columns"]), open_it)

        return self._cache.load(os.fspath(path), read)

    def store(self, path: Path, etag: str, snapshot: Snapshot) -> None:
        """Store a snapshot; `etag` is its fingerprint before it was taken."""
        content = {
            "seen": etag, "version": snapshot.version, "info": snapshot.info,
            "state": snapshot.state.to_dict(), "events": snapshot.subject.events,
            "tables": snapshot.tables, "columns": snapshot.columns,
        }
        table = snapshot.subject.table

        def write(folder: Path) -> None:
            table.to_parquet(folder / "table.parquet", compression="zstd")

        self._cache.store(os.fspath(path), content, write)
