"""Every function that DuckDB has, called in a statement over a run: nothing is written or read
beside the tables, later answers stay what they were, and the time limit holds."""

from __future__ import annotations

import hashlib
import itertools
import time
from pathlib import Path

import duckdb
import pytest
from recorded_steps import record_steps

import lldscope
from lldscope.core.errors import UsageError
from lldscope.core.sql_functions import FUNCTIONS, TABLE_FUNCTIONS
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

    def arguments(self) -> list[str]:
        """Arguments of many kinds."""
        part = next((self.path / "steps").glob("*.parquet"))
        texts = [
            *self.hostile(), str(self.path / "run.json"), str(part),
            str(self.folder / "secret.csv"), "attempts",
            "http://127.0.0.1:9/x", "memory_limit", "1TB", "%s", "$.a", "HOME",
        ]  # fmt: skip
        return [
            *map(sql_text, texts), *map(serialized, self.hostile()), "3", "-1", "0.5", "NULL",
            "true", "[1, 2]", "['a']", "{'a': 1}", "MAP {'a': 1}", "DATE '2020-01-01'",
            "INTERVAL 1 DAY", "lambda x: x", "'a'::BLOB", "step",
        ]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("place"))


def names_by_kind() -> dict[str, set[str]]:
    rows = duckdb.connect().execute("SELECT function_name, function_type FROM duckdb_functions()")
    found: dict[str, set[str]] = {}
    for name, kind in rows.fetchall():
        found.setdefault(kind, set()).add(name)
    return found


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


def test_what_is_not_listed_is_refused_in_every_place(place):
    database = place.run._contents.db.connection
    for name in {*SCALAR, *TABLE} - FUNCTIONS - TABLE_FUNCTIONS:
        if name.lower() in FUNCTIONS:
            continue
        for form in ("SELECT {}(1)", "SELECT {}(1) OVER () FROM steps", "SELECT * FROM {}(1)"):
            with pytest.raises(UsageError):  # before it is bound
                insist_on_select(database, form.format(quoted(name)))


def test_a_listed_function_is_no_name_of_something_else():
    """A function is allowed in FROM only if it is listed for FROM."""
    assert not FUNCTIONS & set(TABLE) - TABLE_FUNCTIONS - {"histogram", "summary"}


def test_listed_functions_change_and_read_nothing(place):
    some = ["NULL", "3", "0.5", "[1, 2]", "'a'", "DATE '2020-01-01'", "MAP {'a': 1}"]
    texts = [sql_text(place.hostile()[0]), sql_text(str(place.path / "run.json"))]
    given = [(), *[(a,) for a in some + texts], ("'ab'", "1"), ("3", "2"), ("'a'", "'b'"),
             ("[1, 2]", "lambda x: x"), ("[1, 2]", "1"), ("'ab'", "1", "'b'"),
             (texts[1], texts[0])]  # fmt: skip
    answered, database = 0, place.run._contents.db.connection
    for name in [n for n in SCALAR if n.lower() in FUNCTIONS and n.isidentifier()]:
        for arguments in given:
            well, said = call(database, f"SELECT {quoted(name)}({', '.join(arguments)})")
            answered += well
            assert SECRET not in said
        assert place.look() == place.files, name
    assert place.is_unchanged()
    assert answered > len(FUNCTIONS), "most functions must have been called as they are meant"


def test_listed_table_functions_change_and_read_nothing(place):
    arguments, database = place.arguments(), place.run._contents.db.connection
    for name in sorted(TABLE_FUNCTIONS):
        for given in [(), *[(a,) for a in arguments], *itertools.product(arguments, ("1",))]:
            _, said = call(database, f"SELECT * FROM {name}({', '.join(given)}) LIMIT 9")
            assert SECRET not in said
        assert place.is_unchanged(), name


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
    acting += [f"'{place.path}/run.json'", f"glob('{place.path}/*')", "query_table('attempts')"]
    for act in acting:
        with pytest.raises(UsageError):
            place.run.rows(place_of_it.format(act))
    assert place.is_unchanged()


def test_a_name_of_with_does_not_let_a_file_through(place):
    for name in (f"{place.path}/run.json", "../secret.csv", "secret.csv"):
        quoted_name = quoted(name)
        with pytest.raises(UsageError, match="name in WITH"):
            place.run.rows(f"SELECT * FROM (WITH {quoted_name} AS (SELECT 1) FROM {quoted_name}), "
                           f"{quoted_name}")  # fmt: skip


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


AT_ONCE = [
    "SELECT length(repeat('x', 500000000))",
    "SELECT length(bar(1, 0, 1, 90000000))",
    "SELECT length(printf('%2000000000d', 1))",
    "SELECT length(format('{:2000000000}', 1))",
    "SELECT len(range(2000000000))",
    "SELECT len(generate_series(2000000000))",
    "SELECT 1 FROM (VALUES (range(2000000000)))",
]


@pytest.mark.parametrize("statement", AT_ONCE)
def test_what_is_made_at_once_at_any_size_is_refused(place, statement):
    """DuckDB does not count it, and the whole machine would be out of memory."""
    well, said = answer(place, statement)
    assert not well
    assert "cannot be used here" in said


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
    well, said = answer(place, statement, 1.0)
    assert well or "longer" in said or "memory" in said.lower() or "Error" in said
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
    _, said = answer(place, NESTED[kind](depth), 20.0)
    assert said
    assert time.monotonic() - began < 60
