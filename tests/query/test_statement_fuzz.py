"""Every function that DuckDB has, called in a statement over a run: nothing is written or read
beside the tables, later answers stay what they were, and the time limit holds."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import duckdb
import pytest
from recorded_steps import record_steps

import lldscope
from lldscope.core.errors import UsageError
from lldscope.query.sandbox import confine
from lldscope.query.statement import insist_on_select

SECRET = "the secret of somebody else"


def sql_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def serialized(statement: str) -> str:
    return f"json_serialize_sql({sql_text(statement)})"


class Place:
    """A run, somebody's file beside it, and what both hold."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "run"
        with lldscope.Recorder(self.path) as recorder:
            record_steps(recorder, range(3))
        (folder / "secret.txt").write_text(SECRET)
        (folder / "secret.csv").write_text(f"a\n{SECRET}\n")
        self.run = lldscope.open_run(self.path)
        self.files, self.answers = self.look(), self.ask()

    def look(self) -> dict[str, str]:
        files = [p for p in self.folder.rglob("*") if p.is_file()]
        return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}

    def ask(self) -> list[str]:
        return [repr(self.run.rows(f"FROM {t}")) for t in ("attempts", "signals", "all_steps")]

    def is_unchanged(self) -> bool:
        return self.look() == self.files and self.ask() == self.answers

    def hostile(self) -> list[str]:
        """Statements that write or read, as texts for functions that run a text."""
        manifest, fresh = self.path / "manifest" / "a1-r0.jsonl", self.folder / "made.csv"
        return [
            f"WITH c AS (COPY (SELECT 1 WHERE false) TO '{manifest}' (FORMAT csv, HEADER false)) "
            "FROM c",
            f"COPY (SELECT 1) TO '{fresh}'",
            "INSERT INTO attempts VALUES (9, 0, 9)",
            f"SELECT * FROM read_text('{self.folder}/secret.txt')",
        ]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("place"))


def names_by_kind() -> dict[str, set[str]]:
    rows = duckdb.connect().execute("SELECT function_name, function_type FROM duckdb_functions()")
    names: dict[str, set[str]] = {}
    for name, kind in rows.fetchall():
        names.setdefault(kind, set()).add(name)
    return names


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


KINDS = names_by_kind()
SCALAR = sorted(
    set().union(*(KINDS.get(k, set()) for k in ("scalar", "macro", "aggregate", "window")))
)
TABLE = sorted(set().union(*(KINDS.get(k, set()) for k in ("table", "table_macro", "pragma"))))


def call(database: duckdb.DuckDBPyConnection, statement: str) -> tuple[bool, str]:
    """As `answer`, without what a run does around each: there are thousands."""
    try:
        insist_on_select(database, statement)
        return True, repr(database.execute(statement).fetchmany(9))
    except (UsageError, duckdb.Error) as error:
        return False, str(error)


def answer(place: Place, statement: str, seconds: float = 5.0) -> tuple[bool, str]:
    """Whether a statement is answered, and what is said."""
    try:
        return True, repr(place.run.rows(statement, seconds))
    except UsageError as error:
        return False, str(error)


@pytest.mark.slow
def test_functions_change_nothing_and_read_nothing_else(place):
    """Every function there is: one that runs or writes what it is given must be refused."""
    database = place.run._contents.db.connection
    place.run.rows("SELECT 1")
    slow = {"sleep_ms", "repeat", "range", "generate_series", "test_all_types"}
    writing = place.hostile()[::2]
    acting = [*map(sql_text, writing), *map(serialized, writing)]
    others = [sql_text(str(place.folder / "secret.csv")), "'attempts'", "3", "NULL"]
    answered = 0
    for names, form in ((SCALAR, "SELECT {}({})"), (TABLE, "SELECT * FROM {}({}) LIMIT 9")):
        for name in (n for n in names if n.isidentifier() and n not in slow):
            for argument in ("", *acting, *others):
                well, text = call(database, form.format(quoted(name), argument))
                answered += well
                if place.folder.as_posix() not in argument:
                    assert SECRET not in text
            assert place.look() == place.files, name
    assert place.is_unchanged()
    assert answered > 300, "many functions must have been called as they are meant"


