"""A power cut at every moment of a recording and of a compaction.

Between two flushes a disk may have written any of what was asked of it: here, contents that were
not flushed are kept, dropped, cut or zeroed, file by file, and renames, new names and removals
since the last flush are undone from any point on. Journaling file systems (ext4, XFS) keep the
order of the latter, and write those before a flush with it.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lldscope.core.schema import arrow_schema
from lldscope.recording.attempt import finish_attempt, start_attempt, write_run_file
from lldscope.recording.calls import DropCounter
from lldscope.recording.sealer import Sealer
from lldscope.storage import compaction, events, heartbeats, json_files, layout

IMAGES = 4  # of the disk, for each moment
State = tuple[dict[str, int], dict[int, bytes]]


class Disk:
    """Follows what a folder was asked to write, and what of it was flushed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, attic: Path) -> None:
        self.folder, self._attic, self.flushed = folder, attic, set[int]()
        attic.mkdir()
        self._durable: dict[int, bytes] = {}  # inode → what of its content was flushed
        # After each change of names since the last flush: path → inode, and inode → content. A file
        # grows in the order of these, too.
        self._states = [self._state()]
        self.moments: list[tuple[list[State], dict[int, bytes], int]] = []
        self.promised = 0  # steps that were sealed, as the caller was told
        for name in ("replace", "unlink", "mkdir", "open"):
            monkeypatch.setattr(os, name, self._changing(getattr(os, name)))
        sync = os.fsync

        def fsync(handle: int) -> None:
            self._look()
            sync(handle)
            inode = os.fstat(handle).st_ino
            self._durable[inode] = self._path(inode).read_bytes()
            self._states = []
            self._look()

        monkeypatch.setattr(os, "fsync", fsync)

    def _changing(self, call):
        def changed(*arguments, **options):
            self._look()
            result = call(*arguments, **options)
            self._look()
            return result

        return changed

    def _path(self, inode: int) -> Path:
        return self._attic / str(inode)

    def _tree(self) -> dict[str, int]:
        """Path → inode of each file; a second link keeps each of them when it is removed."""
        tree = {}
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file()):
            tree[path.relative_to(self.folder).as_posix()] = inode = path.stat().st_ino
            if not self._path(inode).exists():
                os.link(path, self._path(inode))
        return tree

    def _state(self) -> State:
        tree = self._tree()
        return tree, {inode: self._path(inode).read_bytes() for inode in tree.values()}

    def _look(self) -> None:
        state = self._state()
        if self._states and self._states[-1][0] == state[0]:
            self._states.pop()
        self._states.append(state)
        self.moments.append((list(self._states), dict(self._durable), self.promised))

    def images(self, dice: random.Random, place: Path) -> Iterator[tuple[Path, int]]:
        """Folders as they may be after a power cut, each with what was promised by then."""
        for number, (states, durable, promised) in enumerate(self.moments):
            for one in range(IMAGES):
                image = place / f"{number}-{one}"
                tree, contents = dice.choice(states)
                for name, inode in tree.items():
                    (image / name).parent.mkdir(parents=True, exist_ok=True)
                    content = _after_a_cut(durable.get(inode, b""), contents[inode], dice)
                    (image / name).write_bytes(content)
                yield image, promised


def _after_a_cut(durable: bytes, content: bytes, dice: random.Random) -> bytes:
    if durable == content:
        return content
    end = dice.randint(0, len(content))
    if content.startswith(durable):  # appended: what was there stays
        end = max(end, len(durable))
    return dice.choice([durable, content, content[:end], content[:end] + bytes(len(content) - end)])


def rows(table: str, step: int) -> pa.Table:
    schema = arrow_schema(table)
    values = {"step": step, "attempt": 1, "rank": 0, "time": 1.0, "response_id": 1,
              "action_index": 0, "n_responses": step}
    return pa.Table.from_pylist([{n: values.get(n) for n in schema.names}], schema)


def record(run: Path, disk: Disk, steps: int) -> None:
    """What a recorder does, without its thread and its clock."""
    owner = start_attempt(run, 0, False, None)
    write_run_file(run, owner, 1, {"config": {"lr": 1}})
    sealer = Sealer(run, owner, DropCounter(Counter()))
    for step in range(steps):
        for table in ("steps", "actions"):
            sealer.add(table, rows(table, step))
        event = {"kind": "note", "step": step, "time": 1.0, "attempt": 1, "rank": 0}
        sealer.add_line(layout.EVENTS_FILE, json_files.to_json(event))
        sealer.seal()
        assert not sealer.refused
        disk.promised = step + 1
        heartbeats.write_heartbeat(
            run, 0, closed=False, attempt=1, step=step, lines={"a1-r0.jsonl": sealer.commits}
        )
    sealer.commit([], closed=True)
    finish_attempt(run, 1, "finished", None)


def test_what_was_sealed_is_there_after_a_power_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "FAN_IN", 2)
    run, steps = tmp_path / "runs" / "run", 2
    run.parent.mkdir()
    disk = Disk(monkeypatch, run.parent, tmp_path / "attic")
    record(run, disk, steps)
    recorded = len(disk.moments)
    assert compaction.compact(run).files_removed, "the compaction is cut as well"
    assert len(disk.moments) > recorded > 50
    monkeypatch.undo()
    counts, dice = set(), random.Random(0)
    for image, promised in disk.images(dice, tmp_path / "images"):
        copy = image / "run"
        if not promised and not (copy / "manifest").exists():
            continue
        damaged: dict[str, str] = {}
        listed = layout.read_manifest(copy)
        damaged |= listed.damaged
        for table in ("steps", "actions"):
            numbers: list[int] = []
            for part in (p for p in listed.parts if p.table == table):
                with open(part.path(copy), "rb") as file:
                    assert json_files.checksum(file) == part.crc, f"{image}: {part.file}"
                read = pq.read_table(part.path(copy), columns=["step"])
                numbers += read.column("step").to_pylist()
            assert sorted(numbers) == list(range(len(numbers))), f"{image}: a gap, or a row twice"
            assert len(numbers) >= promised, f"{image}: what was sealed is lost"
        lines = events.read_journals(copy, damaged)[layout.EVENTS_FILE]
        assert len(lines) >= promised
        # zeros at the end of a file are named, as any reader does; only what was not flushed yet
        assert {name.split()[0] for name in damaged} <= {"manifest/a1-r0.jsonl", "events.jsonl"}
        if promised:
            assert layout.read_run(copy)["config"] == {"lr": 1}
        counts.add(len(numbers))
    assert counts == set(range(steps + 1)), "the cuts were early and late"
