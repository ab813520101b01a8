"""Sends what recorders have sealed in their spools to the object store of their run.

First that there is a run, then the parts, events and alerts, then the lines of the manifest that
list the parts, then heartbeats: a reader finds every object that another one names. All of it is
sent again until the store has it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import LldscopeError
from ..storage import heartbeats, json_files, layout, logs
from ..storage.compaction import SILENT_SECONDS
from ..storage.logs import LogName
from ..storage.manifest import ManifestFile, manifest_path
from ..storage.objects import ObjectStore
from ..storage.part import Part, part_name
from ..storage.url import Url
from .spool import CLOSED_FILE, SENDING_FILE, SPOOL_FILE, read_spool, sending, size_of

LOOK_SECONDS = 0.5
RETRY_SECONDS = 2.0  # at most, between two rounds that the store refuses
LINGER_SECONDS = 10.0  # for the next recorder, after the last one
AWAY_SECONDS = 3600.0  # without an answer, after the last recorder has ended
BATCH_BYTES = 64 << 20  # of parts that are read into memory at once
KEEP_BYTES = 1 << 30  # of parts that are sent and not merged yet, per recorder
GRACE_SECONDS = 60.0  # objects that were replaced stay this long for readers that are using them


class _SmallFile:
    """A file of a spool, and the objects that the store has of it."""

    def __init__(
        self, path: Path, kind: str, owner: tuple[int, int], names: Collection[LogName]
    ) -> None:
        self._path, self.kind, self._owner = path, kind, owner
        self.objects = {n for n in names if (n.kind, n.attempt, n.rank) == (kind, *owner)}

    def done(self, name: LogName, content: bytes) -> set[LogName]:
        """An object is on the store; returns those that it supersedes."""
        old = {n for n in self.objects if name.supersedes(n)}
        self.objects = self.objects - old | {name}
        return old


class _Lines(_SmallFile):
    """A file of lines that grows."""

    def __init__(
        self, path: Path, kind: str, owner: tuple[int, int], names: Collection[LogName]
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


class _State(_SmallFile):
    """A file that is written as a whole.

    A content has one number for good. The number is on disk before the first request that uses
    it, because a request that failed here may still be carried out later: with another content
    under the same number it would put an older state in the place of the newer one.
    """

    def __init__(
        self, path: Path, kind: str, owner: tuple[int, int], names: Collection[LogName]
    ) -> None:
        super().__init__(path, kind, owner, names)
        self._sent: bytes | None = None
        self._numbered: bytes | None = None  # the content that `_number` belongs to
        self._number_file = path.with_name(f"{path.name}.number")
        self._number = max((n.last for n in self.objects), default=0)
        with suppress(FileNotFoundError, ValueError):
            self._number = max(self._number, int(self._number_file.read_text("ascii")))

    def due(self) -> dict[LogName, bytes]:
        """The next version, if the file has changed."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        if content == self._sent:
            return {}
        if content != self._numbered:
            json_files.replace_file(self._number_file, str(self._number + 1))
            self._number, self._numbered = self._number + 1, content
        return {LogName(self.kind, *self._owner, self._number, self._number): content}

    def done(self, name: LogName, content: bytes) -> set[LogName]:
        self._sent = content
        return super().done(name, content)


@dataclass
class Due:
    """What is to be sent of a spool, in this order, and whether its recorder has ended."""

    run: dict[LogName, bytes] = field(default_factory=dict)  # where the store has none yet
    parts: list[Part] = field(default_factory=list)
    streams: dict[LogName, bytes] = field(default_factory=dict)
    manifest: dict[LogName, bytes] = field(default_factory=dict)
    states: dict[LogName, bytes] = field(default_factory=dict)
    ended: bool = False

    @property
    def small(self) -> dict[LogName, bytes]:
        return self.run | self.streams | self.manifest | self.states


