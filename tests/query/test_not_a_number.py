"""NaN and infinity are found by every comparison, in parts of this version and of earlier ones,
whose bounds of floats leave NaN out. `make test-all` runs this with the oldest DuckDB, too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from sealed_runs import rewrite

import lldscope
from lldscope.core.schema import TABLES, VIEWS, arrow_schema
from lldscope.explore.export import export_run
from lldscope.query.database import Database, stored_columns
from lldscope.storage import layout
from lldscope.storage.manifest import commit
from lldscope.storage.part import Owner, PartName, write_part

NAN, INF = math.nan, math.inf
SEALS = (  # of each column of floats
    [1.0, NAN, 20.0, None, 5.0],
    [3.0, 3.0, NAN, 3.0, 3.0],
    [NAN, NAN, NAN, NAN, NAN],
    [11.0, 12.0, 13.0, 14.0, 15.0],
    [INF, -INF, NAN, -0.0, 12.0],
)
NUMBERS = ("10", "'nan'::FLOAT")
SIGNS = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
CONDITIONS = (
    *(f"{{c}} {sign} {number}" for sign in SIGNS for number in NUMBERS),
    "{c} BETWEEN 2 AND 10", "{c} BETWEEN 2 AND 'nan'::FLOAT", "{c} NOT BETWEEN 2 AND 10",
    "{c} IN (3, 12)", "{c} IN (3, 'nan'::FLOAT)", "{c} NOT IN (3, 12)", "{c} < 2 OR {c} > 13",
    "isnan({c})", "NOT isnan({c})", "isinf({c})", "isfinite({c})", "{c} > 'inf'::FLOAT",
)
SELECTS = (
    *(f"SELECT count(*) FROM {{t}} WHERE {condition}" for condition in CONDITIONS),
    "SELECT [min({c}), max({c}), median({c}), max({c}) FILTER ({c} < 10)] FROM {t}",
    "SELECT list(x) FROM (SELECT {c} AS x FROM {t} ORDER BY {c} LIMIT 3)",
    "SELECT list(x) FROM (SELECT {c} AS x FROM {t} ORDER BY {c} DESC LIMIT 3)",
    "SELECT list(x ORDER BY x) FROM (SELECT DISTINCT {c} AS x FROM {t})",
    "SELECT count(*) FROM {t} AS a JOIN {t} AS b ON a.{c} = b.{c}",
)


def rows_of(schema: pa.Schema, seal: int) -> pa.Table:
    """Five rows; the same numbers in every column of floats, in other places."""
    columns = []
    for i, field in enumerate(schema):
        numbers = [5 * seal + row for row in range(5)]
        if pa.types.is_floating(field.type):
            values = SEALS[seal][i % 5 :] + SEALS[seal][: i % 5]
        elif pa.types.is_integer(field.type):
            values = {"attempt": [1] * 5, "rank": [0] * 5}.get(field.name, numbers)
        else:
            values = [n % 2 == 0 if pa.types.is_boolean(field.type) else "a" for n in numbers]
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def in_memory(schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([rows_of(schema, seal) for seal in range(len(SEALS))])


EVERY = 5


def differences(db: duckdb.DuckDBPyConnection, table: str, schema: pa.Schema) -> Iterator[str]:
    """The SELECTs that a table answers otherwise than the same rows in memory; a column is asked
    one in EVERY."""
    with duckdb.connect(":memory:") as memory:
        memory.register("arrow", in_memory(schema))
        memory.execute("CREATE TABLE t AS FROM arrow")
        floats = [field.name for field in schema if pa.types.is_floating(field.type)]
        assert floats or table == "eval_questions"
        for i, name in enumerate(floats):
            for select in SELECTS[i % EVERY :: EVERY]:
                here = db.execute(select.format(c=name, t=table)).fetchall()
                there = memory.execute(select.format(c=name, t="t")).fetchall()
                # Signals are sorted by their first columns, which may make 0 of −0.
                if repr(here).replace("-0.0", "0.0") != repr(there).replace("-0.0", "0.0"):
                    yield f"{select.format(c=name, t=table)}: {here} instead of {there}"


@pytest.fixture(scope="module", params=["this version", "an earlier version"])
def path(request, tmp_path_factory) -> Path:
    """A run with every number in every column of floats."""
    path = tmp_path_factory.mktemp("run") / request.param
    lldscope.Recorder(path).close()
    for seal in range(len(SEALS)):
        name = PartName(Owner(1, 0), seal + 1, seal + 1)
        batches = {table: [rows_of(arrow_schema(table), seal)] for table in TABLES}
        commit(path, (1, 0), [write_part(path, table, name, b) for table, b in batches.items()])
    if request.param == "an earlier version":
        rewrite(path, lambda table, rows: rows)  # as pyarrow writes by default
    return path


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_every_comparison_answers_as_in_memory(path, table):
    with lldscope.open_run(path) as run:
        run.rows("SELECT 1")  # the tables are defined as soon as somebody queries
        db = run._contents.db.connection
        assert not [*differences(db, table, arrow_schema(table))]


@pytest.mark.slow
@pytest.mark.parametrize("name", VIEWS)
def test_signals_answer_as_in_memory(tmp_path, name):
    database = Database(tmp_path)
    columns = ", ".join(map(" ".join, stored_columns(name).items()))
    with duckdb.connect(":memory:") as db:
        schema = db.execute(f"CREATE TABLE t ({columns})").sql("FROM t").to_arrow_table().schema
    database.put(name, in_memory(schema))
    assert not [*differences(database.connection, name, schema)]


def counts(table: str, column: str) -> dict[str, int]:
    """How many rows have NaN, less than ten, and more than ten or NaN, as DuckDB orders them."""
    values = in_memory(arrow_schema(table))[column].to_pylist()
    numbers = [v for v in values if v is not None]
    nan = sum(map(math.isnan, numbers))
    above = sum(v > 10 for v in numbers) + nan
    return {"isnan({})": nan, "{} < 10": sum(v < 10 for v in numbers), "{} > 10": above}


def test_nan_is_found_from_the_command_line(path, lldscope_command):
    expected = {c.format("grad_norm"): n for c, n in counts("updates", "grad_norm").items()}
    columns = ", ".join(f"(SELECT count(*) FROM updates WHERE {c})" for c in expected)
    preserved = "(SELECT count(*) FROM response_class WHERE preserved)"
    done = lldscope_command("query", path, f"SELECT {columns}, {preserved}", "--csv")
    # Of 25 advantages eight are NaN, one is NULL and one below zero; the others are preserved.
    assert done.stdout.split()[-1] == ",".join(map(str, [*expected.values(), 25 - 8 - 1 - 1]))


def test_other_readers_find_nan_in_exports_and_parts(path, tmp_path):
    """Those that sort NaN last, as DuckDB does as it comes."""
    with lldscope.open_run(path) as run:
        export_run(run, tmp_path, "parquet", ["updates"])
    parts = [str(p.path(path)) for p in layout.read_manifest(path).parts if p.table == "updates"]
    expected = counts("updates", "grad_norm")
    for files in ([str(tmp_path / "updates.parquet")], parts):
        if files != parts or path.name == "this version":
            counted = [f"(SELECT count(*) FROM read_parquet({files}) WHERE "
                       f"{condition.format('grad_norm')})" for condition in expected]
            answers = duckdb.sql(f"SELECT {', '.join(counted)}").fetchall()
            assert answers == [(*expected.values(),)]
