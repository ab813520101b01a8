"""Recording to an object store: what is sealed gets there, whatever store and machine do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import suppress

import fsspec
import pytest
from crash import has_ended, in_child
from flaky_store import FlakyStore
from recorded_steps import record_steps

import lldscope
from lldscope.core.errors import LldscopeError, RunExists
from lldscope.recording import recorder as recorder_module
from lldscope.recording import spool, writer
from lldscope.recording.upload import Sender
from lldscope.runs import find_runs
from lldscope.storage.objects import ObjectStore
from lldscope.storage.url import Url

PLACE = "flaky://bucket/runs/mine"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A spool of this test; nothing is sent but by `send`, and `close` does not wait for it."""
    FlakyStore.reset()
    monkeypatch.setenv("LLDSCOPE_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setattr(spool, "_keep_sending", lambda path: None)
    monkeypatch.setattr(recorder_module, "CLOSE_SECONDS", 0)
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.01)
    end = lldscope.recording.writer.Writer.end
    monkeypatch.setattr(writer.Writer, "end", lambda self, seconds: end(self, 120))
    yield tmp_path
    FlakyStore.reset()


def senders(place: str = PLACE) -> list[Sender]:
    spools = spool.run_folder(Url(place)).glob(f"*/{spool.SPOOL_FILE}")
    return [Sender(file.parent) for file in sorted(spools)]


def send(place: str = PLACE, rounds: int = 200) -> None:
    """Send until nothing is left, however often the store refuses."""
    for sender in senders(place):
        for _ in range(rounds):
            with suppress(LldscopeError):
                if sender.round():
                    break
        assert not sender.path.exists(), "still waiting"


def rows(place) -> dict[str, int]:
    with lldscope.open_run(place) as run:
        assert run.damaged == {}
        tables = ("steps", "updates", "responses", "actions")
        return {t: int(run.sql(f"SELECT count(*) n FROM {t}").n[0]) for t in tables}


def test_a_run_on_a_store_answers_as_the_directory_does(here):
    for place in (PLACE, here / "local"):
        with lldscope.Recorder(place, name="one", config={"lr": 1e-4}) as recorder:
            record_steps(recorder, range(5))
            recorder.event("checkpoint", step=3)
    send()
    assert find_runs("flaky://bucket") == [Url(PLACE)]
    with lldscope.open_run(PLACE) as run, lldscope.open_run(here / "local") as local:
        assert run.signals().equals(local.signals())
        assert (run.name, run.info["status"], run.damaged) == ("one", "finished", {})
        assert [e["kind"] for e in run.events()] == [e["kind"] for e in local.events()]
    assert not senders(), "nothing is left in the spool"


def test_a_run_is_claimed_by_one(monkeypatch):
    first = lldscope.Recorder(PLACE)
    with pytest.raises(RunExists, match="already holds a run"):
        lldscope.Recorder(PLACE)
    lldscope.Recorder(PLACE, rank=1).close()
    with monkeypatch.context() as both_look_at_once:
        both_look_at_once.setattr(ObjectStore, "listing", lambda store, folder: [])
        with pytest.raises(RunExists, match="give each process a rank"):
            lldscope.Recorder(PLACE, rank=1)
    record_steps(first, range(5))
    first.close()
    send()
    again = lldscope.Recorder(PLACE, resume=True, name="again")
    assert again.attempt == 2
    record_steps(again, range(3, 8))
    again.close()
    send()
    assert rows(PLACE)["steps"] == 8
    with lldscope.open_run(PLACE) as run:
        assert [a["attempt"] for a in run.info["attempts"]] == [1, 2]
        assert run.name == "again"


def test_a_directory_that_was_copied_to_a_store_is_a_run_there(here):
    with lldscope.Recorder(here / "local") as recorder:
        record_steps(recorder, range(2))
        recorder.event("checkpoint", step=1)
    fsspec.filesystem("flaky").put(str(here / "local"), "/bucket/runs/mine", recursive=True)
    with pytest.raises(RunExists, match="already holds a run"):
        lldscope.Recorder(PLACE)
    with lldscope.Recorder(PLACE, resume=True) as recorder:
        record_steps(recorder, range(2, 5))
        recorder.event("checkpoint", step=4)
    send()
    assert rows(PLACE)["steps"] == 5
    with lldscope.open_run(PLACE) as run:
        assert [event["step"] for event in run.events()] == [1, 4]
        assert [a["attempt"] for a in run.info["attempts"]] == [1, 2]


