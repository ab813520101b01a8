"""The order of requests, driven by the test: no late or doubled one brings back an older state.

No recorder and no clock: a spool is written by hand, and each write to the store is refused,
carried out twice, or carried out whenever the seed says. After a restart of the process that sends,
listings lag.
"""

from __future__ import annotations

import random
import time

import pytest
from flaky_store import FlakyStore
from sealed_runs import sealed

from lldscope.core.errors import LldscopeError
from lldscope.query.remote import RemoteCopy
from lldscope.recording import spool, upload
from lldscope.recording.upload import Sender
from lldscope.storage import heartbeats, json_files, layout
from lldscope.storage.url import Url

PLACE = Url("flaky://bucket/runs/mine")


class HandMadeRun:
    """What a recorder would write into its spool, a step at a time and without a thread."""

    def __init__(self) -> None:
        self._spool = spool.Spool(PLACE, rank=0, resume=False, attempt=1)
        self.path, self.steps = self._spool.path, 0
        layout.write_run(self.path, layout.new_run(0.0, status="running"))
        self.beat()
        self._spool.open()

    def beat(self) -> None:
        heartbeats.write_heartbeat(
            self.path, 0, closed=False, attempt=1, step=self.steps,
            lines={"a1-r0.jsonl": self.steps},
        )

    def step(self) -> None:
        event = {"kind": "note", "step": self.steps, "time": 1.0, "attempt": 1, "rank": 0}
        json_files.append_line(self.path / layout.EVENTS_FILE, event)
        self.steps += 1
        sealed(self.path, range(self.steps, self.steps + 1), rows=1, table="steps")
        self.beat()

    def end(self) -> None:
        layout.write_run(self.path, layout.read_run(self.path) | {"status": "finished"})
        (self.path / spool.CLOSED_FILE).touch()


def read() -> tuple[str, int, int, int]:
    """Status, step of the heartbeat, parts and events, as a reader of the store gets them."""
    copy = RemoteCopy(PLACE)
    copy.sync()
    listed = layout.read_manifest(copy.path)
    copy.fetch(listed.parts)
    assert listed.damaged == {}, "a reader sees no half of anything"
    assert all(p.path(copy.path).exists() for p in listed.parts), "and every part that is listed"
    status = layout.read_run(copy.path)["status"]
    beat = heartbeats.read_heartbeats(copy.path)[0]["step"]
    events = json_files.read_lines(copy.path / layout.EVENTS_FILE)[0]
    copy.close()
    return status, beat, len(listed.parts), len(events)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("LLDSCOPE_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setattr(spool, "_keep_sending", lambda path: None)
    monkeypatch.setattr(upload, "AGAIN_SECONDS", 0.0)
    yield FlakyStore()
    FlakyStore.reset()


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 6))]
)
def test_no_order_of_late_double_and_refused_requests_loses_anything(block, store):
    for seed in range(10 * block, 10 * block + 10):
        choose = random.Random(seed)
        FlakyStore.reset(seed)
        run, faults = HandMadeRun(), choose.choice((0.2, 0.5, 0.9))
        sender = Sender(run.path)
        for _ in range(choose.randint(2, 8)):
            FlakyStore.faults = faults if choose.random() < 0.8 else 0.0
            choose.choice((run.step, run.beat))()
            try:
                sender.round()
                assert read()[0] == "running"
            except LldscopeError:
                if choose.random() < 0.3:
                    sender = Sender(run.path)  # the process that sends was killed
            if choose.random() < 0.2:
                store.apply_late()
        run.end()
        for rounds in range(400):
            store.apply_late()
            try:
                if sender.round():
                    break
            except LldscopeError:
                FlakyStore.faults = faults if rounds < 20 else 0.0
                if choose.random() < 0.1:
                    sender = Sender(run.path)
        assert not run.path.exists(), f"seed {seed}: the spool is sent"
        assert read() == ("finished", run.steps, run.steps, run.steps), f"seed {seed}"


def test_a_part_that_comes_while_the_manifest_is_read_is_sent_with_it(store, monkeypatch):
    run = HandMadeRun()
    sender = Sender(run.path)
    look = sender._look
    monkeypatch.setattr(sender, "_look", lambda: run.step() or look())
    sender.round()
    assert read() == ("running", 1, 1, 1)


def test_what_has_not_changed_is_not_sent_again(store, monkeypatch):
    monkeypatch.setattr(upload, "AGAIN_SECONDS", 600.0)
    run, names, write = HandMadeRun(), [], FlakyStore.pipe_file
    sender = Sender(run.path)
    sender.round()

    def counted(self, path, *arguments, **options):
        names.append(path.rsplit("/", 2)[1])
        write(self, path, *arguments, **options)

    monkeypatch.setattr(FlakyStore, "pipe_file", counted)
    sender.round()
    assert names == []
    run.beat()
    sender.round()
    assert names == ["heartbeat"]
    monkeypatch.setattr(upload, "AGAIN_SECONDS", 0.0)
    sender.round()
    assert sorted(names[1:]) == ["heartbeat", "mine"], "everything, in case it was lost"


def test_a_recorder_elsewhere_has_ended_once_it_is_silent(store):
    run = HandMadeRun()
    sender, beat = Sender(run.path), heartbeats.read_heartbeats(run.path)[0]
    for age, ended in ((0.0, False), (2 * upload.SILENT_SECONDS, True)):
        elsewhere = beat | {"space": "another", "time": time.time() - age}
        json_files.replace_file(run.path / heartbeats.file_of(0), json_files.to_json(elsewhere))
        assert sender._has_ended() == ended
