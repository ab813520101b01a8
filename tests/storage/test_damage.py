"""Damage to a run, kind by kind: what readers, `check` and the doctor say of it, what a repair
brings back, and that runs which an earlier version wrote are read as they always were.

Earlier versions wrote tests/fixtures/damaged.tar.gz, a run for each kind, and what is read of it;
nothing makes those anew. More ways for lines to get lost are tried on a run of this version.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from recorded_steps import record_steps

import lldscope
from lldscope.cli import cli
from lldscope.doctor.checks import examine, repair
from lldscope.doctor.repairs import quarantine
from lldscope.recording import writer
from lldscope.runs import find_runs
from lldscope.storage import json_files
from lldscope.storage.manifest import manifest_path
from lldscope.storage.notes import write_note

FIXTURES = Path(__file__).parents[1] / "fixtures"
READINGS = json.loads((FIXTURES / "damaged.json").read_text(encoding="utf-8"))


def record(path: Path) -> None:
    """Two attempts of three steps, a seal for each step."""
    for attempt in range(2):
        with lldscope.Recorder(path, trainer="fixtures", resume=attempt > 0) as recorder:
            for step in range(3 * attempt, 3 * attempt + 3):
                recorder.responses(step=step, response_id=[0, 1], group_id=0, reward=[0.0, 1.0],
                                   correct=[False, True])
                recorder.event("lr_change", step=step, lr=0.1)
                recorder.alert(rule="reward-crash", step=step)
                recorder.step(step=step, n_responses=2, reward_sum=1.0, reward_sq_sum=1.0,
                              time=1.7e9)
                recorder.flush()
    for step in range(2):
        write_note(path, "acknowledge", "reward-crash", step)


def reading(path: Path) -> dict[str, Any]:
    """What a version must not read otherwise: numbers, what is left out, what the doctor finds."""
    with lldscope.open_run(path) as run:
        read = {
            "steps": run.rows("SELECT step, attempt FROM steps ORDER BY ALL").rows,
            "responses": run.rows(
                "SELECT step, count(*), sum(reward) FROM responses GROUP BY ALL ORDER BY ALL"
            ).rows,
            "reward": run.rows("SELECT step, reward FROM signals ORDER BY ALL").rows,
            "events": [[e["kind"], e["step"]] for e in run.events()],
            "notes": [[n["kind"], n["step"]] for n in run.notes()],
            "damaged": sorted(run.damaged),
            "findings": sorted([f.severity, f.what, f.where] for f in examine(path).findings),
        }
    return json.loads(json.dumps(read))


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(b"".join(change(path.read_bytes().splitlines(True))))


WAYS: dict[str, Callable[[Path], object]] = {
    "lost": os.remove,
    "empty": lines(lambda x: []),
    "without its last line": lines(lambda x: x[:-1]),
    "without a line": lines(lambda x: x[:1] + x[2:]),
    "with a line of garbage": lines(lambda x: [b"\xff\x00" + x[0][2:], *x[1:]]),
    "with another number": lines(lambda x: [x[0].replace(b'"rows": 2', b'"rows": 3'), *x[1:]]),
    "of empty lines": lines(lambda x: [b"\n"] * 1000),
}
LOST_LINES = {f"a1 {way}": ("manifest/a1-r0.jsonl", way) for way in WAYS} | {
    "a2 without its last line": ("manifest/a2-r0.jsonl", "without its last line")
}

# What a repair leaves: kinds of findings, and steps whose rows are gone. Otherwise nothing.
LEFT = {
    "part-lost": ({"part"}, {1}),
    "part-cut": ({"quarantine"}, {1}),
    "part-flipped": ({"quarantine"}, {1}),
    "part-zeroed": ({"quarantine"}, {1}),
    "parts-swapped": ({"quarantine"}, {1, 2}),
    "part-empty": ({"quarantine"}, set()),
    "heartbeat-lost": ({"heartbeat"}, set()),
    "heartbeat-garbage": ({"heartbeat"}, set()),
    "events-flipped": ({"lines"}, set()),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run of two attempts and six steps, a part for each; a step of events, alerts and notes."""
    path = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "CLOSE_MERGE_BYTES", 0)
        record(path)
    assert reading(path) == READINGS["intact"], "as earlier versions wrote it"
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    with tarfile.open(FIXTURES / "damaged.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def files_of(read: dict[str, Any]) -> set[str]:
    """The files that readers and the doctor report."""
    named = {where.split(" ")[0] for where in read["damaged"]}
    assert named <= {where.split(" ")[0] for _, _, where in read["findings"]}
    return named


@pytest.mark.parametrize("kind", [*READINGS, *LOST_LINES])
def test_damage_is_named_and_a_repair_brings_back_what_is_intact(kind, whole, corpus, tmp_path):
    intact = READINGS["intact"]
    path = shutil.copytree(whole if kind in LOST_LINES else corpus / kind, tmp_path / "run")
    if kind in LOST_LINES:
        file, way = LOST_LINES[kind]
        WAYS[way](path / file)
    read = READINGS[kind] if kind in READINGS else reading(path)
    same = all(read[key] == intact[key] for key in ("steps", "responses", "reward", "events"))
    named = files_of(read)
    assert same or named, "numbers are wrong without a word"
    if kind in LOST_LINES:
        assert {name for name in named if name.endswith(".jsonl")} == {file}
    if kind == "manifest-lost":
        output = CliRunner().invoke(cli, ["check", str(path)], catch_exceptions=False).output
        assert all(where in output for where in read["damaged"])
    left, missing_steps = LEFT.get(kind, (set(), set()))
    repair(examine(path))
    read = reading(path)
    # The line that says that the recorder was closed may be lost.
    assert {what for _, what, _ in read["findings"]} - {"not-closed"} == left
    assert read["steps"] == [row for row in intact["steps"] if row[0] not in missing_steps]
    if "quarantine" in left:
        assert len([*(path / "quarantine").glob("*.parquet")]) == max(1, len(missing_steps))
        assert all("in quarantine: " in why for why in lldscope.open_run(path).damaged.values())


@pytest.mark.parametrize("name", READINGS)
def test_a_damaged_run_is_read_as_it_always_was(corpus, name):
    assert reading(corpus / name) == READINGS[name]


def test_parts_without_a_checksum_are_read_by_size_and_footer(make_run):
    path = make_run(steps=range(5))
    manifest = path / "manifest" / "a1-r0.jsonl"
    lines = []
    for line in json_files.read_lines(manifest)[0]:
        for entry in line["parts"].values():
            del entry["crc"]
        lines.append(json_files.to_json(line) + "\n")
    manifest.write_text("".join(lines))
    with lldscope.open_run(path) as run:
        assert not run.damaged
        assert len(run.signals()) == 5
    (part,) = (path / "steps").glob("*.parquet")
    pq.write_table(pq.read_table(part), part, compression="none")
    with lldscope.open_run(path) as run:
        assert re.fullmatch(r"\d+ bytes instead of \d+", run.damaged[f"steps/{part.name}"])


@pytest.mark.parametrize(
    ("table", "file"),
    [("rows", None), ("steps", "../secret.parquet"), ("steps", "a2-r0-000001.parquet")],
)
def test_a_line_that_lists_no_part_of_its_recorder_is_damage(make_run, table, file):
    manifest = make_run(steps=range(5)) / "manifest" / "a1-r0.jsonl"
    (line, *others), _ = json_files.read_lines(manifest)
    entry = line["parts"]["steps"]
    del entry["crc"]
    line["parts"] = {table: entry | {"file": file or entry["file"]}}
    line = {name: value for name, value in line.items() if name != "crc"}
    manifest.write_text("".join(json_files.to_json(x) + "\n" for x in (line, *others)))
    with lldscope.open_run(manifest.parents[1]) as run:
        assert any("it lists no part" in why for why in run.damaged.values()), run.damaged


def test_lines_by_hand_of_several_ranks_and_of_two_processes_at_once_are_no_damage(tmp_path):
    path = tmp_path / "run"
    with lldscope.Recorder(path, world_size=2) as r, lldscope.Recorder(path, rank=1) as other:
        for step in range(3):
            for recorder in (other, r):
                recorder.event("checkpoint", step=step)
                recorder.step(step=step)
                recorder.flush()
        with (path / "events.jsonl").open("a") as file:
            file.write('{"kind": "by_hand", "step": 2}\n')
    for step in range(2):
        write_note(path, "heard", "reward-crash", step)
    notes = path / "notes.jsonl"
    notes.write_bytes(notes.read_bytes() + notes.read_bytes().splitlines(True)[-1])
    write_note(path, "heard", "reward-crash", 2)
    with lldscope.open_run(path) as run:
        assert len(run.events()) == 7
        assert not any("line" in event for event in run.events())
        assert run.damaged == {}


@pytest.mark.parametrize("odd", [{"kind": []}, {"step": 3}, {"kind": "resume", "attempt": [[]]}])
def test_events_that_are_none_are_left_out_and_named(make_run, odd):
    path = make_run(steps=range(3))
    sound = {"kind": "lr_change", "step": 1}
    (path / "events.jsonl").write_text(f"{json.dumps(odd)}\n{json.dumps(sound)}\n")
    with lldscope.open_run(path) as run:
        assert run.events() == [sound]
        assert "events.jsonl" in run.damaged
        assert run.assess().last_step == 2


@pytest.mark.parametrize("way", ["lost", "without a line"])
def test_a_live_manifest_that_is_changed_under_its_recorder_is_reported_for_good(
    tmp_path, monkeypatch, way
):
    monkeypatch.setattr(writer, "HEARTBEAT_SECONDS", 0.0)
    path = tmp_path / "run"
    with lldscope.Recorder(path) as r:
        for step in range(8):
            record_steps(r, range(step, step + 1), groups=1)
            r.flush()
            if step == 3:
                WAYS[way](manifest_path(path, 1, 0))
            if step in (4, 7):
                assert "manifest/a1-r0.jsonl" in files_of(reading(path)), step
    assert files_of(reading(path)) == {"manifest/a1-r0.jsonl"}
    repair(examine(path))
    with lldscope.open_run(path) as run:
        assert run.damaged == {}
        assert len(run.signals()) == 8, "the parts were there, and are listed again"


def test_parts_are_not_merged_over_those_whose_line_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.001)
    path = tmp_path / "run"
    with lldscope.Recorder(path) as r:
        for step in range(40):
            r.step(step=step)
            r.flush()
            if step == 5:
                lines(lambda x: x[:3])(manifest_path(path, 1, 0))
    repair(examine(path))
    with lldscope.open_run(path) as run:
        assert run.rows("SELECT count(DISTINCT step), count(*) FROM steps").rows == [(40, 40)]