@pytest.mark.parametrize(
    "place_of_it",
    [
        "SELECT * FROM {}",
        "SELECT (SELECT count(*) FROM {})",
        "WITH a AS (SELECT * FROM {}) SELECT 1",
        "WITH a AS MATERIALIZED (SELECT * FROM {}) SELECT * FROM a",
        "WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT 1 FROM {}) SELECT * FROM a",
        "SELECT * FROM steps JOIN {} USING (step)",
        "SELECT * FROM steps, LATERAL (SELECT * FROM {})",
        "SELECT 1 UNION ALL SELECT 1 FROM {}",
        "SELECT * FROM steps ORDER BY (SELECT 1 FROM {})",
        "SELECT * FROM steps LIMIT (SELECT 1 FROM {})",
        "SELECT * FROM steps WHERE step IN (SELECT 1 FROM {})",
        "SELECT count(*) FILTER (EXISTS (FROM {})) FROM steps",
        "SELECT sum(step) OVER (ORDER BY (SELECT 1 FROM {})) FROM steps",
        "SELECT list_transform([1], lambda x: (SELECT 1 FROM {})) FROM steps",
        "SELECT step FROM steps GROUP BY step HAVING (SELECT true FROM {})",
        "SELECT * FROM steps QUALIFY (SELECT true FROM {})",
        "SELECT DISTINCT ON ((SELECT 1 FROM {})) step FROM steps",
        "SELECT * REPLACE ((SELECT 1 FROM {}) AS step) FROM steps",
        "VALUES ((SELECT 1 FROM {}))",
        "FROM (PIVOT (SELECT * FROM {}) ON step IN (1) USING count(*))",
        "FROM (UNPIVOT (SELECT * FROM {}) ON a)",
        "FROM (SUMMARIZE SELECT * FROM {})",
        "FROM (DESCRIBE SELECT * FROM {})",
        "SUMMARIZE SELECT * FROM {}",
        "DESCRIBE FROM {}",
        "SELECT * FROM range((SELECT 1 FROM {}))",
        "SELECT CASE WHEN true THEN (SELECT 1 FROM {}) END",
        "SELECT {{'a': (SELECT 1 FROM {})}}.a",
        'SELECT * FROM (WITH "a" AS (SELECT 1) FROM "a"), {}',
    ],
)
def test_no_place_of_a_statement_hides_one_that_acts(place, place_of_it):
    inside, database = place.hostile(), place.run._contents.db.connection
    insist_on_select(database, place_of_it.format("steps"))  # it is SQL, and only this is wrong:
    acting = [f"json_execute_serialized_sql({serialized(s)})" for s in inside]
    acting += [f"query({sql_text(s)})" for s in inside]
    acting += [f"({inside[0]})", f"read_text('{place.folder}/secret.txt')"]
    acting += [f"'{place.folder}/secret.csv'", "query_table('attempts')"]
    for act in acting:  # a WITH that nothing reads is not run
        _, text = answer(place, place_of_it.format(act))
        assert SECRET not in text
    assert place.is_unchanged()


def test_these_statements_do_act_where_nobody_looks(tmp_path):
    """Why the list is there: in a database that is confined to a run, DuckDB writes all the same.
    If this fails, DuckDB has become stricter and the fuzzer above proves less than it seems to."""
    place = Place(tmp_path)
    database = duckdb.connect()
    confine(database, place.path)
    statement = serialized(place.hostile()[0])
    database.execute("BEGIN TRANSACTION READ ONLY")
    database.execute(f"SELECT * FROM json_execute_serialized_sql({statement})").fetchall()
    assert not place.is_unchanged()


GIANT = [
    "SELECT sum(i) FROM range(100000000000) t(i)",
    "SELECT count(*) FROM repeat(1, 100000000000)",
    "SELECT regexp_matches(string_agg('a', ''), '(a*)*b') FROM range(10000000)",
    "SELECT list_sort(list(range))[1] FROM range(5000000)",
    "SELECT list_reduce(list(range), lambda a, b: a + b) FROM range(5000000)",
    "SELECT count(*) FROM steps a, steps b, range(1000000000) WHERE hash(range) = 1",
]


@pytest.mark.parametrize("statement", GIANT)
def test_the_time_limit_holds(place, statement):
    began = time.monotonic()
    well, text = answer(place, statement, 1.0)
    assert well or "longer" in text or "memory" in text.lower() or "Error" in text
    assert time.monotonic() - began < 30  # generous: another process may have the processor
    assert place.is_unchanged()


NESTED = {
    "selects": lambda n: "SELECT * FROM (" * n + "SELECT 1" + ")" * n,
    "parentheses": lambda n: "SELECT " + "(" * n + "1" + ")" * n,
    "sums": lambda n: "SELECT 1" + "+1" * n,
    "lists": lambda n: "SELECT " + "[" * n + "1" + "]" * n,
    "calls": lambda n: "SELECT " + "abs(" * n + "1" + ")" * n,
    "scalar selects": lambda n: "SELECT " + "(SELECT " * n + "1" + ")" * n,
    "cases": lambda n: "SELECT " + "CASE WHEN true THEN " * n + "1" + " END" * n,
    "minus": lambda n: "SELECT " + "- " * n + "1",
    "unions": lambda n: "SELECT 1" + " UNION SELECT 1" * n,
    "unions of all": lambda n: "SELECT 1" + " UNION ALL SELECT 1" * n,
    "joins": lambda n: "SELECT 1 FROM range(1)" + " CROSS JOIN range(1)" * n,
    "commas": lambda n: "SELECT 1 FROM range(1)" + ", range(1)" * n,
    "stars": lambda n: "SELECT *" + ", *" * n + " FROM signals",
    "WITH within": lambda n: (
        "WITH c0 AS (SELECT 1 x), "
        + ", ".join(
            f"c{i + 1} AS NOT MATERIALIZED (SELECT a.x FROM c{i} a, c{i} b)" for i in range(n // 20)
        )
        + f" FROM c{n // 20}"
    ),
    "WITH": lambda n: "WITH a AS (" * n + "SELECT 1" + ") SELECT 1" * n,
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("depth", [400, 3000, 20_000])
def test_deep_nesting_gets_a_sentence(place, kind, depth):
    began = time.monotonic()
    _, text = answer(place, NESTED[kind](depth), 20.0)
    assert text
    assert time.monotonic() - began < 60
