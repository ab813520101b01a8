"""The signals of many short runs at once: DuckDB plans the views once and opens their files in one
scan, which is most of what a short run costs alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from .signal_engine import SignalEngine
from .views import SIGNAL_TABLES

if TYPE_CHECKING:
    from .contents import Contents

ENOUGH_ROWS = 50_000  # in a batch; half of what DuckDB answers without its optimizer
ENOUGH_RUNS = 100
MOST_ROWS = 1_000_000  # of a run in a batch


class RunBatch:
    """Runs below a folder whose signals are yet to be computed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._engine: SignalEngine | None = None
        self._waiting: dict[Contents, int] = {}  # to their rows

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    @property
    def is_full(self) -> bool:
        rows = sum(self._waiting.values())
        return rows >= ENOUGH_ROWS or len(self._waiting) >= ENOUGH_RUNS

    def takes(self, contents: Contents) -> bool:
        """Whether the signals of a run are computed here. One that was resumed, or has many rows,
        computes its own."""
        self._waiting.pop(contents, None)
        parts = contents.parts.parts
        rows = sum(part.rows for part in parts)
        if rows > MOST_ROWS or not all(part.name.owner.is_first for part in parts):
            return False
        contents.parts.fetch(SIGNAL_TABLES, -(2**31), 2**31)
        self._waiting[contents] = rows
        return True

    def compute(self) -> None:
        """Give the runs their signals. If that fails, each computes its own with its next
        refresh."""
        runs, self._waiting = [*self._waiting], {}
        if not runs:
            return
        for contents in runs:
            contents.batch = None
        self._engine = self._engine or SignalEngine(self._root)
        try:
            tables = self._engine.signals_of([(c.run, c.parts.trusted()) for c in runs])
        except duckdb.Error:  # a file of one that cannot be read
            return
        for contents, of_run in zip(runs, tables, strict=True):
            contents.accept(of_run)
