"""Summaries for the list of runs: read in the background, and again only if a run changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lldscope.core import palette
from lldscope.core.charts import EVIDENCE
from lldscope.core.errors import LldscopeError
from lldscope.monitor.health import RunState
from lldscope.query.remote import Url, traces

from ..figures.series import Numbers, floats, make_sparkline
from .run_registry import Reading, RunRegistry

READERS = 2  # runs that are read at the same time
LAST = ("reward", "success", "delta_correct", "correct_logp", "entropy", "grad_norm", "kl", "lr",
        EVIDENCE)  # fmt: skip
LATE = 20  # steps over which the list's order by reward and Δ is taken


@dataclass(frozen=True)
class Summary:
    """A line of the run list. `name` is its address, `title` what people call it. `state` is None
    and `error` says why where it cannot be read.

    `sparks` are pictures of reward and Δ; empty where nothing was measured. `last` are the last
    measured values of LAST.
    """

    name: str
    title: str
    group: str | None = None
    state: RunState | None = None
    last_time: float | None = None
    reward: float | None = None  # mean of the last steps
    delta: float | None = None
    sparks: tuple[str, str] = ("", "")
    last: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Line:
    """A summary, the files it was read from, and when."""

    traces: tuple[Any, ...]
    summary: Summary
    at: float


class RunSummaries:
    """A summary of each run of a registry."""

    def __init__(self, registry: RunRegistry) -> None:
        self.registry = registry
        self._lines: dict[str, _Line] = {}
        self._due: dict[str, Any] = {}  # name → path of what must be read
        self._readers = 0
        self._changed = threading.Condition()

    def now(self, seconds: float) -> list[Summary | str]:
        """A line per run; the one before, or just the name, where `seconds` were over by then."""
        names = self.registry.names()
        due = {n: p for n, p in names.items() if self._is_due(n, p)}
        end = time.monotonic() + seconds
        with self._changed:
            # what was never read, or longest ago, comes first: a slow run must not starve others
            self._due = dict(sorted(due.items(), key=lambda pair: self._read_at(pair[0])))
            while seconds > 0 and self._due and self._readers < READERS:
                self._readers += 1
                threading.Thread(target=self._read, name="lldscope-summaries", daemon=True).start()
            while (self._due or self._readers) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return [self._lines[n].summary if n in self._lines else n for n in names]

    def _read_at(self, name: str) -> float:
        return self._lines[name].at if name in self._lines else 0.0

    def _is_due(self, name: str, path: Path | Url) -> bool:
        line = self._lines.get(name)
        if line is None or line.traces != _traces(path):
            return True
        return line.summary.state is not None and line.summary.state.life == "live"

    def _read(self) -> None:
        """Read what is due until nothing is."""
        while True:
            with self._changed:
                name = next(iter(self._due), None)
                if name is None:
                    self._readers -= 1
                    self._changed.notify_all()
                    return
                path = self._due.pop(name)
            seen = _traces(path)  # before the rows, so that what comes meanwhile is not missed
            with suppress(Reading):  # a long one has its line when it is through
                line = _Line(seen, _summary(self.registry, name), time.monotonic())
                with self._changed:
                    self._lines[name] = line


def _summary(registry: RunRegistry, name: str) -> Summary:
    try:
        snapshot = registry.snapshot(name)
    except Reading:
        raise
    except Exception as error:  # one run must not end the reader of all others
        known = isinstance(error, LldscopeError)
        return Summary(
            name, name, error=str(error) if known else f"{type(error).__name__}: {error}"
        )
    table = snapshot.subject.table
    reward, delta = floats(table, "reward"), floats(table, "delta_correct")
    return Summary(
        name,
        snapshot.title,
        snapshot.info.get("group"),
        snapshot.state,
        snapshot.last_time,
        _late(reward),
        _late(delta),
        (make_sparkline(reward, palette.GREEN), make_sparkline(delta, palette.BLUE)),
        _last(table),
        tags=tuple(snapshot.info.get("tags") or ()),
    )


def _last(table: pd.DataFrame) -> dict[str, float]:
    found = {name: floats(table, name) for name in LAST}
    known = {name: values[np.isfinite(values)] for name, values in found.items()}
    return {name: float(values[-1]) for name, values in known.items() if len(values)}


def _late(values: Numbers) -> float | None:
    """Mean of the last LATE measured steps."""
    known = values[np.isfinite(values)][-LATE:]
    return float(known.mean()) if len(known) else None


def _traces(path: Path | Url) -> tuple[Any, ...]:
    """What changes on disk when a run does."""
    if isinstance(path, Url):
        with suppress(LldscopeError):
            return traces(path)
        return ()
    files = [
        path / "run.json",
        path / "notes.jsonl",
        path / "heartbeat",
        *sorted((path / "manifest").glob("*.jsonl")),
    ]
    found = []
    for file in files:
        with suppress(OSError):  # it may vanish meanwhile
            found.append((file.name, file.stat().st_mtime_ns, file.stat().st_size))
    return tuple(found)
