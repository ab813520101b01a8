"""The runs under a root, kept open: one refresh at a time, a bounded number, words for errors.

Pages ask for a `Look`: everything they show, as of one moment. Its version changes exactly when the
run has new rows, so a page can tell that there is nothing to redraw.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd

from lldscope.check import check
from lldscope.errors import LldscopeError, RunNotFound
from lldscope.remote import Url, traces
from lldscope.runs import Run, find_runs, open_run

from .charts import ACTIONS_SHOWN, DELTA_OF_ACTION, EVIDENCE
from .figures import Subject
from .series import Numbers, floats

FRESH_SECONDS = 1.0  # looks within this time share one refresh
WAIT_SECONDS = 1.0  # for another's refresh; then the look before it must do
REMOTE_SECONDS = 10.0  # the runs under a remote root are listed this often
MOST_OPEN = 24
SPARK_POINTS = 200


@dataclass(frozen=True)
class Look:
    """A run as of one moment. `version` names the rows behind `subject`."""

    version: str
    info: dict[str, Any]
    state: dict[str, Any]
    subject: Subject


@dataclass(frozen=True)
class Summary:
    """A line of the run list. `state` is None and `error` says why where it cannot be read."""

    name: str
    group: str | None = None
    state: dict[str, Any] | None = None
    last_time: float | None = None
    reward: Numbers | None = None
    delta: Numbers | None = None
    error: str | None = None

    @property
    def age(self) -> float | None:
        return None if self.last_time is None else time.time() - self.last_time


@dataclass
class _Place:
    """One open run. The lock lets one refresh through; others get the look before it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    run: Run | None = None
    look: Look | None = None
    at: float = 0.0


@dataclass(frozen=True)
class _Line:
    """A summary, the files it was read from, and when."""

    traces: tuple[Any, ...]
    summary: Summary
    at: float


class Shelf:
    """Looks at the runs under a root by name. Names are paths relative to the root."""

    def __init__(self, root: Path | Url) -> None:
        self.root = root.resolve()
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()
        self._names: dict[str, Any] = {}
        self._named_at = -math.inf

    def names(self) -> dict[str, Any]:
        """Name → directory of every run there is now. Only these can be asked for."""
        if isinstance(self.root, Url) and time.monotonic() - self._named_at < REMOTE_SECONDS:
            return self._names
        paths = find_runs(self.root) if self.root.is_dir() else []
        self._names, self._named_at = {self._name(p): p for p in paths}, time.monotonic()
        return self._names

    def _name(self, path: Any) -> str:
        return path.name if path == self.root else path.relative_to(self.root).as_posix()

    def look(self, name: str) -> Look:
        """The run now. Raises LldscopeError with a sentence for the reader."""
        path = self.names().get(name)
        if path is None:
            with self._lock:
                self._places.pop(name, None)
            raise RunNotFound(f"There is no run “{name}” under {self.root}.")
        place = self._place(name)
        if not place.lock.acquire(timeout=-1 if place.look is None else WAIT_SECONDS):
            assert place.look is not None
            return place.look
        try:
            if place.look is None or time.monotonic() - place.at > FRESH_SECONDS:
                place.look = _renew(name, place, path, self.root)
                place.at = time.monotonic()
            return place.look
        except (duckdb.Error, OSError) as error:
            raise LldscopeError(f"The run cannot be read now: {error}") from error
        finally:
            place.lock.release()

    def _place(self, name: str) -> _Place:
        with self._lock:
            place = self._places.setdefault(name, _Place())
            self._places.move_to_end(name)
            while len(self._places) > MOST_OPEN:
                self._places.popitem(last=False)
            return place

    def summaries(self, seconds: float) -> list[Summary | str]:
        """A line per run; the one before, or just the name, where `seconds` were over by then."""
        end = time.monotonic() + seconds
        names = self.names()
        # what was never read, or longest ago, comes first: a slow run must not starve the others
        for name in sorted(names, key=lambda n: self._lines[n].at if n in self._lines else 0.0):
            traces = _traces(names[name])
            line = self._lines.get(name)
            if line is not None and line.traces == traces and not _lives(line.summary):
                continue
            if time.monotonic() > end:
                break
            self._lines[name] = _Line(traces, self._summary(name), time.monotonic())
        return [self._lines[n].summary if n in self._lines else n for n in names]

    def _summary(self, name: str) -> Summary:
        try:
            look = self.look(name)
        except LldscopeError as error:
            return Summary(name, error=str(error))
        table = look.subject.table
        times = floats(table, "time")
        return Summary(
            name,
            look.info.get("group"),
            look.state,
            float(times[-1]) if len(times) and times[-1] == times[-1] else None,
            _spark(table, "reward"),
            _spark(table, "delta_correct"),
        )


def _renew(name: str, place: _Place, path: Any, root: Path | Url) -> Look:
    """Take up new rows, or open the run anew if another one now lies at its path."""
    run, before = place.run, place.look
    changed = run is None or run.refresh()
    if run is None or before is None or run.info.get("id") != before.info.get("id"):
        run = place.run = open_run(path, root)
    elif not changed:
        return Look(before.version, run.info, check(run), before.subject)
    state = check(run)
    return Look(uuid.uuid4().hex, run.info, state, subject_of(name, run, state))


def subject_of(name: str, run: Run, state: dict[str, Any]) -> Subject:
    """What charts show of a run, given what `check` says of it."""
    table = run.signals().assign(**{EVIDENCE: run.assess().evidence.e_value})
    table = _with_actions(table, run.action_signals())
    return Subject(name, table, state["phases"], state["alerts"], run.events(), state["arl"])


def _with_actions(table: pd.DataFrame, actions: pd.DataFrame) -> pd.DataFrame:
    """The signals with a column of Δ of correct responses for each of the first actions."""
    correct = actions[actions["correct"].astype(bool)]
    for index in range(ACTIONS_SHOWN):
        of_action = correct[correct["action_index"] == index].set_index("step")["delta"]
        table[DELTA_OF_ACTION.format(index)] = table["step"].map(of_action)
    return table


def _spark(table: pd.DataFrame, column: str) -> Numbers:
    values = floats(table, column)
    return values[:: max(1, len(values) // SPARK_POINTS)]


def _traces(path: Path | Url) -> tuple[Any, ...]:
    """What changes on disk when a run does."""
    if isinstance(path, Url):
        with suppress(LldscopeError):
            return traces(path)
        return ()
    files = [path / "run.json", path / "heartbeat", *sorted((path / "manifest").glob("*.jsonl"))]
    found = []
    for file in files:
        with suppress(OSError):  # it may go while we look
            found.append((file.name, file.stat().st_mtime_ns, file.stat().st_size))
    return tuple(found)


def _lives(summary: Summary) -> bool:
    return summary.state is not None and summary.state["life"] == "live"
