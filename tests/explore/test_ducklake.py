"""Export into a DuckLake, with DuckDB's own extension, which is a package of that version only."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import duckdb_extensions
import pytest
from click.testing import CliRunner
from recorded_steps import record_steps

import lldscope
from lldscope.cli import cli


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalog that is not there yet; the extension is installed in a home of the test's own."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with duckdb.connect() as connection:
        duckdb_extensions.import_extension("ducklake", con=connection)
    return tmp_path / "it's.ducklake"


def fetch(lake: Path, query: str) -> list[tuple]:
    with duckdb.connect() as connection:
        connection.execute("LOAD ducklake")
        path = str(lake).replace("'", "''")
        connection.execute(f"ATTACH 'ducklake:{path}' AS lake (READ_ONLY)")
        connection.execute("USE lake.lldscope")
        return connection.execute(query).fetchall()


def exported(run: Path, lake: Path, *options: str) -> list[dict]:
    command = ["export", str(run), "--to-ducklake", str(lake), "--json", *options]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_runs_lie_beside_each_other_and_a_second_export_replaces(lake, make_run):
    one, two = make_run("one"), make_run("two", steps=range(5), seed=1)
    counts = {row["table"]: row["rows"] for row in exported(one, lake)}
    assert counts["lldscope.steps"] == 30
    assert "lldscope.signals" in counts
    assert "lldscope.probes" not in counts, "it has no rows"
    exported(two, lake)
    with lldscope.Recorder(one, resume=True) as recorder:
        record_steps(recorder, range(30, 33))
    exported(one, lake)
    for path, steps in ((one, 33), (two, 5)):
        with lldscope.open_run(path) as run:
            key = run.info["id"]
            sums = "SELECT count(*), sum(n_tokens), count(logp_post_sum), sum(logp_old_sum)"
            expected = run.rows(f"{sums} FROM actions").rows[0]
            values = run.signals()["delta_correct"].tolist()
        assert fetch(lake, f"SELECT count(*) FROM steps WHERE run_id = '{key}'") == [(steps,)]
        (result,) = fetch(lake, f"{sums} FROM actions WHERE run_id = '{key}'")
        assert result[:3] == tuple(expected)[:3]
        assert result[3] == pytest.approx(expected[3])
        delta = fetch(
            lake, f"SELECT delta_correct FROM signals WHERE run_id = '{key}' ORDER BY step"
        )
        assert [x for (x,) in delta] == values
    before = len(fetch(lake, "FROM ducklake_snapshots('lake') SELECT snapshot_id"))
    exported(two, lake, "--tables", "steps,actions")
    assert len(fetch(lake, "FROM ducklake_snapshots('lake') SELECT snapshot_id")) == before + 1


def test_a_table_of_an_older_version_gets_the_new_columns(lake, make_run):
    run = make_run()
    exported(run, lake, "--tables", "steps")
    with duckdb.connect() as connection:
        connection.execute("LOAD ducklake")
        connection.execute("ATTACH 'ducklake:" + str(lake).replace("'", "''") + "' AS lake")
        connection.execute("ALTER TABLE lake.lldscope.steps DROP COLUMN lr")
    exported(make_run("other"), lake, "--tables", "steps")
    assert fetch(lake, "SELECT count(*), count(lr) FROM steps") == [(60, 30)]


def test_what_cannot_be_written_is_one_sentence_and_leaves_the_lake_as_it_was(lake, make_run):
    run = make_run()
    exported(run, lake, "--tables", "steps")
    command = ["export", str(run), "--to-ducklake", str(lake)]
    done = CliRunner().invoke(cli, [*command, "--tables", "nothing"])
    assert (done.exit_code, "There is no table nothing" in str(done.exception)) == (1, True)
    with duckdb.connect() as connection:
        connection.execute("LOAD ducklake")
        connection.execute("ATTACH 'ducklake:" + str(lake).replace("'", "''") + "' AS lake")
        connection.execute("CREATE TABLE lake.lldscope.updates (run_id INTEGER)")
    done = CliRunner().invoke(cli, [*command, "--tables", "steps,updates"])
    assert "The lake cannot be written" in str(done.exception)
    assert fetch(lake, "SELECT count(*) FROM steps") == [(30,)]


def test_without_the_extension_it_says_where_to_get_it(tmp_path, make_run, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "empty"))
    command = ["export", str(make_run()), "--to-ducklake", str(tmp_path / "x.ducklake")]
    connect = duckdb.connect

    def offline(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute("SET autoinstall_known_extensions = false")
        return connection

    monkeypatch.setattr(duckdb, "connect", offline)
    done = CliRunner().invoke(cli, command)
    assert "cannot load its extension ducklake" in str(done.exception)
    done = CliRunner().invoke(cli, ["export", str(tmp_path / "run")])
    assert "Name either --to FOLDER or --to-ducklake CATALOG" in done.output
