"""What the parts of a run hold: its tables and signals in DuckDB, kept up with its writers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from ..storage.manifest import Manifest
from ..storage.part import attempt_spans
from .database import SIGNAL_TABLES, Database
from .part_index import PartIndex
from .signal_engine import SignalEngine
from .step_ranges import step_ranges

if TYPE_CHECKING:
    from .remote import RemoteCopy
    from .signal_cache import SignalCache

_T = TypeVar("_T")

KEEP_ROWS = 250_000  # new rows, at least, whose signals are worth keeping


class Contents:
    """Tables and signals of the sound parts of one run; signals that are `kept` are taken up."""

    def __init__(
        self, run: Path, run_id: Any, mirror: RemoteCopy | None, kept: SignalCache | None
    ) -> None:
        self._id, self._kept = run_id, kept
        self._unkept = 0  # rows whose signals are not kept yet
        self.parts = PartIndex(run, mirror)
        self.db = Database(run)
        self._bench = SignalEngine(run)
        self._defined: tuple[int, tuple[str, ...]] | None = None  # what the tables show, and which
        if kept is not None:
            self.parts.parts = kept.take(run_id, self.db)
        # The last step that has signals, if all went well.
        self._last = max((p.last_step for p in self.parts.parts), default=-(2**31))

    def forget(self, run_id: Any) -> None:
        """Begin anew: another run lies here now."""
        self._id = run_id
        self.parts.forget()
        self.db.forget_signals()

    def close(self) -> None:
        """Let go of the databases."""
        self.db.connection.close()
        self._bench.close()

    def take_up(self, manifest: Manifest) -> bool:
        """Take up what the manifests list now; True if rows or signals have changed.

        Raises duckdb.Error if the rows cannot be read at all.
        """
        self.parts.look_again()
        changed = self.parts.take(manifest)
        changed = self._catch_up() or changed
        while self.parts.take_merged():
            changed = True
            self._catch_up()
        return changed

    def _catch_up(self) -> bool:
        """Compute the signals that are owed and look at parts not seen before; True if any were."""
        owed = self.parts.owed is not None
        if owed:
            self.guarded(self._compute)
        self.parts.sound()
        return owed

    def _compute(self) -> None:
        """Signals of the steps that are owed, from the parts that hold such steps."""
        first_step = self.parts.owed or 0
        if first_step <= self._last:
            self.db.forget_signals(first_step)
        # A part that is not what its manifest says may claim any number of rows and steps.
        for first, last in step_ranges(self.parts.believed(), first_step):
            self.parts.bring(SIGNAL_TABLES, first, last)
            self._put(first, last)
        self.parts.owed = None
        self._unkept += sum(p.rows for p in self.parts.parts if p.last_step >= first_step)
        if self._kept is not None and self._unkept >= KEEP_ROWS and not self.parts.damaged:
            self._kept.keep(self._id, self.parts.parts, self.db)
            self._unkept = 0

    def _put(self, first: int, last: int) -> None:
        """Compute the signals of a stretch of steps anew."""
        self._last = max(self._last, last)
        for rows, table in self._bench.signals(self.parts.believed(), self.starts(), first, last):
            self.db.put(rows, table)

    def starts(self) -> dict[int, int]:
        """Attempt → its first step."""
        spans = attempt_spans(self.parts.believed())
        return {attempt: first for attempt, (first, _) in spans.items()}

    def define(self, tables: tuple[str, ...]) -> None:
        """Have the tables show the rows that count, and the signals of them."""
        self.db.show_signals()
        if self._defined == (self.parts.version, tables):
            return
        self.parts.bring(tables, -(2**31), 2**31)
        self.db.define_tables(self.parts.believed(), tables)
        self._defined = (self.parts.version, tables)

    def guarded(self, action: Callable[[], _T]) -> _T:
        """Do something that reads parts; if one cannot be read, name it, leave it out, do it again.

        Parts that were merged away meanwhile are taken from the manifest anew.
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
        moved = self.parts.take(self.parts.read())
        while True:
            for part in self.parts.sound():
                if wrong := self.db.read_through(part):
                    self.parts.damaged[f"{part.table}/{part.file}"] = wrong
            self._defined = None
            if not self.parts.take_merged():
                return moved or not set(self.parts.damaged) <= before
            moved = True
