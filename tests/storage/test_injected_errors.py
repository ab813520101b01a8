"""An error at every call of the write path that asks the system for something, one after another:
nothing sealed is lost, the run can be read, and training never sees an exception."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.doctor.checks import examine
from lldscope.storage import compaction, integrity, layout
from lldscope.storage.events import read_journals
from lldscope.storage.notes import write_note

STEPS = 2
WRITES = 2  # of one file that are refused: a part is written in some fifty pieces
BY_PATH = ("open", "mkdir", "replace", "unlink", "stat", "scandir")
BY_HANDLE = ("write", "pread", "fsync", "ftruncate", "fstat")


class File:
    """An open file whose every call may be refused."""

    def __init__(self, real: Any, disk: Disk) -> None:
        self._real, self._disk, self._writes = real, disk, 0
        if hasattr(real, "fileno"):
            disk.handles.add(real.fileno())

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        if name not in ("read", "write", "flush", "seek"):
            return value

        def call(*arguments: Any) -> Any:
            self._writes += name == "write"
            if name != "write" or self._writes <= WRITES:
                self._disk.ask(f"file.{name}")
            return value(*arguments)

        return call

    def __enter__(self) -> File:
        return self

    def __exit__(self, *raised: object) -> None:
        self._real.close()


class Disk:
    """Counts what is asked of a run's folder, and refuses the call with a number, or it and all
    that follow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.handles = str(folder), set[int]()
        self.fail_at, self.for_good = 0, False
        self.asked: list[str] = []
        for name in BY_PATH:
            monkeypatch.setattr(os, name, self._by_path(name, getattr(os, name)))
        for name in BY_HANDLE:
            monkeypatch.setattr(os, name, self._by_handle(name, getattr(os, name)))
        opener = builtins.open
        monkeypatch.setattr(builtins, "open", self._opener(opener))
        monkeypatch.setattr(io, "open", self._opener(opener))

    def ask(self, name: str) -> None:
        self.asked.append(name)
        number = len(self.asked)
        if number == self.fail_at or (self.for_good and number > self.fail_at):
            raise OSError(errno.ENOSPC, "injected")

    def _concerns(self, path: object) -> bool:
        return isinstance(path, str | Path) and str(path).startswith(self.folder)

    def _by_path(self, name: str, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            ours = bool(arguments) and self._concerns(arguments[0])
            if ours:
                self.ask(name)
            result = real(*arguments, **options)
            if ours and name == "open":
                self.handles.add(result)
            return result

        return call

    def _by_handle(self, name: str, real: Any) -> Any:
        def call(handle: int, *arguments: Any, **options: Any) -> Any:
            if handle in self.handles:
                self.ask(name)
            return real(handle, *arguments, **options)

        return call

    def _opener(self, real: Any) -> Any:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if not self._concerns(path):
                return real(path, *arguments, **options)
            self.ask("open")
            return File(real(path, *arguments, **options), self)

        return call


def each_error(
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[int], Path],
    work: Callable[[Path, Disk], Any],
    for_good: bool = False,
) -> Iterator[tuple[int, Path, Disk, Any]]:
    """Do the work in a place with an error at its first call, in the next with one at its second,
    and so on up to one without an error."""
    for number in itertools.count(1):
        path = place(number)
        with monkeypatch.context() as patch:
            disk = Disk(patch, path)
            disk.fail_at, disk.for_good = number, for_good
            result = work(path, disk)
        yield number, path, disk, result
        if len(disk.asked) < number:
            return


def record(path: Path, disk: Disk) -> tuple[lldscope.Recorder | None, int]:
    """Record a few steps; the recorder, if it could start, and how many were sealed before the
    first error."""
    try:
        recorder = lldscope.Recorder(path)
    except LldscopeError:
        return None, 0
    safe = 0
    for step in range(STEPS):
        recorder.responses(step=step, response_id=np.arange(4), reward=1.0)
        recorder.event("checkpoint", step=step)
        recorder.step(step=step)
        recorder.flush()
        safe += len(disk.asked) < disk.fail_at
    recorder.close()
    return recorder, safe


