"""No file of a run can be lost, cut or shortened without a reader and the doctor saying so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from recorded_steps import record_steps

import lldscope
from lldscope.cli import cli
from lldscope.doctor.checks import examine, repair
from lldscope.recording import writer
from lldscope.storage import json_files, layout
from lldscope.storage.manifest import manifest_path
from lldscope.storage.notes import write_note

JOURNALS = [layout.EVENTS_FILE, layout.ALERTS_FILE, layout.NOTES_FILE]


@pytest.fixture
def recorded_run(tmp_path) -> Path:
    """A run of two attempts with events, alerts and notes."""
    path = tmp_path / "run"
    for attempt in range(2):
        with lldscope.Recorder(path, resume=attempt > 0) as r:
            for step in range(5 * attempt, 5 * attempt + 5):
                record_steps(r, range(step, step + 1))
                r.event("lr_change", step=step, lr=0.1)
                r.alert(rule="reward-crash", step=step)
                if step % 2:
                    r.flush()
    for step in range(4):
        write_note(path, "acknowledge", "reward-crash", step)
    return path


def damage_of(path: Path) -> set[str]:
    """The files that a reader reports; the doctor must name the same ones."""
    with lldscope.open_run(path) as run:
        reader = {where.split(" ")[0] for where in run.damaged}
    doctor = {f.where.split(" ")[0] for f in examine(path).findings}
    assert reader <= doctor
    return reader


def lose(path: Path) -> None:
    path.unlink()


def cut(keep: int) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:keep]))

    return act


def without(line: int) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:line] + lines[line + 1 :]))

    return act


WAYS = {
    "lost": lose,
    "empty": lambda path: path.write_bytes(b""),
    "cut in the middle": cut(2),
    "without its last line": cut(-1),
    "without its first line": without(0),
    "without a line": without(1),
}


def test_an_intact_run_reports_nothing(recorded_run):
    assert damage_of(recorded_run) == set()
    with lldscope.open_run(recorded_run) as run:
        assert [e["step"] for e in run.events()] == list(range(10))
        assert not any("line" in e for e in run.events())
        assert len(run.notes()) == 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("file", [*JOURNALS, "manifest/a1-r0.jsonl", "manifest/a2-r0.jsonl"])
def test_lost_lines_are_reported_by_readers_and_doctor(recorded_run, file, way):
    WAYS[way](recorded_run / file)
    damage = damage_of(recorded_run)
    # A manifest that was cut may list parts that were merged since.
    assert {where for where in damage if where.endswith(".jsonl")} == {file}
    output = CliRunner().invoke(cli, ["check", str(recorded_run)], catch_exceptions=False).output
    assert file in output


@pytest.mark.parametrize("file", JOURNALS)
def test_heartbeats_alone_know_it_too(recorded_run, file):
    """Though the manifest has lost what it said."""
    for path in (recorded_run / "manifest").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [{k: v for k, v in x.items() if k not in ("journals", "crc")} for x in lines]
        path.write_bytes(b"".join(json_files.with_checksum(json.dumps(x)) for x in rows))
    assert damage_of(recorded_run) == set()
    (recorded_run / file).unlink()
    assert damage_of(recorded_run) == {file}


@pytest.mark.parametrize("file", [layout.EVENTS_FILE, layout.ALERTS_FILE])
def test_the_manifest_alone_knows_it_too(recorded_run, file):
    shutil.rmtree(recorded_run / "heartbeat")
    cut(1)(recorded_run / file)
    assert file in damage_of(recorded_run)


def test_a_declared_change_that_is_lost_is_said_beside_the_verdict(recorded_run):
    (recorded_run / layout.EVENTS_FILE).unlink()
    output = (
        CliRunner()
        .invoke(cli, ["check", str(recorded_run), "--json"], catch_exceptions=False)
        .stdout
    )
    assert layout.EVENTS_FILE in json.loads(output)["damaged"]


def test_lines_by_hand_and_of_several_ranks_are_no_damage(tmp_path):
    path = tmp_path / "run"
    with lldscope.Recorder(path, world_size=2) as r, lldscope.Recorder(path, rank=1) as other:
        for step in range(3):
            for recorder in (other, r):
                recorder.event("checkpoint", step=step)
                recorder.step(step=step)
                recorder.flush()
        with (path / layout.EVENTS_FILE).open("a") as file:
            file.write('{"kind": "by_hand", "step": 2}\n')
    assert damage_of(path) == set()
    with lldscope.open_run(path) as run:
        assert len(run.events()) == 7


@pytest.mark.parametrize("way", ["lost", "empty", "cut in the middle", "without a line"])
def test_a_live_manifest_that_is_changed_under_its_recorder_is_reported_for_good(
    tmp_path, monkeypatch, way
):
    monkeypatch.setattr(writer, "HEARTBEAT_SECONDS", 0.0)
    path = tmp_path / "run"
    with lldscope.Recorder(path) as r:
        for step in range(20):
            record_steps(r, range(step, step + 1))
            r.flush()
            if step == 9:
                with lldscope.open_run(path) as run:
                    assert len(run.signals()) == 10
                WAYS[way](manifest_path(path, 1, 0))
            if step in (10, 19):
                assert "manifest/a1-r0.jsonl" in damage_of(path), step
    assert damage_of(path) == {"manifest/a1-r0.jsonl"}
    repair(examine(path))
    with lldscope.open_run(path) as run:
        assert run.damaged == {}
        assert len(run.signals()) == 20, "the parts were there, and are listed again"


def test_parts_are_not_merged_over_those_whose_line_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.001)
    path = tmp_path / "run"
    with lldscope.Recorder(path) as r:
        for step in range(40):
            r.step(step=step)
            r.flush()
            if step == 5:
                cut(3)(manifest_path(path, 1, 0))
    repair(examine(path))
    with lldscope.open_run(path) as run:
        assert run.rows("SELECT count(DISTINCT step), count(*) FROM steps").rows == [(40, 40)]


def test_the_doctor_does_not_call_a_readable_part_unreadable(tmp_path):
    """A part of an earlier version does not say which part it is."""
    import pyarrow.parquet as pq

    path = tmp_path / "run"
    with lldscope.Recorder(path) as r:
        record_steps(r, range(3))
    (part,) = (path / "steps").glob("*.parquet")
    table = pq.read_table(part)
    pq.write_table(table.replace_schema_metadata({}), part)
    manifest_path(path, 1, 0).unlink()
    (message,) = [f.message for f in examine(path).findings if f.where == f"steps/{part.name}"]
    assert "cannot be read" not in message
    assert "no intact part of this name" in message


def test_notes_of_two_processes_at_once_are_no_damage(recorded_run):
    write_note(recorded_run, "heard", "reward-crash", 1)
    lines = (recorded_run / layout.NOTES_FILE).read_bytes().splitlines(keepends=True)
    with (recorded_run / layout.NOTES_FILE).open("ab") as file:
        file.write(lines[-1])  # the other had counted the same lines
    write_note(recorded_run, "heard", "reward-crash", 2)
    assert damage_of(recorded_run) == set()
