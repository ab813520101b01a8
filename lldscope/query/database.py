"""The tables and views of a run in DuckDB, over a given list of Parquet parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ..core.schema import SIGNALS, TABLES, VIEWS, Kind, arrow_schema
from ..storage.part import Part, attempt_spans
from .sandbox import confine, quote
from .views import AFTER_ROWS, BEFORE_ROWS, ROWS, view_sql

if TYPE_CHECKING:
    import pandas as pd

# Of stored signals; DuckDB's sums of integers have 128 bits, which pandas would hold as objects.
_STORED: dict[Kind, pa.DataType] = {
    "int": pa.int32(),
    "count": pa.int64(),
    "float": pa.float64(),
    "sum": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "time": pa.float64(),
}
SQL_TYPES = {
    pa.int32(): "INTEGER",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "VARCHAR",
}
_MOST_CHUNKS = 64  # of stored signals, before they become one


class Database:
    """Signals, and an in-memory database whose tables read parts of the run directory `run`.

    The database is made when it is first asked: the verdict of a run needs its signals alone.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        # Signals are stored as pyarrow tables, in the order of steps, and DuckDB reads them there.
        self._rows = {rows: _no_rows(rows) for rows in ROWS}
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
        for rows, table in self._rows.items():
            connection.register(rows, table)
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
        """Add signals of later steps to one of ROWS."""
        stored = self._rows[rows]
        new = table.select([n for n in stored.column_names if n != "tokens_seen"])
        if len(table) > 1:
            new = new.sort_by("step")
        if "tokens_seen" in stored.column_names:
            seen = stored["tokens_seen"][-1].as_py() if len(stored) else None
            new = _with_tokens_seen(new, seen)
        stored = pa.concat_tables([stored, _sharing_nulls(new.cast(stored.schema))])
        if stored.column(0).num_chunks > _MOST_CHUNKS:
            stored = stored.combine_chunks()
        self._rows[rows], self._changed[rows] = stored, None

    def rows(self, rows: str) -> pa.Table:
        """One of ROWS as it is."""
        return self._rows[rows]

    def forget_signals(self, first_step: int = 0) -> None:
        """Delete the signals of `first_step` and later steps, if there are any."""
        for rows, table in self._rows.items():
            self._rows[rows] = table.filter(pc.less(table["step"], first_step))
            self._changed[rows] = None

    def show_signals(self) -> None:
        """Register the signals that have changed with DuckDB."""
        for rows in self._changed:
            self.connection.register(rows, self._rows[rows])
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


def _no_rows(rows: str) -> pa.Table:
    """One of ROWS without any, with the columns of its view."""
    view = VIEWS[rows.replace("_rows", "s")]
    fields = [pa.field(c.name, _STORED[c.kind]) for c in view.columns if c.name != "tokens_seen"]
    if view == SIGNALS:
        fields += [pa.field(name, pa.int64()) for name in ("n_tokens", "tokens_seen")]
    return pa.Table.from_batches([], pa.schema(fields))  # empty_table() imports pandas


def _sharing_nulls(table: pa.Table) -> pa.Table:
    """The same table; columns that were not measured, most in many runs, are one in memory."""
    nothing = pa.nulls(len(table), pa.float64())
    columns = [
        nothing if c.null_count == len(c) and c.type == nothing.type else c for c in table.columns
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _with_tokens_seen(rows: pa.Table, before: int | None) -> pa.Table:
    """Signals of steps in order, with the sum of their tokens and of those `before`; NULL as long
    as none are known."""
    tokens = rows["n_tokens"].combine_chunks().cast(pa.int64())
    seen = pc.cumulative_sum(tokens, start=before, skip_nulls=True)
    seen = pc.fill_null_forward(seen)
    return rows.append_column("tokens_seen", seen if before is None else seen.fill_null(before))


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
