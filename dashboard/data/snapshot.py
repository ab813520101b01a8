"""A snapshot of a run: everything its pages show, as of one moment; and the cache of those of runs
that have ended, so that a new start of the server opens them without reading the runs again.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lldscope.core.charts import ACTIONS_SHOWN, DELTA_OF_ACTION, EVIDENCE
from lldscope.core.errors import LldscopeError
from lldscope.diagnosis.evidence import Evidence
from lldscope.diagnosis.outcome import outcome, rise
from lldscope.monitor.health import RunState
from lldscope.runs import Run, title
from lldscope.storage.cache import Cache
from lldscope.storage.layout import read_manifest

from ..figures.series import floats
from ..figures.view import Subject

TRIMMED = "delta_correct_trim"
DEAD_STEPS = 20  # steps without any change of the reward
MAX_RUNS = 300


def _unopened() -> Run:
    raise LldscopeError("This snapshot belongs to no registry.")


@dataclass(frozen=True)
class Snapshot:
    """A run as of one moment, which is all that a page gets of it. `version` names the rows behind
    `subject`; `open` gives the run itself, for the rows of one page."""

    version: str
    info: dict[str, Any]
    state: RunState
    subject: Subject
    tables: tuple[str, ...] = ()  # those that have rows
    columns: tuple[str, ...] = ()  # of metrics that are no signals: `metrics`
    open: Callable[[], Run] = field(default=_unopened, compare=False)

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


def subject_of(name: str, run: Run, state: RunState) -> Subject:
    """What charts show of a run, given what `check` says of it."""
    evidence = run.assess().evidence
    table = run.signals().assign(**{EVIDENCE: evidence.e_value})
    if not np.isfinite(floats(table, TRIMMED)).any():  # no single responses are recorded
        table[TRIMMED] = table["delta_correct"]
    table = _with_actions(table, run.action_signals())
    label = title(run.info, name)
    fields = (state.phases, state.alerts, run.events(), state.arl, label, trend(evidence))
    return Subject(name, table, *fields)


def trend(e: Evidence) -> str:
    """The course of the reward in a word; empty where too little of it was measured."""
    rewards = e.column("reward")
    rewards = rewards[np.isfinite(rewards)][-DEAD_STEPS:]
    if len(rewards) < DEAD_STEPS:
        return ""
    if rewards.max() == rewards.min():
        return "dead"
    if outcome(e).fallen[-1]:
        return "falling"
    change = rise(e)
    return "" if change is None else "improving" if change.clear else "flat"


def tables_of(run: Run) -> tuple[str, ...]:
    """The tables of the run that have rows."""
    return tuple(sorted({part.table for part in read_manifest(run.path).parts if part.rows}))


def _with_actions(table: pd.DataFrame, actions: pd.DataFrame) -> pd.DataFrame:
    """The signals with a column of Δ of correct responses for each of the first actions."""
    correct = actions[actions["correct"].astype(bool)]
    for index in range(ACTIONS_SHOWN):
        of_action = correct[correct["action_index"] == index].set_index("step")["delta"]
        table[DELTA_OF_ACTION.format(index)] = table["step"].map(of_action)
    return table


class SnapshotCache:
    """Not for runs that lie elsewhere. A snapshot is used again only if every file of the run has
    the size and time it had."""

    def __init__(self, folder: Path) -> None:
        self._cache = Cache(folder, MAX_RUNS, Path(__file__).parent)

    def load(self, name: str, path: Path, etag: str) -> Snapshot | None:
        """The cached snapshot, if `etag`, the run's `files_of`, is unchanged since."""

        def read(folder: Path, meta: dict[str, Any]) -> Snapshot | None:
            if meta["seen"] != etag:
                return None
            table = pd.read_parquet(folder / "table.parquet")
            state = RunState.from_dict(meta["state"])
            events, label = meta["events"], title(meta["info"], name)
            fields = (state.phases, state.alerts, events, state.arl, label, meta["trend"])
            subject = Subject(name, table, *fields)
            args = (meta["version"], meta["info"], state, subject)
            return Snapshot(*args, tuple(meta["tables"]), tuple(meta["columns"]))

        return self._cache.load(os.fspath(path), read)

    def store(self, path: Path, etag: str, snapshot: Snapshot) -> None:
        """Store a snapshot; `etag` is what `files_of` returned before it was taken."""
        content = {
            "seen": etag, "version": snapshot.version, "info": snapshot.info,
            "state": snapshot.state.to_dict(), "events": snapshot.subject.events,
            "trend": snapshot.subject.trend, "tables": snapshot.tables, "columns": snapshot.columns,
        }  # fmt: skip
        table = snapshot.subject.table

        def write(folder: Path) -> None:
            table.to_parquet(folder / "table.parquet", compression="zstd")

        self._cache.store(os.fspath(path), content, write)


def files_of(path: Path) -> str:
    """Changes when any file of a run does: names, sizes and times."""
    files = []
    for folder in (path, *sorted(p for p in path.iterdir() if p.is_dir())):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file():
                    stat = entry.stat()
                    files.append((folder.name, entry.name, stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(repr(sorted(files)).encode(errors="replace")).hexdigest()