def steps_of(path: Path, table: str) -> Counter[int]:
    parts = [p for p in layout.read_manifest(path).parts if p.table == table]
    for part in parts:
        assert integrity.find_damage(path, part) is None
    return Counter(s for p in parts for s in pq.read_table(p.path(path))["step"].to_pylist())


def check(
    path: Path, recorder: lldscope.Recorder | None, safe: int, everything: bool, whole: bool
) -> None:
    """`everything`: nothing may be lost. `whole`: open the run as well, which takes longer."""
    if recorder is None:
        return  # refused before training began, with a sentence
    steps = steps_of(path, "steps")
    assert steps == dict.fromkeys(range(len(steps)), 1)
    assert len(steps) >= safe
    assert steps_of(path, "responses") == dict.fromkeys(steps, 4)
    losses = recorder.dropped["steps: rows lost because the disk refuses them"]
    assert len(steps) + losses == STEPS
    if everything:
        assert len(steps) == STEPS
    damaged: dict[str, str] = {}
    events = read_journals(path, damaged)[layout.EVENTS_FILE]
    assert damaged == {}
    saves = [e["step"] for e in events if e["kind"] == "checkpoint"]
    assert saves[:safe] == list(range(safe))
    assert not everything or saves == list(range(STEPS))
    if whole:
        with lldscope.open_run(path) as run:
            assert {k for k in run.damaged if not k.startswith("heartbeat/")} <= {"run.json"}
            assert run.rows("SELECT count(*) FROM steps").rows == [(len(steps),)]
    assert not [
        f for f in examine(path).findings if f.severity == "damage" and f.what != "run-json"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_an_error_at_every_call_of_a_recording(tmp_path, monkeypatch, for_good):
    errors = each_error(monkeypatch, lambda number: tmp_path / f"{number}", record, for_good)
    for number, path, disk, (recorder, safe) in errors:
        try:
            check(path, recorder, safe, everything=not for_good, whole=number % 9 == 0)
        except BaseException:
            print(f"call {number}: {disk.asked[number - 4 : number]}")
            raise
    assert number > 60
    assert {"write", "replace", "fsync", "file.write", "open"} <= set(disk.asked)


@pytest.mark.slow
def test_an_error_at_every_call_of_a_compaction(tmp_path, monkeypatch):
    monkeypatch.setattr("lldscope.recording.writer.CLOSE_MERGE_BYTES", 0)

    def make(number: int) -> Path:
        path = tmp_path / f"{number}"
        with lldscope.Recorder(path) as recorder:
            for step in range(STEPS):
                recorder.responses(step=step, response_id=np.arange(4), reward=1.0)
                recorder.step(step=step)
                recorder.flush()
        return path

    def compact(path: Path, disk: Disk) -> None:
        with contextlib.suppress(OSError):
            compaction.compact(path)

    for number, path, _, _ in each_error(monkeypatch, make, compact):
        assert steps_of(path, "steps") == dict.fromkeys(range(STEPS), 1), number
        assert steps_of(path, "responses") == dict.fromkeys(range(STEPS), 4)
        compaction.compact(path)
        assert steps_of(path, "steps") == dict.fromkeys(range(STEPS), 1)
        assert len(list((path / "steps").glob("*"))) == 1
    assert number > 20


def test_an_error_at_every_call_of_a_note(tmp_path, monkeypatch):
    path = tmp_path / "run"
    with lldscope.Recorder(path) as recorder:
        recorder.step(step=0)

    def write(path: Path, disk: Disk) -> bool:
        try:
            write_note(path, "acknowledge", "reward-crash", disk.fail_at)
        except LldscopeError:
            return False
        return True

    count = 0
    for number, _, _, is_written in each_error(monkeypatch, lambda number: path, write):
        count += is_written
        damaged: dict[str, str] = {}
        lines = read_journals(path, damaged)
        assert damaged == {}
        assert len(lines[layout.NOTES_FILE]) == count, number
    assert number > 5
