"""Real processes: kills, a full or read-only disk, two recorders of the same run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from crash import has_ended, in_child
from recorded_steps import wait_until

import lldscope
from lldscope.core.errors import RunExists
from lldscope.recording import writer
from lldscope.recording.attempt import next_owner
from lldscope.storage import heartbeats, layout
from lldscope.storage.part import Owner

HELPERS = Path(__file__).parents[1] / "helpers"


def script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """One of the scripts beside this file, in a process without threads, which may fork."""
    return subprocess.run(
        [sys.executable, HELPERS / f"{name}.py", *map(str, arguments)],
        capture_output=True, text=True, timeout=600,
    )


@pytest.mark.slow
def test_processes_that_are_killed_lose_no_sealed_row():
    done = script("crash", 12, 7)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recorders" in done.stdout


@pytest.mark.slow
def test_readers_see_every_sealed_row_once_beside_eight_writers():
    done = script("beside", 6)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 writers" in done.stdout


# -- a disk that refuses writes -------------------------------------------------------------------

def recorded_steps(path: Path) -> list[int]:
    with lldscope.open_run(path) as run:
        assert run.damaged == {}
        return run.sql("SELECT step FROM steps ORDER BY step")["step"].tolist()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a megabyte; without the right to mount one the test is skipped."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_costs_nothing_once_there_is_room(small_disk, monkeypatch, caplog):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.05)
    path, filler = small_disk / "run", small_disk / "filler"
    with lldscope.Recorder(path) as recorder:
        for step in range(14):
            if step == 3:
                with suppress(OSError), open(filler, "wb", buffering=0) as file:
                    while file.write(bytes(4096)):
                        pass
            if step == 12:
                filler.unlink()
            recorder.responses(step=step, response_id=np.arange(8), reward=1.0)
            recorder.step(step=step, n_responses=8)
            recorder.flush()
    assert recorder.dropped == {}
    assert recorded_steps(path) == list(range(14))
    logged = [m for m in caplog.messages if "accepts" in m]
    assert [s for s in logged if "accepts no rows" in s and "Make room" in s] == logged[:1]
    assert "accepts rows again" in logged[1]
    assert not list(path.rglob("*.inprogress"))


# -- two recorders of one run ---------------------------------------------------------------------


def test_of_two_processes_that_start_a_run_at_once_one_is_refused(tmp_path):
    """Both find an empty directory; only one can create the first manifest."""
    path, (ready, signals) = tmp_path / "run", os.pipe()

    def start(result: Path) -> None:
        os.read(ready, 1)
        try:
            with lldscope.Recorder(path) as recorder:
                recorder.step(step=0)
            result.write_text("recorded")
        except RunExists as error:
            result.write_text(f"refused: {error}")

    results = [tmp_path / name for name in "ab"]
    children = [in_child(lambda result=result: start(result), path) for result in results]
    os.write(signals, b"..")
    assert [has_ended(child) for child in children] == [False, False]
    output = sorted(result.read_text() for result in results)
    assert output[0] == "recorded"
    assert output[1].startswith("refused")
    assert "another directory" in output[1]
    assert recorded_steps(path) == [0]


def test_a_process_that_resumes_a_run_that_is_still_recorded_becomes_an_attempt(tmp_path, caplog):
    path = tmp_path / "run"
    first = lldscope.Recorder(path)
    first.step(step=0, n_responses=1)
    first.step(step=1, n_responses=1)
    first.flush()
    with pytest.raises(RunExists, match="already holds a run"):
        lldscope.Recorder(path)
    assert "still records" not in caplog.text
    second = lldscope.Recorder(path, resume=True)
    assert second.attempt == 2
    assert "still records" in caplog.text
    second.step(step=1, n_responses=2)
    second.flush()
    first.step(step=2, n_responses=1)
    first.close("failed", "its node was lost")
    assert (
        layout.read_run(path)["status"] == "running"
    )  # the last attempt determines how the run ends
    assert heartbeats.read_heartbeats(path)[0]["attempt"] == 2
    second.step(step=2, n_responses=2)
    second.close()
    assert layout.read_run(path)["status"] == "finished"
    with lldscope.open_run(path) as run:
        assert run.signals()["n_responses"].tolist() == [1, 2, 2]
        assert run.sql("SELECT count(*) n FROM all_steps")["n"][0] == 5


def test_a_second_recorder_of_a_rank_is_refused(tmp_path):
    path = tmp_path / "run"
    with lldscope.Recorder(path, world_size=2), lldscope.Recorder(path, rank=1, world_size=2):
        with pytest.raises(RunExists, match=r"Another process \(\d+\) .* as rank 1"):
            lldscope.Recorder(path, rank=1, world_size=2)
        with pytest.raises(RunExists, match="rank of its own"):
            lldscope.Recorder(path, rank=1, attempt=1)


@pytest.mark.parametrize(
    ("rank", "change", "owner"),
    [(0, {}, (2, 0, 1)), (1, {}, (1, 1, 2)), (1, {"closed": True}, (2, 1, 1)),
     (1, {"time": 0.0}, (2, 1, 1))],
)
def test_rank_0_does_not_rely_on_ranks_of_another_machine(rank, change, owner):
    """They were alive a moment ago. Whether they still are is not known here."""
    beat = {"attempt": 1, "time": time.time(), "pid": 1, "space": "another"} | change
    owners = {Owner(1, 0), Owner(1, 1)}
    beats = {0: beat, 1: beat}
    claimed = next_owner(Path("run"), owners, beats, rank, True, None, lambda o: o not in owners)
    assert claimed == Owner(*owner)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_a_process_that_nobody_waits_for_has_ended():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    beat = {"pid": process.pid, "space": heartbeats.pid_namespace()}
    assert not heartbeats.process_exited(beat)
    process.stdin.close()
    wait_until(lambda: heartbeats.process_exited(beat), 60)
    assert process.poll() is not None


def test_losses_of_an_earlier_attempt_are_still_reported(tmp_path):
    path = tmp_path / "run"
    for _ in range(2):
        with lldscope.Recorder(path, resume=True) as r:
            r.step(step=0, nonsense=1)
    (entry,) = heartbeats.read_heartbeats(path)[0]["dropped"].items()
    assert entry == ("steps.nonsense: not a column of the schema", 2)


# -- resuming -------------------------------------------------------------------------------------


def test_late_rows_of_the_last_step_are_read(tmp_path):
    path = tmp_path / "run"
    r = lldscope.Recorder(path)
    r.step(step=0, n_responses=1)
    r.flush()
    with lldscope.open_run(path) as followed:
        r.updates(step=0, update=[0], grad_norm=[7.0])
        r.close()
        followed.refresh()
        assert followed.signals()["grad_norm"].tolist() == [7.0]