def test_parts_are_merged_and_what_they_replace_is_removed():
    recorder = lldscope.Recorder(PLACE)
    (sender,) = senders()
    for step in range(8):
        record_steps(recorder, range(step, step + 1), groups=1)
        recorder.flush()
        sender.round()
    recorder.close()
    send()
    assert rows(PLACE)["steps"] == 8
    files = FlakyStore().find("/bucket")
    assert len([f for f in files if "/steps/" in f]) == 1
    assert len(files) < 15


def test_the_next_recorder_sends_what_the_one_before_left(monkeypatch):
    spools = []
    monkeypatch.setattr(spool, "_keep_sending", spools.append)
    first = lldscope.Recorder(PLACE)
    record_steps(first, range(2))
    second = lldscope.Recorder(PLACE, resume=True)
    assert first.path in spools
    second.close()  # at the end of the process it would wait for the store
    first.close()


def test_the_spool_is_for_its_user_only():
    recorder = lldscope.Recorder(PLACE)
    recorder.close()
    assert recorder.path.parents[1].name == "spool"
    assert recorder.path.stat().st_mode & 0o777 == 0o700


def test_what_the_store_refuses_is_said(here):
    mine, warnings = spool.Spool(Url(PLACE), rank=0, resume=False, attempt=1), []
    for error in ("", "no access"):
        (mine.path / spool.ERROR_FILE).write_text(error)
        mine.keep_sending(lambda *words: warnings.append(words[0]))
    assert warnings == ["store: no access"]


def test_a_spool_of_another_run_is_left_alone():
    recorder = lldscope.Recorder(PLACE)
    record_steps(recorder, range(3))
    recorder.close()
    FlakyStore.reset()  # somebody deleted the run, and recorded another one there
    other = lldscope.Recorder(PLACE)
    record_steps(other, range(7))
    other.close()
    for sender in senders():
        if sender.path == recorder.path:
            with pytest.raises(LldscopeError, match="another run by now"):
                sender.round()
        else:
            assert sender.round()
    assert rows(PLACE)["steps"] == 7


def test_a_spool_that_was_removed_is_forgotten(here, monkeypatch):
    recorder = lldscope.Recorder(PLACE)
    (sender,) = senders()
    record_steps(recorder, range(3))
    recorder.close()
    FlakyStore.faults = 1.0
    with pytest.raises(LldscopeError):
        sender.round()
    shutil.rmtree(recorder.path)
    pauses = iter(range(20))
    monkeypatch.setattr(time, "sleep", lambda seconds: next(pauses))
    sender.follow()  # ends, although the store refuses everything


def test_what_killed_ranks_left_is_sent_by_a_command(here, lldscope_command):
    """The store is a folder, which processes share, as fsspec writes it."""
    (here / "store").mkdir()
    shared = f"file://{here}/store/run"

    def record() -> None:
        ranks = [lldscope.Recorder(shared, rank=r, world_size=3, attempt=1) for r in range(3)]
        for step in range(4):
            for recorder in ranks:
                record_steps(recorder, range(step, step + 1), groups=1)
                recorder.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    assert has_ended(in_child(record, here / "nothing"))
    assert not list((here / "store").rglob("*.parquet"))
    done = lldscope_command("upload")
    assert (done.returncode, done.stderr) == (0, "")
    with lldscope.open_run(shared) as run:
        assert run.damaged == {}
        sealed = run.rows("SELECT rank, list(step ORDER BY step) FROM steps GROUP BY ALL").rows
    assert dict(sealed) == {rank: [0, 1, 2, 3] for rank in range(3)}
    done = lldscope_command("check", shared, "--json")
    assert json.loads(done.stdout)["path"] == shared
    assert lldscope_command("upload").returncode == 0
