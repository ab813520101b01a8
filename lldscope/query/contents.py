"""The tables and signals of a run in DuckDB, brought up to date from its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from ..storage.manifest import Manifest
from ..storage.part import Part, attempt_spans
from .database import (
    ROWS,
    SIGNAL_TABLES,
    Database,
    columns_read,
    create_empty,
    rows_of,
    standing,
    statement,
    view_sql,
)
from .part_index import PartIndex, step_ranges
from .sandbox import confine, quote

if TYPE_CHECKING:
    from .remote import RemoteCopy
    from .signal_cache import SignalCache

_T = TypeVar("_T")

CACHE_ROWS = 250_000  # new rows, at least, before the cache is written again
FEW_ROWS = 50_000  # of all tables together; up to here one thread is faster than several
# View → the table without which it is empty, and is not computed.
OPTIONAL = {"step_probes": "probes", "step_action_retention": "retention"}
# Views that several others read: materialized once per range, in this order.
SHARED = ("group_totals", "response_class", "response_likelihood")


class Contents:
    """Tables and signals of the valid parts of one run, starting from those in the `cache`."""

    def __init__(
        self, run: Path, run_id: Any, remote: RemoteCopy | None, cache: SignalCache | None
    ) -> None:
        self._id, self._cache = run_id, cache
        self._uncached_rows = 0  # rows whose signals are not in the cache
        self.parts = PartIndex(run, remote)
        self.db = Database(run)
        self._run = run
        self._defined: tuple[int, tuple[str, ...]] | None = None  # version and tables
        if cache is not None:
            self.parts.parts = cache.load(run_id, self.db)
        # The last step that has signals, if all went well.
        self._last = max((p.last_step for p in self.parts.parts), default=-(2**31))

    def reset(self, run_id: Any) -> None:
        """Start over: there is another run at the path now."""
        self._id = run_id
        self.parts.reset()
        self.db.forget_signals()

    def close(self) -> None:
        """Close the databases."""
        self.db.close()
        if "_engine" in vars(self):
            self._engine.close()

    @cached_property
    def _engine(self) -> SignalEngine:
        """Made for the first rows: signals that were cached need none."""
        return SignalEngine(self._run)

    def ingest(self, manifest: Manifest) -> bool:
        """Read what the manifests list now; True if rows or signals have changed.

        Raises duckdb.Error if the rows cannot be read at all.
        """
        self.parts.recheck_missing()
        changed = self.parts.update(manifest)
        changed = self._compute_dirty() or changed
        while self.parts.update_merged():
            changed = True
            self._compute_dirty()
        return changed

    def _compute_dirty(self) -> bool:
        """Compute signals from the first dirty step on, and check new parts; True if any was."""
        dirty = self.parts.dirty_from is not None
        if dirty:
            self.without_damaged(self._compute)
        self.parts.readable()
        return dirty

    def _compute(self) -> None:
        """Signals from the first dirty step on, from the parts that hold such steps."""
        first_step = self.parts.dirty_from or 0
        if first_step <= self._last:
            self.db.forget_signals(first_step)
        # A part that is not what its manifest says may claim any number of rows and steps.
        for first, last in step_ranges(self.parts.trusted(), first_step):
            self.parts.fetch(SIGNAL_TABLES, first, last)
            self._last = max(self._last, last)
            parts, starts = self.parts.trusted(), self.starts()
            for rows, table in self._engine.signals(parts, starts, first, last):
                self.db.put(rows, table)
        self.parts.dirty_from = None
        self._uncached_rows += sum(p.rows for p in self.parts.parts if p.last_step >= first_step)
        if self._cache is not None and self._uncached_rows >= CACHE_ROWS and not self.parts.damaged:
            self._cache.store(self._id, self.parts.parts, self.db)
            self._uncached_rows = 0

    def starts(self) -> dict[int, int]:
        """Attempt → its first step."""
        spans = attempt_spans(self.parts.trusted())
        return {attempt: first for attempt, (first, _) in spans.items()}

    def define(self, tables: tuple[str, ...]) -> None:
        """Define the tables over the rows that count, and the signals of them."""
        self.db.show_signals()
        if self._defined == (self.parts.version, tables):
            return
        self.parts.fetch(tables, -(2**31), 2**31)
        self.db.define_tables(self.parts.trusted(), tables)
        self._defined = (self.parts.version, tables)

    def without_damaged(self, action: Callable[[], _T]) -> _T:
        """Run an action that reads parts; where one cannot be read, exclude it and run it again.

        Parts that were merged meanwhile are replaced by what the manifest lists now.
        """
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
        moved = self.parts.update(self.parts.read())
        while True:
            for part in self.parts.readable():
                if wrong := self.db.read_through(part):
                    self.parts.damaged[f"{part.table}/{part.file}"] = wrong
            self._defined = None
            if not self.parts.update_merged():
                return moved or not set(self.parts.damaged) <= before
            moved = True


class SignalEngine:
    """Computes signals of the run directory `run` in a DuckDB of its own, which holds the rows of
    one range of steps at a time.

    It is separate from the database for queries, so that its tables can be plain ones and its
    settings can follow the size of the range. For the next step of a live run, planning costs more
    than reading.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._db = duckdb.connect(":memory:")
        create_empty(self._db, SIGNAL_TABLES)
        for table in SIGNAL_TABLES:
            self._db.execute(f"CREATE TABLE {table} AS FROM empty_{table}")
        confine(self._db, run)
        self._db.execute("SET preserve_insertion_order=false")  # no signal depends on it
        self._db.execute(view_sql("macros"))
        self._columns = {table: columns_read(table) for table in SIGNAL_TABLES}
        self._filled: set[str] = set()  # tables that are not empty
        self._few = False

    def close(self) -> None:
        self._db.close()

    def signals(
        self, parts: Sequence[Part], starts: Mapping[int, int], first: int, last: int
    ) -> Iterator[tuple[str, Any]]:
        """For each of ROWS a pyarrow.Table of the steps from `first` to `last`.

        `parts` are the valid ones of the run, `starts` the first step of each attempt.
        """
        wanted = [p for p in parts if p.last_step >= first and p.first_step <= last]
        self._configure(sum(p.rows for p in wanted) <= FEW_ROWS)
        for table in SIGNAL_TABLES:
            paths = [quote(str(p.path(self._run))) for p in wanted if p.table == table]
            where = standing(table, starts) or "WHERE true"
            self._load(table, paths, f"{where} AND step BETWEEN {first} AND {last}")
        for name in SHARED:
            self._create(name, statement(name, SHARED))
        for rows, view in ROWS.items():
            if view == "step_signals" and "scalars" not in self._filled:
                view = "step_measured"  # no imported means to fall back on
            if view not in OPTIONAL or OPTIONAL[view] in self._filled:
                self._create(rows, statement(view, SHARED))
                yield rows, self._db.sql(f"FROM {rows}").to_arrow_table()
        if not self._few:
            self._release()

    def _configure(self, few: bool) -> None:
        """Choose the settings for a range of few rows, or of many."""
        if few != self._few:
            self._few = few
            self._db.execute("SET threads=1" if few else "RESET threads")
            self._db.execute(f"PRAGMA {'disable' if few else 'enable'}_optimizer")

    def _load(self, table: str, paths: Sequence[str], where: str) -> None:
        """Fill a table with the rows of some files that match `where`; empty it without files."""
        if paths:
            if table == "evals":  # `standing` looks there whether an evaluation was repeated
                self._create("all_evals", rows_of(table, paths))
            self._create(table, f"{rows_of(table, paths, self._columns[table])} {where}")
            self._filled.add(table)
        elif table in self._filled:
            self._create(table, f"FROM empty_{table}")
            self._filled.remove(table)

    def _create(self, table: str, sql: str) -> None:
        self._db.execute(f"CREATE OR REPLACE TABLE {table} AS {sql}")

    def _release(self) -> None:
        """Release the memory of a range."""
        for table in SIGNAL_TABLES:
            self._load(table, [], "")
        for name in (*SHARED, *ROWS):
            self._db.execute(f"DROP TABLE IF EXISTS {name}")