@pytest.mark.parametrize("content", [None, "", '{"a": 1}'])
def test_a_run_that_lost_its_run_json_opens_and_says_so(whole, tmp_path, content):
    """A kill before it was written, a power cut, a stray rm: the rows are all there."""
    path = shutil.copytree(whole, tmp_path / "run")
    if content is None:
        (path / "run.json").unlink()
    else:
        (path / "run.json").write_text(content)
    assert find_runs(path) == find_runs(path.parent) == [path]
    with lldscope.open_run(path) as run:
        assert [*run.damaged] == ["run.json"]
        assert "`lldscope doctor --repair` writes a new one" in run.damaged["run.json"]
        assert (run.name, len(run.signals())) == ("run", 6)
        repair(examine(path))
        assert run.refresh()
        assert run.damaged == {}
        assert "lost" in run.info["reason"]


def test_a_file_in_quarantine_is_never_overwritten(tmp_path):
    for content in "abc":
        (tmp_path / "part").write_text(content)
        quarantine(tmp_path, tmp_path / "part", "steps-a1-r0-000001.parquet", "it is damaged")
    files = (tmp_path / "quarantine").glob("*.parquet")
    assert sorted(file.read_text() for file in files) == ["a", "b", "c"]


def test_half_a_surrogate_pair_becomes_what_every_output_can_encode():
    assert json_files.parse(b'{"a": ["\\ud800"], "\\udfff": NaN}').keys() == {"a", "?"}
    assert json_files.parse(b'["\\ud800", 1]') == ["?", 1]
