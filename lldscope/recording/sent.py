"""What of one recorder's spool is on its store, and what is next."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..storage import heartbeats, json_files, layout, logs
from ..storage.compaction import SILENT_SECONDS
from ..storage.logs import LogName
from ..storage.manifest import ManifestFile, manifest_path
from ..storage.part import Part, part_name
from .spool import CLOSED_FILE, size_of

GRACE_SECONDS = 60.0  # objects that were replaced stay this long for readers that are using them


class _Small:
    """A small file of one owner, and the objects that the store has of it."""

    def __init__(
        self, path: Path, kind: str, owner: tuple[int, int], names: Iterable[LogName]
    ) -> None:
        self._path, self.kind, self._owner = path, kind, owner
        self.objects = {n for n in names if (n.kind, n.attempt, n.rank) == (kind, *owner)}

    def done(self, name: LogName, content: bytes) -> set[LogName]:
        """An object is on the store; returns those that it supersedes."""
        old = {n for n in self.objects if name.supersedes(n)}
        self.objects = self.objects - old | {name}
        return old


class _Lines(_Small):
    """A file of lines that grows."""

    def __init__(
        self, path: Path, kind: str, owner: tuple[int, int], names: Iterable[LogName]
    ) -> None:
        super().__init__(path, kind, owner, names)
        self._ends = [0]  # of each line, in bytes
        self.sent = 0  # lines
        for name in logs.covering(self.objects):
            if name.first > self.sent + 1:
                break
            self.sent = name.last

    def read(self) -> list[bytes]:
        """The complete lines that were appended."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._ends[-1])
                *new, _ = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        for line in new:
            self._ends.append(self._ends[-1] + len(line) + 1)
        return new

    def due(self) -> dict[LogName, bytes]:
        """The next object, if there are lines to send."""
        last = len(self._ends) - 1
        if last <= self.sent:
            return {}
        first = logs.next_first(self.sent, last)
        with open(self._path, "rb") as file:
            file.seek(self._ends[first - 1])
            content = file.read(self._ends[last] - self._ends[first - 1])
        return {LogName(self.kind, *self._owner, first, last): content}

    def done(self, name: LogName, content: bytes) -> set[LogName]:
        self.sent = name.last
        return super().done(name, content)


class _State(_Small):
    """A file that is written as a whole.

    A content has one number for good. The number is on disk before the first request that uses
    it, because a request that failed here may still be carried out later: with another content
    under the same number it would put an older state in the place of the newer one.
    """

    _content: bytes | None = None
    _sent: bytes | None = None
    _numbered: bytes | None = None  # the content that `_number` belongs to

    def __init__(
        self, path: Path, kind: str, owner: tuple[int, int], names: Iterable[LogName]
    ) -> None:
        super().__init__(path, kind, owner, names)
        self._number_file = path.with_name(f"{path.name}.number")
        self._number = max((n.last for n in self.objects), default=0)
        with suppress(FileNotFoundError, ValueError):
            self._number = max(self._number, int(self._number_file.read_text("ascii")))

    def read(self) -> None:
        try:
            self._content = self._path.read_bytes()
        except FileNotFoundError:
            self._content = None

    def due(self) -> dict[LogName, bytes]:
        """The next version, if the file has changed."""
        if self._content is None or self._content == self._sent:
            return {}
        if self._content != self._numbered:
            json_files.replace_file(self._number_file, str(self._number + 1))
            self._number, self._numbered = self._number + 1, self._content
        return {LogName(self.kind, *self._owner, self._number, self._number): self._content}

    def done(self, name: LogName, content: bytes) -> set[LogName]:
        self._sent = content
        return super().done(name, content)

    def opening(self) -> dict[LogName, bytes]:
        """The first version, which is sent before all else. A heartbeat says nothing in it of
        lines, which are not sent yet."""
        if self.objects or not (first := self.due()):
            return {}
        self._numbered = None  # the next version is another content
        ((name, content),) = first.items()
        if self.kind == logs.HEARTBEAT:
            with suppress(ValueError, AttributeError):
                told = {k: v for k, v in json_files.parse(content).items() if k not in _OF_LINES}
                content = json_files.to_json(told).encode()
        return {name: content}


_OF_LINES = ("lines", "journals")  # what a heartbeat says of other files


