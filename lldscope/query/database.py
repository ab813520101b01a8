"""The tables and views of a run in DuckDB, over a given list of Parquet parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..core.schema import SIGNALS, TABLES, VIEWS, Kind, arrow_schema
from ..storage.part import Part, attempt_spans
from .sandbox import confine, quote
from .views import ROLLOUT_VIEWS, view_sql

# Types of stored signals that are not those of recorded columns: counts and means of many rows.
# (DuckDB's sums of integers have 128 bits, which pandas would hold as objects.)
STORED_TYPES: dict[Kind, str] = {"count": "int64", "float": "double"}
TOKENS_SEEN = "sum(n_tokens) OVER (ORDER BY step)::DOUBLE AS tokens_seen"
MOST_CHUNKS = 64  # of stored signals, before they become one


class Database:
    """Signals, and an in-memory database whose tables read parts of the run directory `run`."""

    def __init__(self, run: Path) -> None:
        self._run = run
        # Signals as pyarrow tables in the order of steps, which hold what was measured at all.
        # DuckDB reads them there.
        self._stored: dict[str, pa.Table] = {}
        # `define_tables` adds the rest.
        self.connection = duckdb.connect(":memory:")
        confine(self.connection, run)
        self.execute("SET lock_configuration=true")
        self.execute("CREATE TABLE attempts (attempt INT, first_step INT, last_step INT)")
        self.execute(view_sql("macros"))
        create_empty(self.connection, TABLES)
        for name in VIEWS:
            columns = ", ".join(f"{c} {kind}" for c, kind in stored_columns(name))
            self.execute(f"CREATE TABLE stored_{name} ({columns})")
            self._show(name)

    def execute(self, sql: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, parameters).fetchall()

    def columns(self) -> dict[str, NDArray[Any]]:
        """The signals as arrays, with NaN for NULL. Those never measured are one value each."""
        table = self._stored.get("signals")
        if table is None:
            return dict.fromkeys(SIGNALS.names, np.empty(0))
        names = [n for n in SIGNALS.names if n in {*table.column_names, "tokens_seen"}]
        arrays = self.connection.execute(f"SELECT {', '.join(names)} FROM signals").fetchnumpy()
        nothing = np.broadcast_to(np.nan, len(table))
        return dict.fromkeys(SIGNALS.names, nothing) | {n: _filled(c) for n, c in arrays.items()}

    def define_tables(self, parts: list[Part]) -> None:
        """Define tables over the valid parts, the views that read them, and `attempts`: first and
        last step of each start."""
        spans = dict(sorted(attempt_spans(parts).items()))
        starts = {attempt: first for attempt, (first, _) in spans.items()}
        self.execute("DELETE FROM attempts")
        if rows := ", ".join(f"({a}, {first}, {last})" for a, (first, last) in spans.items()):
            self.execute(f"INSERT INTO attempts VALUES {rows}")
        for table in TABLES:
            rows = define_rows(self.connection, self._run, table, parts, starts)
            self.execute(f"CREATE OR REPLACE VIEW {table} AS {rows}")
        for name in ROLLOUT_VIEWS:
            self.execute(f"CREATE OR REPLACE VIEW {name} AS {view_sql(name)}")

    def put(self, name: str, table: pa.Table) -> None:
        """Add signals of later steps, in the order of steps, to one of VIEWS."""
        if earlier := self._stored.get(name):
            table = pa.concat_tables([earlier, table], promote_options="default")
            if table.column(0).num_chunks > MOST_CHUNKS:
                table = table.combine_chunks()
        self._stored[name] = table
        self._show(name)

    def rows(self, name: str) -> pa.Table | None:
        """The measured columns of one of VIEWS; None if it has no rows."""
        return self._stored.get(name)

    def forget_signals(self, first_step: int = -(2**31)) -> None:
        """Delete the signals of `first_step` and later steps, if there are any."""
        for name in list(self._stored):
            before = f"FROM stored_{name}_rows WHERE step < {first_step}"
            self._stored[name] = self.connection.sql(before).to_arrow_table()
            self._show(name)

    def _show(self, name: str) -> None:
        """Define one of VIEWS over the signals there are now."""
        rows = f"FROM stored_{name}"
        if (table := self._stored.get(name)) is not None:
            self.connection.register(f"stored_{name}_rows", table)
            rows += f" UNION ALL BY NAME FROM stored_{name}_rows"
        names = ", ".join(TOKENS_SEEN if n == "tokens_seen" else n for n in VIEWS[name].names)
        order = "ORDER BY 1, 2, 3"  # no two rows of either share the first three columns
        self.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT {names} FROM ({rows}) {order}")

    def read_through(self, part: Part) -> str | None:
        """DuckDB's error on reading every value of a part; None if it can."""
        file = quote(str(part.path(self._run)))
        try:
            self.execute(f"SELECT max(COLUMNS(*)) FROM read_parquet({file})")
        except (duckdb.OutOfMemoryException, duckdb.InterruptException):
            raise
        except duckdb.Error as error:
            return str(error).split("\n")[0]
        return None


def _filled(column: Any) -> NDArray[Any]:
    """A column of DuckDB's result with NaN for NULL."""
    if isinstance(column, np.ma.MaskedArray):
        return np.ma.filled(column.astype(np.float64), np.nan)
    return np.asarray(column)


def stored_columns(name: str) -> list[tuple[str, str]]:
    """The stored columns of one of VIEWS, and their types in DuckDB."""
    columns = [(c.name, STORED_TYPES.get(c.kind, str(c.arrow))) for c in VIEWS[name].columns]
    return [("n_tokens", t) if c == "tokens_seen" else (c, t) for c, t in columns]


def create_empty(connection: duckdb.DuckDBPyConnection, tables: Iterable[str]) -> None:
    """Create `empty_TABLE` for each table, with its columns."""
    for table in tables:
        # DuckDB knows these types by Arrow's names too. Its `from_arrow` would load pandas.
        columns = ", ".join(f"{field.name} {field.type}" for field in arrow_schema(table))
        connection.execute(f"CREATE TABLE empty_{table} ({columns})")


def define_rows(
    connection: duckdb.DuckDBPyConnection,
    run: Path,
    table: str,
    parts: Iterable[Part],
    starts: Mapping[int, int],
) -> str:
    """Define `all_TABLE`, the rows of a table in parts of a run, and return a query for those that
    count; `starts` are the first steps of the attempts.

    The columns are the registry's: those that a part lacks are NULL, those that this version does
    not know are ignored.
    """
    columns = ", ".join(TABLES[table].names)
    paths = ", ".join(quote(str(p.path(run))) for p in parts if p.table == table)
    parquet = f"read_parquet([{paths}], union_by_name=true)"
    union = f"UNION ALL BY NAME FROM {parquet}" if paths else ""
    rows = f"SELECT {columns} FROM (FROM empty_{table} {union})"
    connection.execute(f"CREATE OR REPLACE VIEW all_{table} AS {rows}")
    return f"FROM all_{table} {_standing(table, starts)}"


def _standing(table: str, starts: Mapping[int, int]) -> str:
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
