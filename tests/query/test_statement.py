"""Statements over a run: nothing is written or read beside its tables, later answers stay what
they were, and the limits hold. Among them every function that DuckDB has."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest
from recorded_steps import record_steps

import lldscope
from lldscope.core.errors import UsageError
from lldscope.query import sandbox
from lldscope.query import statement as statements
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
        (self.path / "link.txt").symlink_to(folder / "secret.txt")
        (self.path / "linked").symlink_to(folder)
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


HOSTILE = [
    # files of others, in every way there is to name one
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('{outside}/secret.txt')",
    "SELECT * FROM read_blob('{run}/../secret.txt')",
    "SELECT * FROM read_text('{run}/link.txt')",
    "SELECT * FROM read_text('{run}/linked/secret.txt')",
    "SELECT * FROM read_json('/proc/self/environ')",
    "SELECT * FROM read_parquet('{outside}/*.parquet')",
    "SELECT * FROM parquet_metadata('{outside}/x.parquet')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM '{outside}/secret.csv'",
    "SELECT * FROM query('SELECT * FROM read_text(''{outside}/secret.txt'')')",
    "SELECT * FROM query_table('{outside}/secret.csv')",
    "SELECT getenv('HOME')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM secret_frame",
    # the network
    "SELECT * FROM read_csv('http://127.0.0.1:{port}/x')",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "SELECT * FROM 'https://127.0.0.1:{port}/x.parquet'",
    # writing, openly and inside what looks like reading
    "COPY (SELECT 1) TO '{outside}/x.csv'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{run}/x.csv'",
    "WITH x AS (COPY (SELECT 1) TO '{run}/x.csv') SELECT * FROM x",
    "WITH x AS (INSERT INTO attempts VALUES (9, 0, 9) RETURNING attempt) SELECT * FROM x",
    "WITH x AS (DELETE FROM stored_signals_rows RETURNING step) SELECT * FROM x",
    "WITH x AS (UPDATE stored_signals_rows SET reward = 9 RETURNING step) SELECT * FROM x",
    "FROM query('WITH x AS (COPY (SELECT 1) TO ''{run}/x.csv'') SELECT * FROM x')",
    # statements of other kinds, of which one each
    "INSERT INTO stored_signals_rows SELECT * FROM stored_signals_rows",
    "CREATE OR REPLACE VIEW steps AS SELECT 1 step",
    "DROP VIEW signals",
    "EXPORT DATABASE '{run}/x'",
    "ATTACH '{run}/x.db'",
    "INSTALL httpfs",
    "SET enable_external_access=true",
    "PRAGMA enable_profiling",
    "CALL enable_logging()",
    "SELECT * FROM enable_logging()",
    "BEGIN TRANSACTION",
    "PREPARE x AS SELECT 1",
    "SELECT 1; DROP VIEW signals",
    "SELECT 1;; SELECT 2",
    "",
    "-- nothing",
    "\0",
    "SELECT '" + "x" * 100 + "",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("place"))


def _closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("statement", HOSTILE)
def test_sql_reads_the_run_and_nothing_else(place, statement, monkeypatch):
    # DuckDB looks for tables among the variables of who calls it.
    monkeypatch.setattr("lldscope.run.secret_frame", place.run.signals(), raising=False)
    filled = statement.format(run=place.path, outside=place.folder, port=_closed_port())
    with pytest.raises(UsageError) as raised:
        place.run.sql(filled)
    assert SECRET not in str(raised.value)
    assert place.is_unchanged()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT step, reward FROM signals ORDER BY step",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) FROM n",
        "DESCRIBE actions",
        "SHOW TABLES",
        "SUMMARIZE steps",
        "FROM (PIVOT (SELECT step, correct FROM responses) ON correct IN (true) USING count(*))",
        "SELECT list_transform([1, 2], lambda x: x * step) FROM steps JOIN updates USING (step)",
        "SELECT step FROM steps UNION SELECT step FROM updates EXCEPT SELECT 1",
        "SELECT 'COPY_QUERY_NODE' AS word, 'INSERT' AS other",
        "SELECT reward, lag(reward) OVER w FROM signals WINDOW w AS (ORDER BY step)",
        "SELECT a.step FROM steps a ASOF JOIN updates b ON a.step >= b.step",
        "SELECT table_name FROM information_schema.tables",
    ],
)
def test_sql_that_people_write_is_answered(place, statement):
    assert len(place.run.sql(statement))


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


def test_a_statement_is_stopped_from_another_thread(place):
    with lldscope.open_run(place.path) as run, ThreadPoolExecutor(1) as other:
        run.interrupt()  # nothing runs
        run.rows("FROM signals")
        query = other.submit(run.rows, "SELECT count(*) FROM range(1000000000000)", 600.0)
        while not query.done():
            run.interrupt()
            time.sleep(0.05)
        with pytest.raises(UsageError, match=r"[Ii]nterrupt"):
            query.result()


# Ten seconds of one fast processor, and at most minutes of a slow one, if nobody stops it.
LONG = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3000000) FROM r"


@pytest.mark.parametrize(
    ("limit", "statement", "words"),
    [
        ({}, LONG, "longer than 1 s"),
        ({"MEMORY": "60MB"}, "SELECT len(list(range)) FROM range(50000000)", "than 60MB of memory"),
        ({"ANSWER_BYTES": 1 << 20}, "FROM range(200000)", "more than 1 MB"),
    ],
)
def test_each_limit_of_an_answer_has_its_sentence(make_run, monkeypatch, limit, statement, words):
    for name, value in limit.items():
        monkeypatch.setattr(sandbox, name, value)
    with lldscope.open_run(make_run(steps=range(2))) as run:
        with pytest.raises(UsageError, match=words):
            run.rows(statement, 1.0 if not limit else 60.0)
        assert run.rows("SELECT 1").rows == [(1,)]


JOINS = "SELECT 1 FROM range(1)" + " CROSS JOIN range(1)" * 30
TEXT = f"SELECT '{'x' * 99_991}'"


@pytest.mark.parametrize(
    ("statement", "longer", "words"),
    [
        (JOINS, " CROSS JOIN range(1)", "31 × join; 30 are"),
        (f"WITH {', '.join(f'c{i} AS (SELECT 1)' for i in range(299))} SELECT 1",
         " WHERE (SELECT true)", "301 × select; 300 are"),
        (TEXT, " ", "100,001 characters; 100,000 are"),
    ],
)
def test_what_takes_long_to_plan_is_refused(place, statement, longer, words):
    assert place.run.rows(statement).rows
    with pytest.raises(UsageError, match=words):
        place.run.rows(statement + longer)


def test_the_limits_are_those_of_the_docs():
    text = (Path(__file__).parents[2] / "docs/security.md").read_text("utf-8")
    section = " ".join(text.partition("## SQL")[2].partition("## ")[0].split())
    for limit in (
        f"after {sandbox.SECONDS:g} s", f"with {sandbox.MEMORY[:-2]} GB of DuckDB's memory",
        f"with {sandbox.ANSWER_BYTES >> 30} GB of result",
        f"{statements.MOST['JOIN']} joins, {statements.MOST['SELECT_NODE']} selects, "
        f"or {statements.MOST_CHARACTERS:,} characters",
    ):
        assert limit in section


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
@pytest.mark.parametrize("characters", [0, 9 * statements.MOST_CHARACTERS // 10])
def test_deep_nesting_gets_a_sentence(place, kind, characters):
    """400 levels, and nearly as many as a statement has room for."""
    nested = NESTED[kind]
    _, text = answer(place, nested(max(400 * characters // len(nested(400)), 400)), 20.0)
    assert text
    assert "characters" not in text, "it is refused for its depth"


def test_a_query_that_does_not_stop_ends_with_the_process(make_run):
    code = (
        "import lldscope.cli.query as q, time; q._GRACE = 1.0; "
        "q._answer = lambda *_: time.sleep(90); from lldscope.cli import main; main()"
    )
    path = make_run(steps=range(2))
    done = subprocess.run(
        [sys.executable, "-c", code, "query", path, "--timeout", "1", "SELECT 1"],
        capture_output=True, text=True, timeout=80,
    )
    assert done.returncode == 2
    assert "longer than 1 s" in done.stderr
    assert "Traceback" not in done.stderr
