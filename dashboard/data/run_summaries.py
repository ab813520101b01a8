"""Summaries for the list of runs, read in the background, and read again only if a run changed."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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
HOLD = 5.0  # times as long as a look at all runs took, until the next one
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
        self._readers = ThreadPoolExecutor(READERS, "lldscope-summaries")
        self._reading: dict[str, Future[None]] = {}
        self._lock = threading.Lock()
        self._look_at = self._saved_at = -math.inf

    @cached_property
    def _index(self) -> RunIndex:
        return RunIndex(self.registry.root)

    def now(self, seconds: float) -> list[Summary]:
        """A line for each run. After `seconds`, runs that were not read have the line before, or
        one without state and error."""
        names = self.registry.names()
        with self._lock:
            start = time.monotonic()
            if start >= self._look_at:
                due = [n for n, p in names.items() if n not in self._reading and self._is_due(n, p)]
                # never read, or longest ago, comes first: a slow run must not starve others
                for name in sorted(due, key=self._read_at):
                    self._reading[name] = self._readers.submit(self._read, name, names[name])
                end = time.monotonic()
                self._look_at = end + HOLD * (end - start)
            reading = [*self._reading.values()]
        wait(reading, max(0.0, seconds))
        return [self._lines[n].summary if n in self._lines else Summary(n, n) for n in names]

    def _read_at(self, name: str) -> float:
        return self._lines[name].at if name in self._lines else 0.0

    def _is_due(self, name: str, path: Path | Url) -> bool:
        traces = self.registry.state(path)
        if name not in self._lines and (summary := self._index.get(name, traces)) is not None:
            self._lines[name] = _Line(traces, summary, time.monotonic())
            return False
        line = self._lines.get(name)
        if line is None or line.traces != traces:
            return True
        return line.summary.state is not None and line.summary.state.life == "live"

    def _read(self, name: str, path: Path | Url) -> None:
        """Read one run. Write the index after the last run, or after a while."""
        # Before the rows, so that later changes are not missed.
        traces = self.registry.state(path)
        line = None
        with suppress(Reading):  # a long one has its line when it is through
            line = _Line(traces, _summary(self.registry, name, path), time.monotonic())
        with self._lock:
            if line is not None:
                self._lines[name] = line
                self._index.put(line.summary, traces)
            del self._reading[name]
            if not self._reading or time.monotonic() - self._saved_at > SAVE_SECONDS:
                names = self.registry.names()
                if self.registry.root not in names.values():
                    self._index.save(names)
                    self._saved_at = time.monotonic()


def _summary(registry: RunRegistry, name: str, path: Path | Url) -> Summary:
    try:
        if (
            isinstance(path, Path) and path != registry.root and not registry.holds(name)
            and sum(part.rows for part in read_manifest(path).parts) <= SHORT
        ):
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
