"""The tables and views of a run in DuckDB, over a given list of Parquet parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ..core.schema import SIGNALS, TABLES, VIEWS, Kind, arrow_schema
from ..storage.part import Part
from .sandbox import confine, quote
from .starts import Starts
from .views import ROLLOUT_VIEWS, view_sql

# Types of stored signals that are not those of recorded columns: counts and means of many rows.
# (DuckDB's sums of integers have 128 bits, which pandas would hold as objects.)
STORED_TYPES: dict[Kind, str] = {"count": "int64", "float": "double"}
MOST_CHUNKS = 64  # of stored signals, before the last quarter becomes one
DUCKDB_2 = int(duckdb.__version__.split(".")[0]) >= 2


class Database:
    """Signals, and an in-memory database whose tables read parts of the run directory `run`."""

    def __init__(self, run: Path) -> None:
        self._run = run
        # Measured signals in the order of steps; DuckDB reads these tables where they are.
        self._stored: dict[str, pa.Table] = {}
        self.cuts: list[int] = []  # each time signals were replaced: the first row replaced
        self._connection: duckdb.DuckDBPyConnection | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The database, opened at first use: a verdict needs none, unless the run has scalars."""
        if self._connection is None:
            connection = duckdb.connect(":memory:")
            confine(connection, self._run)
            connection.execute("SET lock_configuration=true")
            connection.execute(
                "CREATE TABLE attempts (attempt INT, rank INT, start INT, first_step INT,"
                " last_step INT, given_up_from INT)"
            )
            connection.execute(view_sql("macros"))
            create_empty(connection, TABLES)
            for name in VIEWS:
                columns = ", ".join(map(" ".join, stored_columns(name).items()))
                connection.execute(f"CREATE TABLE stored_{name} ({columns})")
            self._connection = connection
            for name in VIEWS:
                self._show(name)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def interrupt(self) -> None:
        if self._connection is not None:
            self._connection.interrupt()

    def execute(self, sql: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, parameters).fetchall()

    def columns(self) -> dict[str, Any]:
        """The signals, NULL where they were not measured; NaN where they never were."""
        table = self._stored.get("signals")
        if not table:
            return dict.fromkeys(SIGNALS.names, np.empty(0))
        nothing = np.broadcast_to(np.nan, len(table))
        stored = dict(zip(table.column_names, table.columns, strict=True))
        return dict.fromkeys(SIGNALS.names, nothing) | stored

    def define_tables(self, parts: list[Part], starts: Starts) -> None:
        """Define tables over the valid parts, the views that read them, and `attempts`: the steps
        that each recorder recorded, and the step from which its rows were given up."""
        self.execute("DELETE FROM attempts")
        if rows := ", ".join(
            f"({', '.join(map(str, owner))}, {first}, {last}, "
            f"{starts.limits.get(owner[:2], 'NULL')})"
            for owner, (first, last) in starts.spans.items()
        ):
            self.execute(f"INSERT INTO attempts VALUES {rows}")
        for table in TABLES:
            every, counted = queries_of(self._run, table, parts, starts)
            rows = f"FROM all_{table}" if counted == every else counted
            self.execute(f"CREATE OR REPLACE VIEW all_{table} AS {every}")
            self.execute(f"CREATE OR REPLACE VIEW {table} AS {rows}")
        for name in ROLLOUT_VIEWS:
            self.execute(f"CREATE OR REPLACE VIEW {name} AS {view_sql(name)}")

    def put(self, name: str, table: pa.Table) -> None:
        """Add signals of later steps, in the order of steps, to one of VIEWS."""
        if earlier := self._stored.get(name):
            table = pa.concat_tables([earlier, table], promote_options="default")
            if table.column(0).num_chunks > MOST_CHUNKS:  # all would be as much again
                row = sum(map(len, table.column(0).chunks[: 3 * MOST_CHUNKS // 4]))
                later = table.slice(row).combine_chunks()
                table = pa.concat_tables([table.slice(0, row), later])
        self._stored[name] = table
        self._show(name)

    def tokens_seen(self) -> float | None:
        """The tokens seen up to the last step; None if no tokens were ever counted."""
        table = self._stored.get("signals")
        if not table or "tokens_seen" not in table.column_names:
            return None
        value: float | None = table["tokens_seen"][-1].as_py()
        return value

    def rows(self, name: str) -> pa.Table | None:
        """The measured columns of one of VIEWS; None if it has no rows."""
        return self._stored.get(name)

    def forget_signals(self, first_step: int = -(2**31)) -> None:
        """Delete the signals of `first_step` and later steps, if there are any."""
        for name, table in self._stored.items():
            row = int(np.searchsorted(table["step"].to_numpy(), first_step))
            self._stored[name] = table.slice(0, row)
            if name == "signals":
                self.cuts.append(row)
            self._show(name)

    def _show(self, name: str) -> None:
        """Define one of VIEWS over the signals there are now, once somebody queries."""
        if self._connection is None:
            return
        rows = f"FROM stored_{name}"
        if (table := self._stored.get(name)) is not None:
            self._connection.register(f"stored_{name}_rows", table)
            columns = ", ".join(map(_comparable, table.schema))
            rows += f" UNION ALL BY NAME SELECT {columns} FROM stored_{name}_rows"
        order = "ORDER BY 1, 2, 3"  # no two rows of either share the first three columns
        self.execute(f"CREATE OR REPLACE VIEW {name} AS FROM ({rows}) {order}")

    def read_through(self, part: Part) -> str | None:
        """DuckDB's error on reading every value of a part; None if it can."""
        file = quote(str(part.path(self._run)))
        try:
            # Bounds would answer for a mere max(COLUMNS(*)).
            self.execute(f"SELECT max(hash(COLUMNS(*))) FROM read_parquet({file})")
        except (duckdb.OutOfMemoryException, duckdb.InterruptException):
            raise
        except duckdb.Error as error:
            return str(error).split("\n")[0]
        return None


def stored_columns(name: str) -> dict[str, str]:
    """The columns of one of VIEWS, and their types in DuckDB."""
    return {c.name: STORED_TYPES.get(c.kind, c.arrow) for c in VIEWS[name].columns}


def create_empty(connection: duckdb.DuckDBPyConnection, tables: Iterable[str]) -> None:
    """Create `empty_TABLE` for each table, with its columns."""
    for table in tables:
        # DuckDB knows these types by Arrow's names too. Its `from_arrow` would load pandas.
        columns = ", ".join(f"{field.name} {field.type}" for field in arrow_schema(table))
        connection.execute(f"CREATE TABLE empty_{table} ({columns})")


def scan(paths: Iterable[Path], select: str = "FROM") -> str:
    """A query for the rows of Parquet files. Parts of earlier versions state bounds of floats that
    leave NaN out (`part.columns_without_floats`); `can_have_nan` tells DuckDB not to trust them."""
    nan = ", can_have_nan=true" if DUCKDB_2 else ""
    files = ", ".join(quote(str(path)) for path in paths)
    return f"{select} read_parquet([{files}], union_by_name=true{nan})"


def in_columns(table: str, *queries: str) -> str:
    """A query for the rows of other queries, with the columns that the registry gives the table. A
    column that a part lacks is NULL; a column that this version does not know is ignored."""
    columns = ", ".join(map(_comparable, arrow_schema(table)))
    union = "".join(f" UNION ALL BY NAME ({query})" for query in queries)
    return f"SELECT {columns} FROM (FROM empty_{table}{union})"


def queries_of(
    run: Path, table: str, parts: Sequence[Part], starts: Starts
) -> tuple[str, str]:
    """Queries for all rows of a table in parts of a run, and for those that count."""
    every = [p.path(run) for p in parts if p.table == table]
    everything = in_columns(table, *([scan(every)] if every else []))
    groups = list(starts.groups(table, parts))
    if sum(len(g.parts) for g in groups if g.is_whole) == len(every):
        return everything, everything
    queries = []
    for group in groups:
        conditions = [] if group.limit is None else [f"step < {group.limit}"]
        if group.replaced:
            again = scan((p.path(run) for p in group.replaced), "SELECT step FROM")
            conditions.append(f"step NOT IN ({again})")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        queries.append(scan(p.path(run) for p in group.parts) + where)
    return everything, in_columns(table, *queries)


def _comparable(column: pa.Field) -> str:
    """A column for a SELECT. DuckDB 1 leaves the comparison of a stored column to a file's bounds
    or to pyarrow, which know no NaN. It compares a computed column itself, and x − 0 is x, for −0
    and NaN as well."""
    is_float = pa.types.is_floating(column.type)
    return f"{column.name} - 0 AS {column.name}" if is_float and not DUCKDB_2 else column.name