class SpooledRun:
    """One recorder's spool: what of it is on the store, and what is next. `names` are the small
    objects of the run that the store has."""

    def __init__(self, path: Path, owner: tuple[int, int], names: Collection[LogName]) -> None:
        self.path, self._owner = path, owner
        beat = path / heartbeats.HEARTBEAT_DIR / f"r{owner[1]}.json"
        self._run = _State(path / layout.RUN_FILE, logs.RUN, owner, names)
        self._beat = _State(beat, logs.HEARTBEAT, owner, names)
        self._manifest = _Lines(manifest_path(path, *owner), logs.MANIFEST, owner, names)
        self._streams = [
            _Lines(path / layout.EVENTS_FILE, logs.EVENTS, owner, names),
            _Lines(path / layout.ALERTS_FILE, logs.ALERTS, owner, names),
        ]
        self._files = {f.kind: f for f in (self._run, self._beat, self._manifest, *self._streams)}
        self._commits = ManifestFile(path, *owner)
        self._sent: set[tuple[str, str]] = set()  # (table, file)
        self._stale: list[tuple[float, str]] = []  # since when, object

    def look(self) -> Due:
        """What waits now. What speaks of a file is read before that file, and sent after it."""
        due = Due(ended=self.has_ended, states=self._beat.due())
        run = self._run.due()
        if self._run.objects:
            due.states |= run
        else:
            due.run = run
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
        return due

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come from the recorder, as far as can be known."""
        if (self.path / CLOSED_FILE).exists():
            return True
        beat = heartbeats.read_heartbeats(self.path).get(self._owner[1], {})
        if beat.get("space") == heartbeats.pid_namespace() is not None:
            return heartbeats.process_exited(beat)
        return time.time() - beat.get("time", 0.0) > SILENT_SECONDS

    def done(self, due: Due) -> list[str]:
        """All of it is on the store; returns the objects that no reader uses any more, once."""
        now = time.monotonic()
        removals = self._commits.replaced.keys() & self._sent
        self._sent = (self._sent | {(p.table, p.file) for p in due.parts}) - removals
        self._stale += [(now, f"{table}/{file}") for table, file in removals]
        for name, content in due.small.items():
            self._stale += [(now, old.path) for old in self._files[name.kind].done(name, content)]
        old = [name for when, name in self._stale if when <= now - GRACE_SECONDS]
        self._stale = [(when, name) for when, name in self._stale if when > now - GRACE_SECONDS]
        self._make_room()
        return old

    def leftovers(self, store: ObjectStore) -> list[str]:
        """The objects of this recorder on the store that count no more."""
        active = self._commits.active
        objects = [n for f in self._files.values() for n in f.objects]
        names = filter(None, map(logs.log_name, store.names(logs.LOG_DIR)))
        old = [name.path for name in names if any(n.supersedes(name) for n in objects)]
        for table in {table for table, _ in (*active, *self._commits.replaced)}:
            for file in store.names(table):
                part = part_name(file)
                if part is not None and part.owner == self._owner and (table, file) not in active:
                    old.append(f"{table}/{file}")
        return old

    def _make_room(self) -> None:
        """Remove parts that are sent, the oldest first, beyond KEEP_BYTES; they are not merged any
        more."""
        excess = size_of(self.path) - KEEP_BYTES
        for key, part in self._commits.active.items():
            if excess <= 0:
                return
            if key in self._sent and part.path(self.path).exists():
                part.path(self.path).unlink(missing_ok=True)
                excess -= part.size


class Uploader:
    """Sends the spools in the folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store: ObjectStore | None = None
        self._spools: dict[Path, SpooledRun] = {}
        self._missing: set[Path] = set()  # parts that were not in their spool
        self.refused: dict[Path, str] = {}  # spool → why it is not sent

    def follow(self) -> None:
        """Send what is sealed until no recorder is left. Nothing, if another process does."""
        with sending(self.folder) as free:
            if not free:
                return
            pause, error = LOOK_SECONDS, None
            last_use = answered = time.monotonic()
            while self._spools or time.monotonic() - last_use < LINGER_SECONDS:
                before, error = error, None
                try:
                    self.round()
                    pause, answered = LOOK_SECONDS, time.monotonic()
                except (LldscopeError, OSError) as failure:
                    error = str(failure)
                    pause = min(2 * pause, RETRY_SECONDS)
                if error != before:
                    with suppress(OSError):
                        state = json_files.to_json({"time": time.time(), "error": error})
                        json_files.replace_file(self.folder / SENDING_FILE, state)
                if self._spools:
                    last_use = time.monotonic()
                if time.monotonic() - answered > AWAY_SECONDS and all(
                    spool.has_ended for spool in self._spools.values()
                ):
                    return  # what waits is for the next recorder here, or `lldscope upload`
                time.sleep(pause)

    def finish(self) -> bool:
        """Send everything there is now, once; True if nothing of recorders that have ended is left.
        Raises LldscopeError if the store refuses."""
        for _ in range(3):  # a part may be merged while it is read
            self.round()
            if not self._spools:
                break
        return not self.refused and not self._spools

    def round(self) -> None:
        """Send what waits now. Raises LldscopeError if the store refuses it."""
        self._adopt()
        if self._store is None:
            return
        waiting = {spool: spool.look() for spool in self._spools.values()}
        self._put("run", waiting)
        unread = self._send_parts(waiting)
        waiting = {spool: due for spool, due in waiting.items() if spool not in unread}
        for what in ("streams", "manifest", "states"):
            self._put(what, waiting)
        self._store.delete([name for spool, due in waiting.items() for name in spool.done(due)])
        for spool, due in waiting.items():
            if due.ended:
                self._end(spool)

    def _put(self, what: str, waiting: dict[SpooledRun, Due]) -> None:
        assert self._store is not None
        objects = {n.path: c for due in waiting.values() for n, c in getattr(due, what).items()}
        self._store.put(objects)

    def _adopt(self) -> None:
        """Look for new spools; each must be of the run that is at its address now. One that
        somebody has removed is forgotten."""
        self._spools = {path: s for path, s in self._spools.items() if path.exists()}
        for file in self.folder.glob(f"*/{SPOOL_FILE}"):
            path = file.parent
            if path in self._spools or path in self.refused:
                continue
            spool = read_spool(file)
            if spool is None:
                self.refused[path] = f"{SPOOL_FILE} cannot be read"
                continue
            owner = spool["attempt"], spool["rank"]
            store = self._store = self._store or ObjectStore(Url(spool["address"]))
            claim = f"{logs.LOG_DIR}/{logs.claim_file(*owner)}"
            content = store.read([claim]).get(claim, b"{}")
            if json_files.parse(content).get("token") != spool["token"]:
                self.refused[path] = f"{store.url} is another run by now"
                continue
            names = [name for f in store.names(logs.LOG_DIR) if (name := logs.log_name(f))]
            self._spools[path] = SpooledRun(path, owner, names)

    def _send_parts(self, waiting: dict[SpooledRun, Due]) -> set[SpooledRun]:
        """Send parts; returns the spools of which a part could not be read. It has been merged
        away since the manifest was read; one that is still missing in the next round is lost."""
        assert self._store is not None
        unread = set()
        batch: dict[str, bytes] = {}
        for spool, part in ((s, p) for s, due in waiting.items() for p in due.parts):
            path = part.path(spool.path)
            try:
                batch[f"{part.table}/{part.file}"] = path.read_bytes()
            except FileNotFoundError:
                if path not in self._missing:
                    unread.add(spool)
                self._missing.add(path)
            if sum(map(len, batch.values())) >= BATCH_BYTES:
                self._store.put(batch)
                batch = {}
        self._store.put(batch)
        return unread

    def _end(self, spool: SpooledRun) -> None:
        """Remove the spool of a recorder that has ended, if nothing came in meanwhile."""
        assert self._store is not None
        again = spool.look()
        if again.small or again.parts:
            return
        self._store.delete(spool.leftovers(self._store))
        del self._spools[spool.path]
        shutil.rmtree(spool.path, ignore_errors=True)