@dataclass
class Due:
    """What is to be sent of a spool, in this order, and whether its recorder has ended.

    With `opening` it is not all there is.
    """

    opening: dict[LogName, bytes] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    streams: dict[LogName, bytes] = field(default_factory=dict)
    manifest: dict[LogName, bytes] = field(default_factory=dict)
    states: dict[LogName, bytes] = field(default_factory=dict)
    last: bool = False

    @property
    def empty(self) -> bool:
        return not (self.opening or self.parts or self.streams or self.manifest or self.states)


class SpooledRun:
    """One recorder's spool. `names` are the small objects of the run that the store has."""

    def __init__(self, path: Path, attempt: int, rank: int, names: Collection[LogName]) -> None:
        self.path = path
        self.owner = owner = attempt, rank
        beat = path / heartbeats.HEARTBEAT_DIR / f"r{rank}.json"
        self._states = [
            _State(path / layout.RUN_FILE, logs.RUN, owner, names),
            _State(beat, logs.HEARTBEAT, owner, names),
        ]
        self._manifest = _Lines(manifest_path(path, *owner), logs.MANIFEST, owner, names)
        self._streams = [
            _Lines(path / layout.EVENTS_FILE, logs.EVENTS, owner, names),
            _Lines(path / layout.ALERTS_FILE, logs.ALERTS, owner, names),
        ]
        self._commits = ManifestFile(path, *owner)
        self._sent: set[tuple[str, str]] = set()  # (table, file)
        self._stale: list[tuple[float, str]] = []  # since when, object

    def look(self) -> Due:
        """What waits now. What speaks of a file is read before that file, and sent after it."""
        due = Due(last=self.has_ended())
        for state in self._states:
            state.read()
            due.opening |= state.opening()
        if due.opening:
            return due
        for line in self._manifest.read():
            self._commits.lines += 1
            self._commits.replay(line)
            if self._commits.lines == self._manifest.sent:  # parts are sent before their lines
                self._sent |= self._commits.active.keys()
        for stream in self._streams:
            stream.read()
            due.streams |= stream.due()
        due.parts = [p for key, p in self._commits.active.items() if key not in self._sent]
        due.manifest = self._manifest.due()
        for state in self._states:
            due.states |= state.due()
        return due

    def has_ended(self) -> bool:
        """Whether nothing more will come from the recorder, as far as can be known."""
        if (self.path / CLOSED_FILE).exists():
            return True
        beat = heartbeats.read_heartbeats(self.path).get(self.owner[1], {})
        if beat.get("space") == heartbeats.pid_namespace() is not None:
            return heartbeats.process_exited(beat)
        return time.time() - beat.get("time", 0.0) > SILENT_SECONDS

    def done(self, due: Due) -> None:
        """All of it is on the store."""
        now = time.monotonic()
        gone = self._commits.replaced.keys() & self._sent
        self._sent = (self._sent | {(p.table, p.file) for p in due.parts}) - gone
        self._stale += [(now, f"{table}/{file}") for table, file in gone]
        small = {f.kind: f for f in (self._manifest, *self._streams, *self._states)}
        for name, content in (due.opening | due.streams | due.manifest | due.states).items():
            self._stale += [(now, old.path) for old in small[name.kind].done(name, content)]

    def take_stale(self) -> list[str]:
        """Objects that were replaced so long ago that no reader uses them; each is named once."""
        since = time.monotonic() - GRACE_SECONDS
        old = [name for when, name in self._stale if when <= since]
        self._stale = [(when, name) for when, name in self._stale if when > since]
        return old

    def leftovers(self, listed: Mapping[str, Iterable[str]]) -> list[str]:
        """Of the objects in each folder of the run, those of this recorder that count no more."""
        found = []
        for table, files in listed.items():
            for file in files:
                part, log = part_name(file), logs.log_name(file)
                if (
                    part is not None
                    and part.owner == self.owner
                    and (table, file) not in self._commits.active
                ):
                    found.append(f"{table}/{file}")
                elif log is not None and any(
                    n.supersedes(log)
                    for f in (self._manifest, *self._streams, *self._states)
                    for n in f.objects
                ):
                    found.append(log.path)
        return found

    @property
    def tables(self) -> set[str]:
        """Tables that have had parts."""
        return {table for table, _ in (*self._commits.active, *self._commits.replaced)}

    def make_room(self, max_bytes: int) -> None:
        """Remove parts that are sent, the oldest first, until the spool has at most that many
        bytes. They are not merged any more."""
        excess = size_of(self.path) - max_bytes
        for key, part in self._commits.active.items():
            if excess <= 0:
                return
            if key in self._sent and part.path(self.path).exists():
                part.path(self.path).unlink(missing_ok=True)
                excess -= part.size
