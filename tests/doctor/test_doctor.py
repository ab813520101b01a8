"""The doctor: every kind of damage is reported, and repaired without losing an intact row."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from recorded_steps import record_steps, wait_until
from sealed_runs import beat_of_a_killed_one

import lldscope
from lldscope.core.errors import RunNotFound
from lldscope.doctor.checks import examine, repair
from lldscope.recording import writer
from lldscope.storage import layout
from lldscope.storage.manifest import manifest_path


def record(path: Path) -> Path:
    with lldscope.Recorder(path) as r:
        for start in (0, 10, 20):
            record_steps(r, range(start, start + 10))
            r.flush()
    return path


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of three seals by a recorder that has ended without closing."""
    monkeypatch.setattr(writer, "CLOSE_MERGE_BYTES", 0)
    monkeypatch.setattr(writer, "SEAL_SECONDS", 3600.0)  # `flush` alone seals
    return record(tmp_path / "run")


def findings(path: Path) -> dict[str, str]:
    """Kind of finding → its severity."""
    return {f.what: f.severity for f in examine(path).findings}


def steps(path: Path) -> list[int]:
    with lldscope.open_run(path) as run:
        return run.signals()["step"].tolist()


def findings_after_repair(path: Path) -> dict[str, str]:
    repair(examine(path))
    return findings(path)  # examined again, without what was repaired


def test_a_merged_part_whose_line_is_lost_is_not_taken_for_a_leftover(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(writer, "SEAL_SECONDS", 3600.0)
    path = record(tmp_path / "run")
    manifest = manifest_path(path, 1, 0)
    lines = [x for x in manifest.read_bytes().splitlines() if b"replaces" not in x]
    assert len(lines) == 4
    manifest.write_bytes(b"\n".join(lines) + b"\n")
    assert "damage" in findings(path).values()
    assert findings_after_repair(path) == {}
    assert steps(path) == list(range(30))


def test_what_a_killed_process_leaves_is_examined_before_it_is_removed(run):
    """A file that was not finished, and a seal that was written and not listed."""
    manifest = manifest_path(run, 1, 0)
    lines = manifest.read_text().splitlines()
    manifest.write_text("\n".join(lines[:2]) + "\n")  # as after a kill before the third commit
    beat_of_a_killed_one(run)
    old = time.time() - 3600
    os.utime(manifest, (old, old))
    (run / "actions/a1-r0-000004.parquet.9.inprogress").write_bytes(b"half")
    (run / "steps/notes.txt").write_text("mine")
    assert sorted((f.what, f.severity) for f in examine(run).findings) == [
        ("leftover", "note"), *[("leftover", "warning")] * 4, ("not-closed", "warning"),
    ]
    assert findings_after_repair(run) == {"not-closed": "warning"}
    assert steps(run) == list(range(20))
    assert (run / "steps/notes.txt").exists()
    assert (run / "quarantine/actions-a1-r0-000003.parquet").exists()


def test_nothing_of_a_running_recorder_is_touched(tmp_path):
    path = tmp_path / "run"
    with lldscope.Recorder(path) as r:
        r.step(step=0)
        r.flush()
        (path / "steps/a1-r0-000002.parquet.9.inprogress").write_bytes(b"half")
        before = {p: p.stat().st_mtime_ns for p in path.glob("[!h]*/*")}
        assert findings_after_repair(path) == {"recording": "note"}
        assert {p: p.stat().st_mtime_ns for p in path.glob("[!h]*/*")} == before


def test_losses_are_reported(run):
    beat = json.loads((run / "heartbeat/r0.json").read_text())
    beat |= {"dropped": {"tokens: rows lost": 7}}
    (run / "heartbeat/r0.json").write_text(json.dumps(beat))
    assert {f.what: f.message for f in examine(run).findings} == {
        "dropped": "7 × tokens: rows lost."
    }


def test_a_clock_that_was_set_back_costs_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.02)
    path = tmp_path / "run"
    real = time.time
    with lldscope.Recorder(path) as r:
        for step in range(6):
            if step == 3:
                monkeypatch.setattr(time, "time", lambda: real() - 5000)
            r.responses(step=step, response_id=np.arange(3))
            r.step(step=step)
            wait_until(lambda last=step: last in (
                part.last_step for part in layout.read_manifest(path).parts))
        monkeypatch.setattr(time, "time", real)
    assert steps(path) == list(range(6))
    assert examine(path).findings == []


def test_the_command(run, tmp_path, lldscope_command):
    intact = lldscope_command("doctor", run)
    assert intact.returncode == 0
    assert "12 parts" in intact.stdout
    assert "30 rows of steps" in intact.stdout
    part = run / "steps/a1-r0-000002.parquet"
    part.write_bytes(b"")
    done = lldscope_command("doctor", run, "--json")
    assert done.returncode == 11
    output = json.loads(done.stdout)
    assert (output["schema"], output["worst"]) == (1, "damage")
    assert output["findings"][0]["repair"] == "move it into quarantine/"
    assert lldscope_command("doctor", run, "--repair").returncode == 10
    for arguments, code in (([tmp_path / "no"], 1), (["--repair"], 2)):
        done = lldscope_command("doctor", *arguments)
        assert (done.returncode, done.stdout) == (code, "")
    with pytest.raises(RunNotFound):
        examine(tmp_path)
