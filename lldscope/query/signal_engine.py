"""Computes signals in a DuckDB of its own, which holds the rows of one range of steps at a time.

It is separate from the database for queries, so that its tables can be plain ones under fixed views
and its settings can follow the size of the range. For the next step of a live run, planning costs
more than reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from ..storage.part import Part
from .database import (
    BEFORE_ROWS,
    ROWS,
    SIGNAL_TABLES,
    create_empty,
    rows_of,
    standing,
    view_sql,
)
from .sandbox import confine, quote

FEW_ROWS = 50_000  # of all tables together; up to here one thread is faster than several
# Views that several others read: materialized once per range, in this order.
SHARED = ("group_totals", "response_class", "response_likelihood")


class SignalEngine:
    """Computes signals of the run directory `run`, a range of steps at a time."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._db = duckdb.connect(":memory:")
        create_empty(self._db, SIGNAL_TABLES)
        for table in SIGNAL_TABLES:
            self._db.execute(f"CREATE TABLE {table} AS FROM empty_{table}")
        confine(self._db, run)
        self._db.execute(view_sql("macros"))
        for name in BEFORE_ROWS:
            kind = "TABLE" if name in SHARED else "VIEW"
            self._db.execute(f"CREATE {kind} {name} AS {view_sql(name)}")
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
            self._create(name, view_sql(name))
        for rows, view in ROWS.items():
            if view == "step_signals" and "scalars" not in self._filled:
                view = "step_measured"  # no imported means to fall back on
            if view != "step_probes" or "probes" in self._filled:
                self._create(rows, f"FROM {view}")
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
            self._create(table, f"{rows_of(table, paths)} {where}")
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
        for name in SHARED:
            self._create(name, view_sql(name))
        for name in ROWS:
            self._db.execute(f"DROP TABLE IF EXISTS {name}")
