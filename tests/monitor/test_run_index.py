"""The index of a folder of runs: it saves time, and is never believed against the runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from recorded_steps import record_steps

import lldscope
from lldscope.cli.runs import _summaries
from lldscope.monitor import run_index
from lldscope.monitor.health import check
from lldscope.monitor.run_index import FILE, FOLDER, RunIndex, fingerprint
from lldscope.monitor.summary import Summary, read_summary
from lldscope.storage.notes import write_about

NAMES = ["a", "b", "c"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in NAMES:
        with lldscope.Recorder(tmp_path / "runs" / name) as recorder:
            record_steps(recorder, range(30))
    return tmp_path / "runs"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were opened."""
    names: list[str] = []

    def note(name: str, *where: Any) -> Summary:
        names.append(name)
        return read_summary(name, *where)

    monkeypatch.setattr("lldscope.monitor.summary.read_summary", note)
    return names


def read_index(root: Path) -> list[Any]:
    """What a list says of the runs, without their age."""
    result = []
    for summary in _summaries(root):
        plain = json.loads(json.dumps(summary.to_dict()))
        (plain["state"] or {}).pop("last_row_age_seconds", None)
        result.append((summary.name, plain))
    return result


def test_a_second_list_opens_no_run_and_says_the_same(root: Path, read: list[str]) -> None:
    first = read_index(root)
    assert read == NAMES
    assert read_index(root) == first
    assert read == NAMES


def test_what_a_list_says_is_what_check_says(root: Path, read: list[str]) -> None:
    read_index(root)
    for summary in _summaries(root):
        with lldscope.open_run(root / summary.name) as run:
            state = check(run)
        assert summary.state is not None
        assert summary.state.verdict == state.verdict
        assert summary.state.firing == state.firing
        assert summary.state.last_row_age_seconds == pytest.approx(
            state.last_row_age_seconds, abs=60
        )
    assert read == NAMES


def _resumed(run: Path) -> None:
    with lldscope.Recorder(run, resume=True) as recorder:
        record_steps(recorder, range(30, 33))


def _lost_part(run: Path) -> None:
    next((run / "actions").iterdir()).unlink()


@pytest.mark.parametrize(
    "change",
    [
        _resumed,
        _lost_part,
        lambda run: write_about(run, "name", "another"),
        lambda run: (run / "run.json").write_text("{"),
        lambda run: next((run / "manifest").iterdir()).write_text(""),
    ],
    ids=["resumed", "lost part", "renamed", "run.json", "manifest"],
)
def test_a_run_that_changed_is_read_again(root: Path, read: list[str], change: Any) -> None:
    before = dict(read_index(root))
    change(root / "b")
    after = dict(read_index(root))
    assert read == [*NAMES, "b"]
    assert after["a"] == before["a"]
    assert after["b"] != before["b"]


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


def _rewritten(change: Any) -> Any:
    def write(file: Path) -> None:
        table = pq.read_table(file)
        rows = table.to_pylist()
        for row in rows:
            change(row)
        pq.write_table(table.from_pylist(rows, table.schema), file)

    return write


def _lies(row: dict[str, Any]) -> None:
    row["summary"] = row["summary"].replace('"finished"', '"stalled"')


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        _cut,
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"PAR1 no Parquet PAR1"),
        lambda file: pq.write_table(pq.read_table(file).drop(["crc"]), file),
        _rewritten(_lies),
        _rewritten(lambda row: row.update(made="another version")),
        _rewritten(lambda row: row.update(fingerprint="0" * 32)),
        _rewritten(lambda row: row.update(summary=None)),
        lambda file: (file.unlink(), file.mkdir()),
        lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
    ],
)
def test_a_damaged_index_costs_time_only(root: Path, read: list[str], damage: Any) -> None:
    first = read_index(root)
    damage(root / FOLDER / FILE)
    assert read_index(root) == first
    assert read == [*NAMES, *NAMES]


def test_a_state_that_no_version_knows_is_not_believed(root: Path, read: list[str]) -> None:
    """Whoever can write the folder can make a right checksum, too; pages must not fail by it."""
    first = read_index(root)
    index = RunIndex(root)
    for name, (stamp, text) in index._entries.items():
        index._new[name] = stamp, text.replace('"phase": "', '"phase": "not a ')
    index.save(NAMES)
    assert read_index(root) == first
    assert read == [*NAMES, *NAMES]


def test_a_live_run_is_read_every_time(root: Path, read: list[str]) -> None:
    with lldscope.Recorder(root / "d") as recorder:
        record_steps(recorder, range(30))
        recorder.flush()
        read_index(root)
        read_index(root)
    assert read == [*NAMES, "d", "d"]


def test_a_snoozed_alarm_is_not_kept_because_it_wakes_by_time_alone(root: Path) -> None:
    summary = _summaries(root)[0]
    assert summary.state is not None
    index = RunIndex(root)
    for until, expected in ((None, True), (9e11, False)):
        quiet = replace(summary, state=replace(summary.state, silenced={"lld-decay": until}))
        index.put(replace(quiet, name=f"{until}"), "files")
        assert (index.get(f"{until}", "files") is not None) == expected


def test_a_folder_that_cannot_be_written_is_listed(root: Path, monkeypatch: Any) -> None:
    first = read_index(root)
    (root / FOLDER / FILE).unlink()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(pq, "write_table", refuse)
    assert read_index(root) == first
    assert list((root / FOLDER).iterdir()) == []


def test_nothing_is_written_through_a_link_or_into_a_run(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (root / FOLDER).symlink_to(elsewhere)
    read_index(root)
    read_index(root / "a")
    assert list(elsewhere.iterdir()) == []
    assert not (root / "a" / FOLDER).exists()


@pytest.mark.slow
def test_processes_that_write_at_once_leave_an_index_that_can_be_read(root: Path) -> None:
    code = "import sys; from lldscope.cli import cli; cli(['runs', sys.argv[1], '--json'])"
    command = [sys.executable, "-c", code, str(root)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    answers = [json.loads(process.communicate()[0]) for process in running]
    assert all([row["path"] for row in rows] == NAMES for rows in answers)
    index = RunIndex(root)
    assert all(index.get(name, fingerprint(root / name)) is not None for name in NAMES)
    assert [path.name for path in (root / FOLDER).iterdir()] == [FILE]


def test_runs_that_are_gone_leave_the_index_when_it_is_written(root: Path) -> None:
    read_index(root)
    (root / "b").rename(root.parent / "b")
    write_about(root / "a", "note", "read again")
    read_index(root)
    assert sorted(RunIndex(root)._entries) == ["a", "c"]


def test_duckdb_answers_from_the_index(root: Path) -> None:
    summaries = _summaries(root)
    query = f"SELECT run, verdict, last_step, reward FROM '{root}/{FOLDER}/{FILE}' ORDER BY run"
    states = [(s, s.state) for s in summaries]
    expected = [(s.name, state.verdict, 29, s.reward) for s, state in states if state]
    assert duckdb.sql(query).fetchall() == expected


def test_another_version_of_the_rules_reads_again(
    root: Path, read: list[str], monkeypatch: Any
) -> None:
    read_index(root)
    monkeypatch.setattr(run_index, "code_version", lambda: "other rules")
    read_index(root)
    assert read == [*NAMES, *NAMES]
