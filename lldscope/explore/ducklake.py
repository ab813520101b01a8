"""Tables and views of a run as tables of a DuckLake, beside those of other runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import LldscopeError
from ..query.sandbox import quote
from .export import ROW_GROUP, wanted_tables

if TYPE_CHECKING:
    import duckdb

    from ..runs import Run

SCHEMA = "lldscope"
RUN = "run_id"  # the column that tells runs apart


def export_to_ducklake(
    run: Run, catalog: str, tables: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Write each table into the lake's schema `lldscope`, in the place of what it had of this run;
    returns table and rows of each. All of it is one snapshot of the lake, or none.

    catalog: what DuckDB attaches after `ducklake:`, a file or a database such as `postgres:…`.
    Without `tables`: every table and signal view that has rows. Raises UsageError for an unknown
    table, LldscopeError if the lake cannot be written or DuckDB lacks its extension.
    """
    import duckdb

    names = wanted_tables(tables)
    if tables is None:
        names = [name for name in names if len(run.sql(f"SELECT 1 FROM {name} LIMIT 1"))]
    key = str(run.info.get("id") or run.place)
    with duckdb.connect() as connection:
        _load(connection)
        try:
            connection.execute(f"ATTACH {quote(f'ducklake:{catalog}')} AS lake")
            connection.execute("BEGIN")
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS lake.{SCHEMA}")
            exports = [_write(connection, run, name, key) for name in names]
            connection.execute("COMMIT")
        except duckdb.Error as error:
            raise LldscopeError(f"The lake cannot be written: {error}") from error
    return exports


def _load(connection: duckdb.DuckDBPyConnection) -> None:
    import duckdb

    try:
        connection.execute("LOAD ducklake")  # DuckDB installs it where it may
    except duckdb.Error as error:
        raise LldscopeError(
            f"DuckDB {duckdb.__version__} cannot load its extension ducklake. Run INSTALL ducklake "
            "in DuckDB where the internet is reached, or see docs/store.md for packages that hold "
            "it."
        ) from error


def _write(connection: duckdb.DuckDBPyConnection, run: Run, name: str, key: str) -> dict[str, Any]:
    table = f"lake.{SCHEMA}.{name}"
    with run.pieces(name, ROW_GROUP) as pieces:
        connection.register("empty", pieces.schema.empty_table())
        select = f"SELECT {quote(key)} AS {RUN}, * FROM empty"
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table} AS {select}")
        for column, kind in _columns(connection, f"({select})"):
            connection.execute(
                f'ALTER TABLE {table} ADD COLUMN IF NOT EXISTS "{column}" {kind}'
            )  # a later version measures more
        connection.execute(f"DELETE FROM {table} WHERE {RUN} = ?", [key])
        connection.register("pieces", pieces)
        rows = connection.execute(
            f"INSERT INTO {table} BY NAME SELECT {quote(key)} AS {RUN}, * FROM pieces"
        ).fetchall()[0][0]
        connection.unregister("pieces")
    return {"table": f"{SCHEMA}.{name}", "rows": rows}


def _columns(connection: duckdb.DuckDBPyConnection, source: str) -> list[tuple[str, str]]:
    """Name and type of each."""
    return [(row[0], row[1]) for row in connection.execute(f"DESCRIBE FROM {source}").fetchall()]
