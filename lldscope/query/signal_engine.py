"""Where signals are computed: a DuckDB that holds the rows of one stretch of steps at a time.

It is apart from the database that people ask, so that its tables can be plain ones, which the views
over them find without being made anew, and its settings can follow the stretch. For a live run's
next step planning costs more than reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from ..core.schema import arrow_schema
from ..storage.part import Part
from .database import BEFORE_ROWS, ROWS, SIGNAL_TABLES, rows_of, standing, view_sql
from .sandbox import confine, quote

FEW_ROWS = 50_000  # of all tables: one thread reads them while others would be woken
# Views that several others read: made once per stretch, in this order.
SHARED = ("group_totals", "response_class", "response_likelihood")


class SignalEngine:
    """Computes the signals of stretches of the run directory `run`."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._db = duckdb.connect(":memory:")
        for table in SIGNAL_TABLES:
            self._db.register("empty", arrow_schema(table).empty_table())
            self._db.execute(f"CREATE TABLE empty_{table} AS FROM empty")
            self._db.unregister("empty")
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

        `parts` are the sound ones of the run, `starts` the first step of each attempt.
        """
        wanted = [p for p in parts if p.last_step >= first and p.first_step <= last]
        self._settle(sum(p.rows for p in wanted) <= FEW_ROWS)
        for table in SIGNAL_TABLES:
            paths = [quote(str(p.path(self._run))) for p in wanted if p.table == table]
            where = standing(table, starts) or "WHERE true"
            self._hold(table, paths, f"{where} AND step BETWEEN {first} AND {last}")
        for name in SHARED:
            self._make(name, view_sql(name))
        for rows, view in ROWS.items():
            if view == "step_signals" and "scalars" not in self._filled:
                view = "step_measured"  # there are no means of others to fall back on
            if view != "step_probes" or "probes" in self._filled:
                self._make(rows, f"FROM {view}")
                yield rows, self._db.sql(f"FROM {rows}").to_arrow_table()
        if not self._few:
            self._let_go()

    def _settle(self, few: bool) -> None:
        """Settings for a stretch of few rows, or of many."""
        if few != self._few:
            self._few = few
            self._db.execute("SET threads=1" if few else "RESET threads")
            self._db.execute(f"PRAGMA {'disable' if few else 'enable'}_optimizer")

    def _hold(self, table: str, paths: Sequence[str], where: str) -> None:
        """Have a table hold some rows of some files, or none."""
        if paths:
            self._make(table, f"{rows_of(table, paths)} {where}")
            self._filled.add(table)
        elif table in self._filled:
            self._make(table, f"FROM empty_{table}")
            self._filled.remove(table)

    def _make(self, table: str, sql: str) -> None:
        self._db.execute(f"CREATE OR REPLACE TABLE {table} AS {sql}")

    def _let_go(self) -> None:
        """Give back the memory of a stretch."""
        for table in SIGNAL_TABLES:
            self._hold(table, [], "")
        for name in SHARED:
            self._make(name, view_sql(name))
        for name in ROWS:
            self._db.execute(f"DROP TABLE IF EXISTS {name}")
