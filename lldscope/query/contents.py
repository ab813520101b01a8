"""The tables and signals of a run in DuckDB, brought up to date from its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from ..core.schema import TABLES
from ..storage.manifest import Manifest
from .database import Database
from .part_index import PartIndex, step_ranges
from .remote import RemoteCopy
from .signal_cache import SignalCache
from .signal_engine import SignalEngine
from .starts import Starts, sizes_of
from .views import SIGNAL_TABLES

_T = TypeVar("_T")
Info = Mapping[str, Any]  # what run.json holds

CACHE_ROWS = 250_000  # new rows, at least, before the cache is written again
ENOUGH_ROWS = 50_000  # in a batch; half of what DuckDB answers without its optimizer
ENOUGH_RUNS = 100
MOST_ROWS = 1_000_000  # of a run in a batch


class Contents:
    """Tables and signals of the valid parts of one run. The first signals come from the `cache`;
    without a cached entry, a `batch` may compute them."""

    def __init__(
        self, run: Path, info: Info, remote: RemoteCopy | None, cache: SignalCache | None,
        batch: RunBatch | None = None,
    ) -> None:
        self._id, self._cache = info.get("id"), cache
        self._uncached_rows = 0  # rows whose signals are not in the cache
        self.parts = PartIndex(run, remote)
        self.db = Database(run)
        self.run, self.batch = run, batch
        self._engine: SignalEngine | None = None
        self._defined: int | None = None  # version of the parts over which tables are defined
        if cache is not None:
            self.parts.parts = cache.load(self._id, self.db)
        self._sizes = sizes_of(info)
        starts = Starts(self.parts.parts, self._sizes)
        # The state of the run from which the signals were computed.
        self._limits, self._last_training_step = starts.limits, starts.last_training_step
        self._starts: tuple[object, Starts] = None, starts  # state of the parts → their recorders
        # The last step that has signals, if all went well.
        self._last = max((p.last_step for p in self.parts.parts), default=-(2**31))

    def close(self) -> None:
        self.db.close()
        if self._engine is not None:
            self._engine.close()

    def reset(self, info: Info) -> None:
        """Start over: there is another run at the path now."""
        self._id, self._limits = info.get("id"), {}
        self.parts.reset()
        self.db.forget_signals()

    def ingest(self, manifest: Manifest, info: Info) -> bool:
        """Take over the parts that the manifests list now; True if rows or signals have changed.
        Raises duckdb.Error if the rows cannot be read at all."""
        self._sizes = sizes_of(info)
        self.parts.recheck_missing()
        has_changed = self.parts.update(manifest)
        has_changed = self._compute_dirty() or has_changed
        while self.parts.update_merged():
            has_changed = True
            self._compute_dirty()
        return has_changed

    def _compute_dirty(self) -> bool:
        """Compute signals from the first dirty step on, and check new parts. True if a step was
        dirty."""
        limits = self.starts().limits
        for key in limits.keys() | self._limits.keys():
            if limits.get(key) != self._limits.get(key):
                steps = (limits.get(key), self._limits.get(key))
                self.parts.mark_dirty(min(step for step in steps if step is not None))
        self._limits = limits
        dirty = self.parts.dirty_from is not None
        if dirty and not (self.batch and self.batch.takes(self)):
            self.without_damaged(self._compute)
        self.parts.readable()
        return dirty

    def _compute(self) -> None:
        """Compute signals from the first dirty step on."""
        first_step = self.parts.dirty_from or 0
        if (n := self._training_rows()) < len(steps := self.db.columns()["step"]):
            first_step = min(first_step, steps[n].as_py())
        if first_step <= self._last:
            self.db.forget_signals(first_step)
        engine, self._engine = self._engine or SignalEngine(self.run), None
        with ExitStack() as stack:
            stack.callback(engine.close)
            # A part that is not what its manifest says may claim any number of rows and steps.
            for first, last in step_ranges(self.parts.trusted(), first_step):
                self.parts.fetch(SIGNAL_TABLES, first, last)
                self._last = max(self._last, last)
                parts, starts = self.parts.trusted(), self.starts()
                tokens = self.db.tokens_seen()
                for name, table in engine.signals(parts, starts, first, last, tokens):
                    self.db.put(name, table)
            rows = sum(p.rows for p in self.parts.parts if p.last_step >= first_step)
            if rows < CACHE_ROWS:  # a live run: it hardly keeps any memory
                stack.pop_all()
                self._engine = engine
        self._settle()
        self._uncached_rows += rows
        if self._cache is not None and self._uncached_rows >= CACHE_ROWS and not self.parts.damaged:
            self._cache.store(self._id, self.parts.parts, self.db)
            self._uncached_rows = 0

    def _settle(self) -> None:
        self.parts.dirty_from = None
        self._last_training_step = self.starts().last_training_step

    def _training_rows(self) -> int:
        """The number of rows of signals up to the last step that was trained."""
        steps = self.db.columns()["step"]
        n = len(steps)
        while n and steps[n - 1].as_py() > self._last_training_step:
            n -= 1
        return n

    def trained_columns(self) -> dict[str, Any]:
        """The signals up to the last step that was trained. A later row is of an evaluation, and of
        no step."""
        n = self._training_rows()
        return {name: column[:n] for name, column in self.db.columns().items()}

    def accept(self, tables: Mapping[str, pa.Table]) -> None:
        """Take over the signals of all rows from a batch."""
        for name, table in tables.items():
            self.db.put(name, table)
        self._last = max((p.last_step for p in self.parts.parts), default=self._last)
        self._settle()

    def starts(self) -> Starts:
        """The recorders of the run, as of now."""
        parts = self.parts.trusted()
        if (self.parts.state, self._sizes) != self._starts[0]:
            self._starts = (self.parts.state, self._sizes), Starts(parts, self._sizes)
        return self._starts[1]

    def define(self) -> None:
        """Define the tables over the rows that count."""
        if self._defined == self.parts.version:
            return
        self.parts.fetch(tuple(TABLES), -(2**31), 2**31)
        self.db.define_tables(self.parts.trusted(), self.starts())
        self._defined = self.parts.version

    def without_damaged(self, action: Callable[[], _T]) -> _T:
        """Run an action that reads parts. If a part cannot be read, exclude the part and run the
        action again. Parts that were merged meanwhile give way to those the manifest lists now."""
        while True:
            try:
                return action()
            except (duckdb.OutOfMemoryException, duckdb.InterruptException):
                raise
            except duckdb.Error:
                if not self._find_damage():
                    raise

    def _find_damage(self) -> bool:
        """Look for unreadable parts; True if there are new ones or the manifest has changed."""
        before = set(self.parts.damaged)
        has_changed = self.parts.update(self.parts.read())
        while True:
            for part in self.parts.readable():
                if wrong := self.db.read_through(part):
                    self.parts.damaged[part.place] = wrong
            self._defined = None
            if not self.parts.update_merged():
                return has_changed or not set(self.parts.damaged) <= before
            has_changed = True


class RunBatch:
    """Short runs below a folder, whose signals are computed together: for a short run alone, most
    of the time is DuckDB's planning."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._engine: SignalEngine | None = None
        self._waiting: dict[Contents, int] = {}  # run → its number of rows

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    @property
    def is_full(self) -> bool:
        rows = sum(self._waiting.values())
        return rows >= ENOUGH_ROWS or len(self._waiting) >= ENOUGH_RUNS

    def takes(self, contents: Contents) -> bool:
        """Whether the batch computes the signals of a run. A run that was resumed, or has many
        rows, computes its own."""
        self._waiting.pop(contents, None)
        parts = contents.parts.parts
        rows = sum(part.rows for part in parts)
        if rows > MOST_ROWS or not all(part.name.owner.is_first for part in parts):
            return False
        contents.parts.fetch(SIGNAL_TABLES, -(2**31), 2**31)
        self._waiting[contents] = rows
        return True

    def compute(self) -> None:
        """Compute the signals of the runs. If this fails, each run computes its own at its next
        refresh."""
        runs, self._waiting = [*self._waiting], {}
        if not runs:
            return
        for contents in runs:
            contents.batch = None
        self._engine = self._engine or SignalEngine(self._root)
        try:
            tables = self._engine.signals_of([(c.run, c.parts.trusted()) for c in runs])
        except duckdb.Error:  # some file cannot be read
            return
        for contents, of_run in zip(runs, tables, strict=True):
            contents.accept(of_run)
