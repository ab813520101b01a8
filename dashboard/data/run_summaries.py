"""Summaries for the list of runs: read in the background, and again only if a run changed."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lldscope.core.charts import EVIDENCE
from lldscope.core.errors import LldscopeError
from lldscope.figures.series import floats
from lldscope.monitor.run_index import RunIndex
from lldscope.monitor.summary import LAST, Summary, last_measured, read_summary, summarize
from lldscope.storage.layout import read_manifest
from lldscope.storage.url import Url

from .run_registry import Reading, RunRegistry

READERS = 2  # runs that are read at the same time
SHORT = 300_000  # rows of a run that is read and closed again; longer ones are kept open
MANY = 100  # runs; more are looked at seldom: HOLD times as long as a look at all took
HOLD = 5.0
SAVE_SECONDS = 10.0  # from one change of the index to the next


@dataclass(frozen=True)
class _Line:
    """A summary, the files it was read from, and when."""

    traces: str
    summary: Summary
    at: float


class RunSummaries:
    """A summary of each run of a registry."""

    def __init__(self, registry: RunRegistry) -> None:
        self.registry = registry
        self._lines: dict[str, _Line] = {}
        self._due: dict[str, Any] = {}  # name → path of what must be read
        self._looked_at, self._look_holds = -math.inf, 0.0
        self._index: RunIndex | None = None
        self._saved_at = -math.inf
        self._readers = 0
        self._changed = threading.Condition()

    def now(self, seconds: float) -> list[Summary]:
        """A line per run; the one before, or one without state and error, where `seconds` were over
        by then."""
        names = self.registry.names()
        start = time.monotonic()
        with self._changed:
            looks = start - self._looked_at >= self._look_holds
        due = {n: p for n, p in names.items() if self._is_due(n, p)} if looks else {}
        end = start + seconds
        with self._changed:
            if looks:
                self._looked_at = time.monotonic()
                took = self._looked_at - start
                self._look_holds = HOLD * took if len(names) > MANY else 0.0
                # never read, or longest ago, comes first: a slow run must not starve others
                self._due = dict(sorted(due.items(), key=lambda pair: self._read_at(pair[0])))
            while seconds > 0 and self._due and self._readers < READERS:
                self._readers += 1
                threading.Thread(target=self._read, name="lldscope-summaries", daemon=True).start()
            while (self._due or self._readers) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return [self._lines[n].summary if n in self._lines else Summary(n, n) for n in names]

    def _read_at(self, name: str) -> float:
        return self._lines[name].at if name in self._lines else 0.0

    def _is_due(self, name: str, path: Path | Url) -> bool:
        line, traces = self._lines.get(name), self.registry.state(path)
        if line is None and self._from_index(name, traces):
            return False
        if line is None or line.traces != traces:
            return True
        return line.summary.state is not None and line.summary.state.life == "live"

    def _from_index(self, name: str, etag: str) -> bool:
        """Take the summary from the index, if it is there and is valid."""
        with self._changed:
            if self._index is None:
                self._index = RunIndex(self.registry.root)
            summary = self._index.get(name, etag)
            if summary is not None:
                self._lines[name] = _Line(etag, summary, time.monotonic())
        return summary is not None

    def _read(self) -> None:
        """Read what is due until nothing is."""
        while True:
            with self._changed:
                name = next(iter(self._due), None)
                if name is None or time.monotonic() - self._saved_at > SAVE_SECONDS:
                    self._save()
                if name is None:
                    self._readers -= 1
                    self._changed.notify_all()
                    return
                path = self._due.pop(name)
            # Before the rows, so that what comes meanwhile is not missed.
            traces = self.registry.state(path)
            with suppress(Reading):  # a long one has its line when it is through
                line = _Line(traces, _summary(self.registry, name, path), time.monotonic())
                with self._changed:
                    self._lines[name] = line
                    if self._index is not None:
                        self._index.put(line.summary, traces)

    def _save(self) -> None:
        names = self.registry.names()
        if self._index is not None and self.registry.root not in names.values():
            self._index.save(names)
            self._saved_at = time.monotonic()


def _summary(registry: RunRegistry, name: str, path: Path | Url) -> Summary:
    try:
        if isinstance(path, Path) and registry.root != path and _is_short(registry, name, path):
            return read_summary(name, path, registry.root)
        snapshot = registry.snapshot(name)
    except Reading:
        raise
    except Exception as error:  # one run must not end the reader of all others
        ours = isinstance(error, LldscopeError)
        return Summary(name, name, error=str(error) if ours else f"{type(error).__name__}: {error}")
    table = snapshot.subject.table
    last = last_measured({signal: floats(table, signal) for signal in (*LAST, EVIDENCE)})
    return summarize(name, snapshot.info, snapshot.state, table, last)


def _is_short(registry: RunRegistry, name: str, path: Path) -> bool:
    """Whether to read the run for its summary alone, and keep nothing of it open."""
    if registry.last(name) is not None or registry.is_opening(name):
        return False
    return sum(part.rows for part in read_manifest(path).parts) <= SHORT
