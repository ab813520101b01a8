"""The tables and views of a run in DuckDB, over a given list of Parquet parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from ..core.schema import TABLES, arrow_schema
from ..storage.part import Part, attempt_spans
from .sandbox import confine, quote
from .signal_rows import SignalRows
from .views import AFTER_ROWS, BEFORE_ROWS, ROWS, view_sql

if TYPE_CHECKING:
    import pandas as pd

SQL_TYPES = {
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "VARCHAR",
}


class Database:
    """Signals, and an in-memory database whose tables read parts of the run directory `run`.

    The database is made when it is first asked: the verdict of a run needs its signals alone.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        # Signals are stored as pyarrow tables, in the order of steps, and DuckDB reads them there.
        self._signals = SignalRows()
        self._changed = dict.fromkeys(ROWS)  # those that have changed since DuckDB read them
        self._is_open = False

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The database, with every table (without rows) and every view."""
        connection = duckdb.connect(":memory:")
        create_empty(connection, TABLES)
        confine(connection, self._run)
        connection.execute("SET lock_configuration=true")
        connection.execute("CREATE TABLE attempts (attempt INT, first_step INT, last_step INT)")
        for table in TABLES:
            connection.execute(f"CREATE VIEW all_{table} AS {rows_of(table, [])}")
            connection.execute(f"CREATE VIEW {table} AS FROM all_{table}")
        connection.execute(view_sql("macros"))
        for name in BEFORE_ROWS:
            connection.execute(f"CREATE VIEW {name} AS {view_sql(name)}")
        for rows in ROWS:
            connection.register(rows, self._signals[rows])
        for name in AFTER_ROWS:
            connection.execute(f"CREATE VIEW {name} AS {view_sql(name)}")
        self._is_open = True
        return connection

    def close(self) -> None:
        if self._is_open:
            self.connection.close()

    def interrupt(self) -> None:
        """Stop what the database is doing for another thread."""
        if self._is_open:
            self.connection.interrupt()

    def execute(self, sql: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, parameters).fetchall()

    def frame(self, sql: str) -> pd.DataFrame:
        self.show_signals()
        return self.connection.execute(sql).df()

    def define_tables(self, parts: list[Part], tables: Sequence[str]) -> None:
        """Define tables over the valid parts, and `attempts`: first and last step of each start."""
        spans = dict(sorted(attempt_spans(parts).items()))
        starts = {attempt: first for attempt, (first, _) in spans.items()}
        self.execute("DELETE FROM attempts")
        if rows := ", ".join(f"({a}, {first}, {last})" for a, (first, last) in spans.items()):
            self.execute(f"INSERT INTO attempts VALUES {rows}")
        for table in tables:
            paths = [quote(str(p.path(self._run))) for p in parts if p.table == table]
            self.execute(f"CREATE OR REPLACE VIEW all_{table} AS {rows_of(table, paths)}")
            where = standing(table, starts)
            self.execute(f"CREATE OR REPLACE VIEW {table} AS FROM all_{table} {where}")

    def put(self, rows: str, table: pa.Table) -> None:
        """Add signals of later steps, in the order of steps, to one of ROWS."""
        self._signals.add(rows, table)
        self._changed[rows] = None

    def rows(self, rows: str) -> pa.Table:
        """One of ROWS as it is."""
        return self._signals[rows]

    def forget_signals(self, first_step: int = -(2**31)) -> None:
        """Delete the signals of `first_step` and later steps, if there are any."""
        self._signals.forget(first_step)
        self._changed = dict.fromkeys(ROWS)

    def show_signals(self) -> None:
        """Register the signals that have changed with DuckDB."""
        for rows in self._changed:
            self.connection.register(rows, self._signals[rows])
        self._changed.clear()

    def read_through(self, part: Part) -> str | None:
        """DuckDB's error on reading every value of a part; None if it can."""
        file = quote(str(part.path(self._run)))
        connection = self.connection  # an error in making it is not the part's
        try:
            connection.execute(f"SELECT max(COLUMNS(*)) FROM read_parquet({file})").fetchall()
        except (duckdb.OutOfMemoryException, duckdb.InterruptException):
            raise
        except duckdb.Error as error:
            return str(error).split("\n")[0]
        return None


def create_empty(connection: duckdb.DuckDBPyConnection, tables: Iterable[str]) -> None:
    """Create `empty_TABLE` for each table, with its columns."""
    for table in tables:
        columns = ", ".join(f"{f.name} {SQL_TYPES[f.type]}" for f in arrow_schema(table))
        connection.execute(f"CREATE TABLE empty_{table} ({columns})")


def rows_of(table: str, paths: Sequence[str], names: Sequence[str] = ()) -> str:
    """A query for all rows of a table in some files, given as SQL texts.

    The columns are the registry's, or those of `names`: those that a part lacks are NULL, those
    that this version does not know are ignored.
    """
    columns = ", ".join(names or TABLES[table].names)
    parquet = f"read_parquet([{', '.join(paths)}], union_by_name=true)"
    union = f"UNION ALL BY NAME FROM {parquet}" if paths else ""
    return f"SELECT {columns} FROM (FROM empty_{table} {union})"


def standing(table: str, starts: Mapping[int, int]) -> str:
    """The clause for rows that were not superseded: no later attempt began at or before their step.

    An evaluation at step s is of the policy with which step s begins. An attempt that resumes at s
    resumes with that policy, so the evaluation still counts, unless the attempt repeated it.
    """
    superseded = []
    for attempt, first in starts.items():
        since = f"step >= {first}"
        if table in ("evals", "eval_questions"):
            again = f"SELECT 1 FROM all_{table} WHERE attempt = {attempt} AND step = {first}"
            since = f"(step > {first} OR step = {first} AND EXISTS ({again}))"
        superseded.append(f"(attempt < {attempt} AND {since})")
    return f"WHERE NOT ({' OR '.join(superseded)})" if len(superseded) > 1 else ""
