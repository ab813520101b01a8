"""The signals of a range of steps, computed by a DuckDB that holds one range at a time.

Every view is a table of its own: one statement for all views takes several times as long to plan.
Actions, by far the most rows, stay in their files, where each view reads the columns it needs.

A live run asks for one small range after another, and each takes longer to plan than to compute.
Such ranges share their tables, so that the views are planned once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ..core.schema import SIGNALS, VIEWS
from ..storage.part import Part
from .database import DUCKDB_2, create_empty, in_columns, queries_of, scan, stored_columns
from .sandbox import confine, quote
from .starts import Starts
from .views import ROLLOUT_VIEWS, SIGNAL_TABLES, STEP_VIEWS, view_sql

FEW_ROWS = 100_000  # in a range: for fewer, DuckDB's optimizer and threads cost more than they save
STEPS = 1 << 32  # the number of 32-bit steps: each run of a batch has such a range


class SignalEngine:
    """Computes signals of the run directory `run`.

    It is separate from the database for queries, so that it can be closed: DuckDB keeps the memory
    of what it has dropped.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._db = duckdb.connect(":memory:")
        create_empty(self._db, SIGNAL_TABLES)
        confine(self._db, run)
        self._db.execute("SET preserve_insertion_order=false")  # no signal depends on it
        if DUCKDB_2:
            # It would group the actions of every response before it joins their class.
            self._db.execute("SET disabled_optimizers='partial_aggregate_pushdown'")
        self._db.execute(view_sql("macros"))
        # A parameter of a statement would have it planned again.
        self._db.execute("CREATE TABLE earlier AS SELECT NULL::DOUBLE AS tokens")
        self._db.execute("CREATE TABLE ends (last BIGINT, before_next BIGINT)")
        self._was_few = False  # the range whose rows the tables hold
        self._kinds: dict[str, str] = {}  # of the tables: TABLE or VIEW
        self._filled: set[str] = set()  # tables that may have rows
        self._plans: dict[str, str] = {}  # view → its SQL, as DuckDB has prepared it

    def close(self) -> None:
        self._db.close()

    def signals(
        self,
        parts: Sequence[Part],
        starts: Starts,
        first: int,
        last: int,
        tokens_before: float | None,
    ) -> Iterator[tuple[str, pa.Table]]:
        """Each of VIEWS with its measured columns from step `first` to `last`, in the order of
        steps. `parts` are the valid parts of the run, `tokens_before` the tokens of earlier steps.
        """
        parts = [p for p in parts if p.last_step >= first and p.first_step <= last]

        def rows_of(table: str) -> str:
            _, counted = queries_of(self._run, table, parts, starts)
            return f"FROM ({counted}) WHERE step BETWEEN {first} AND {last}"

        return self._signals(parts, rows_of, tokens_before, [starts.last_training_step])

    def signals_of(
        self, runs: Sequence[tuple[Path, Sequence[Part]]]
    ) -> list[dict[str, pa.Table]]:
        """The signals of each run, by VIEWS; all rows of its parts must count. An engine that does
        this does nothing else. Views know only steps, so each run gets a range of steps."""
        parts = [part for _, of_run in runs for part in of_run]
        self._db.execute("CREATE OR REPLACE TABLE files (filename VARCHAR, moved BIGINT)")
        if parts:
            files = [
                f"({quote(str(part.path(run)))}, {number * STEPS})"
                for number, (run, of_run) in enumerate(runs) for part in of_run
            ]
            self._db.execute(f"INSERT INTO files VALUES {', '.join(files)}")

        def rows_of(table: str) -> str:
            paths = [p.path(run) for run, of_run in runs for p in of_run if p.table == table]
            rows = scan(paths, "SELECT * REPLACE (step + moved AS step) FROM files JOIN")
            return in_columns(table, f"{rows} USING (filename)")

        answer: list[dict[str, pa.Table]] = [{} for _ in runs]
        ends = [Starts(of_run, {}).last_training_step for _, of_run in runs]
        for name, table in self._signals(parts, rows_of, None, ends):
            moved = table["step"].to_numpy()
            bounds = np.searchsorted(moved, STEPS * np.arange(len(runs) + 1) - STEPS // 2)
            for number, (start, end) in enumerate(pairwise(bounds.tolist())):
                of_run = table.slice(start, end - start)
                steps = pa.array(moved[start:end] - STEPS * number, "int32")
                of_run = of_run.set_column(0, "step", steps)
                measured = [c for c in of_run.column_names if of_run[c].null_count < len(of_run)]
                if measured:
                    answer[number][name] = of_run.select(measured)
        return answer

    def _signals(
        self, parts: Sequence[Part], rows_of: Callable[[str], str], tokens_before: float | None,
        ends: Sequence[int],
    ) -> Iterator[tuple[str, pa.Table]]:
        few = sum(p.rows for p in parts) <= FEW_ROWS
        follows, self._was_few = few and self._was_few, False
        if not follows:
            self._db.execute("SET threads=1" if few else "RESET threads")
            self._db.execute(f"PRAGMA {'disable' if few else 'enable'}_optimizer")
        for table in SIGNAL_TABLES:
            has_rows = any(p.table == table for p in parts)
            rows = rows_of(table) if has_rows else f"FROM empty_{table}"
            # Each use of a view binds all of its files.
            is_large = table == "actions" and not few
            self._put(table, rows, follows, has_rows, "VIEW" if is_large else "TABLE")
        before = "NULL" if tokens_before is None else repr(tokens_before)
        self._db.execute(f"UPDATE earlier SET tokens = {before}")
        of_runs = (f"({end + i * STEPS}, {i * STEPS + STEPS // 2})" for i, end in enumerate(ends))
        self._db.execute(f"DELETE FROM ends; INSERT INTO ends VALUES {', '.join(of_runs)}")
        for view in (*ROLLOUT_VIEWS, *STEP_VIEWS):
            sql = view_sql(view)
            has_rows = any(table in sql for table in self._filled)  # that it reads
            if view == "step_signals":
                sql = sql.replace("{means}", self._imported_means())
            self._put(view, sql, follows, has_rows)
        self._was_few = few
        for name in (name for name in VIEWS if f"step_{name}" in self._filled):
            columns = stored_columns(name)
            aggregates = ", ".join(f"count({column})" for column in columns)
            (counts,) = self._execute(f"count_{name}", f"SELECT {aggregates} FROM step_{name}")
            # All of DuckDB's result is in memory as long as one column of it is.
            names = [
                "step" if column == "step" else f"{column}::{kind} AS {column}"
                for (column, kind), count in zip(columns.items(), counts, strict=True)
                if count
            ]
            if names:
                rows = f"SELECT {', '.join(names)} FROM step_{name} ORDER BY step"
                yield name, self._db.sql(rows).to_arrow_table()

    def _put(self, table: str, rows: str, exists: bool, some: bool, kind: str = "TABLE") -> None:
        """Create a table with these rows. If it `exists`, replace its rows; without `some` rows,
        only remove the old ones."""
        if not exists:
            if (before := self._kinds.get(table, kind)) != kind:
                self._db.execute(f"DROP {before} {table}")
            self._kinds[table] = kind
            self._db.execute(f"CREATE OR REPLACE {kind} {table} AS {rows}")
            self._filled.add(table)
            return
        if table in self._filled:
            self._db.execute(f"TRUNCATE {table}")
            self._filled.discard(table)
        if some and self._execute(f"fill_{table}", f"INSERT INTO {table} {rows}")[0][0]:
            self._filled.add(table)

    def _execute(self, name: str, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, which is planned again only if its text has changed."""
        if self._plans.get(name) != sql:
            self._db.execute(f"PREPARE {name} AS {sql}")
            self._plans[name] = sql
        return self._db.execute(f"EXECUTE {name}").fetchall()

    def _imported_means(self) -> str:
        """For a SELECT, the signals that are among the scalars: the mean of the run's own rows, or
        else the mean imported from another trainer's log."""
        scalars = self._db.execute("SELECT DISTINCT name FROM scalars").fetchall()
        names = [c.name for c in SIGNALS.columns if c.kind == "float" and (c.name,) in scalars]
        return "".join(f"coalesce({n}, means['{n}']) AS {n},\n" for n in names)
