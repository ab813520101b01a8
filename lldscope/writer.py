"""The recorder's thread: calls → Arrow tables → sealed parts → merged parts, and a heartbeat.

It looks for calls a few times a second rather than being woken by each: a thread that wakes up
wants the interpreter at the very moment at which training goes on.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import parts, store
from .manifest import ManifestFile, Part, PartName, manifest_names
from .merging import Merger
from .rows import Call, to_arrow
from .schema import TABLES

log = logging.getLogger("lldscope")

SEAL_SECONDS = 1.0  # a finished step is readable after at most about this long
SEAL_ROWS = 20_000  # … or as soon as this many rows wait
OPEN_STEP_SECONDS = 30.0  # rows of a step that does not end are sealed after this long
HEARTBEAT_SECONDS = 5.0
QUEUE_CALLS = 4096  # calls that may wait; beyond it rows are dropped rather than training held up
MAX_WAITING_BYTES = 256 << 20  # rows kept in memory while the disk refuses them
MAX_WAITING_LINES = 10_000  # … and events
GRACE_SECONDS = 60.0  # merged parts stay this long for readers that have them in hand
CLOSE_MERGE_BYTES = 64 << 20  # what `close` merges at most; it is waited for

_ADVICE = {
    errno.ENOSPC: "Make room on its file system.",
    errno.EDQUOT: "Make room within the disk quota.",
    errno.EACCES: "Make it writable for this process again.",
    errno.EPERM: "Make it writable for this process again.",
    errno.EROFS: "Mount its file system for writing again.",
    errno.ENOENT: "Put the directory back.",
}


class Writer(threading.Thread):
    """Writes the calls it is given into one run, as one rank of one attempt."""

    def __init__(
        self,
        run: Path,
        attempt: int,
        rank: int,
        dropped: Counter[str],
        done: Callable[[Call], None],
    ) -> None:
        super().__init__(name="lldscope-recorder", daemon=True)
        self.run_path, self.attempt, self.rank, self.dropped = run, attempt, rank, dropped
        self._done = done  # told of calls whose copies are needed no more
        self._earlier = store.read_heartbeats(run).get(rank, {})  # of the attempt before
        self._calls: deque[tuple[str, Any]] = deque()
        self._wake = threading.Event()
        self._open: dict[str, list[pa.Table]] = defaultdict(list)  # rows of the step under way
        self._ready: dict[str, list[pa.Table]] = defaultdict(list)  # rows of complete steps
        self._lines: deque[tuple[str, Any]] = deque()  # events, as file and value
        self._manifest = ManifestFile(run, attempt, rank)
        self._seals = 0
        self._last_step: int | None = None
        self._last_seal = time.monotonic()
        self._last_beat = 0.0
        self._warned: set[str] = set()
        self._refused = False  # the disk did not take the last seal
        self._merger = Merger(run, self._manifest, warn=self._warn, pause=self._pause)
        self._closed = False

    # -- for the recorder -------------------------------------------------------------------------

    def give(self, kind: str, value: Any) -> bool:
        """Take a call; False if too many wait."""
        waiting = len(self._calls)
        if waiting >= QUEUE_CALLS:
            return False
        self._calls.append((kind, value))
        if waiting == QUEUE_CALLS // 2:
            self._wake.set()
        return True

    def flush(self) -> threading.Event:
        """Seal what is complete now; the event is set when that was tried."""
        done = threading.Event()
        self._calls.append(("flush", done))
        self._wake.set()
        return done

    def end(self, seconds: float) -> bool:
        """Seal everything and end the thread; False if it took longer than that."""
        self._calls.append(("close", None))
        self._wake.set()
        self.join(seconds)
        return not self.is_alive()

    def beat(self) -> None:
        """Give a sign of life, unless a later attempt does. Losses of earlier attempts count on."""
        self._last_beat = time.monotonic()
        if any(a > self.attempt and r == self.rank for a, r in manifest_names(self.run_path)):
            return
        dropped = Counter(self.dropped)
        earlier = self._earlier.get("dropped")
        if self.attempt > 1 and isinstance(earlier, dict):
            dropped.update({k: n for k, n in earlier.items() if isinstance(n, int)})
        with contextlib.suppress(OSError):
            store.write_heartbeat(
                self.run_path,
                self.rank,
                closed=self._closed,
                attempt=self.attempt,
                step=self._last_step,
                dropped=dict(dropped),
                lines=self._lines_written(),
            )

    # -- the thread -------------------------------------------------------------------------------

    def run(self) -> None:
        while not self._closed:
            self._wake.wait(max(SEAL_SECONDS / 5, 0.005))
            self._wake.clear()
            self._take_calls()
            self._guarded("writer", self._tick)
        self.beat()

    def _guarded(self, what: str, action: Callable[..., object], *arguments: Any) -> None:
        """Nothing may end this thread but close."""
        try:
            action(*arguments)
        except Exception as error:
            self._drop(f"{what}: {type(error).__name__}: {error}")

    def _take_calls(self) -> None:
        while self._calls and not (self._merger.busy and self._calls[0][0] == "close"):
            kind, value = self._calls.popleft()
            if kind == "flush":
                self._guarded("writer", self._seal)
                value.set()
            elif kind == "close":
                self._guarded("writer", self._finish)
                self._closed = True
            else:
                self._guarded(kind, self._take, kind, value)
            time.sleep(0)  # lets a training thread in that wants the interpreter

    def _take(self, kind: str, value: Any) -> None:
        if kind not in TABLES:
            if len(self._lines) >= MAX_WAITING_LINES:
                self._drop(f"{kind}: lines lost because the disk refuses them")
            else:
                self._lines.append((kind, value))
            return
        try:
            columns = value.columns()
        finally:
            self._done(value)
        rows = to_arrow(kind, columns, self.attempt, self.rank, self._drop)
        if rows is None:
            return
        self._open[kind].append(rows)
        if kind == "steps":
            self._last_step = rows.column("step")[-1].as_py()
            self._step_complete()

    def _step_complete(self) -> None:
        for table, rows in self._open.items():
            self._ready[table] += rows
        self._open.clear()

    def _tick(self) -> None:
        now = time.monotonic()
        age = now - self._last_seal
        if age >= OPEN_STEP_SECONDS:  # a very long step, or rows outside of steps
            self._step_complete()
        rows = sum(len(t) for tables in self._ready.values() for t in tables)
        full = rows >= SEAL_ROWS and not self._refused
        if (rows or self._lines) and (age >= SEAL_SECONDS or full):
            self._seal()
            if not self._merger.busy:
                self._merger.remove_stale(GRACE_SECONDS)
                self._merger.compact()
        if now - self._last_beat >= HEARTBEAT_SECONDS:
            self.beat()

    def _finish(self) -> None:
        self._step_complete()
        self._seal()
        self._lose(0)  # what the disk still refuses
        with contextlib.suppress(OSError):
            self._merger.merge_newest(CLOSE_MERGE_BYTES)
            parts.seal(self.run_path, self.attempt, self.rank, [], closed=True)
        self._merger.remove_stale(0.0)

    def _pause(self) -> None:
        """In the middle of a merge: what has come meanwhile is sealed all the same."""
        self._take_calls()
        self._tick()

    def _lines_written(self) -> dict[str, int]:
        """How long the manifests of this rank are at least, so that lines lost later are missed."""
        self._manifest.read()
        earlier = self._earlier.get("lines")
        known = earlier if isinstance(earlier, dict) and self.attempt > 1 else {}
        return {**known, self._manifest.path.name: self._manifest.lines}

    def _drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] += count
        self._warn(reason, "dropped %d × %s (counted from here on, not repeated)", count, reason)

    def _warn(self, about: str, words: str, *values: object) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning("lldscope: " + words, *values)

    # -- parts ------------------------------------------------------------------------------------

    def _seal(self) -> None:
        """Write what is ready as parts and list them in one manifest line; keep it on failure.

        `steps` comes last: where its part is there the others of the seal are, too.
        """
        self._last_seal = time.monotonic()
        written: list[Part] = []
        try:
            while self._lines:
                file, value = self._lines[0]
                store.append_line(self.run_path / file, value)
                self._lines.popleft()
            name = PartName(self.attempt, self.rank, self._seals + 1, self._seals + 1)
            for table in sorted(self._ready, key=lambda t: t == "steps"):
                rows = pa.concat_tables(self._ready[table])
                part = parts.write_part(self.run_path, table, name, [rows])
                written += [part] if part else []
            if written:
                parts.seal(self.run_path, self.attempt, self.rank, written)
        except OSError as error:
            parts.discard(self.run_path, written)
            self._hold(error)
            return
        if written:
            self._seals += 1
        self._ready.clear()
        if self._refused:
            self._refused = False
            log.warning("lldscope: %s takes rows again", self.run_path)

    def _hold(self, error: OSError) -> None:
        self._refused = True
        self._warn(
            f"refused: {error.errno}",
            "%s takes no rows (%s). Training goes on; up to %d MiB wait in memory and are written "
            "as soon as that is possible. %s",
            self.run_path,
            error.strerror or error,
            MAX_WAITING_BYTES >> 20,
            _ADVICE.get(error.errno or 0, "Look at its file system."),
        )
        self._lose(MAX_WAITING_BYTES)

    def _lose(self, beyond: int) -> None:
        """Let go of waiting rows until so many bytes are left, the largest table first."""
        sizes = {table: sum(t.nbytes for t in rows) for table, rows in self._ready.items()}
        for table in sorted(sizes, key=lambda t: -sizes[t]):
            if sum(sizes.values()) <= beyond:
                return
            del sizes[table]
            lost = sum(map(len, self._ready.pop(table)))
            self._drop(f"{table}: rows lost because the disk refuses them", lost)
