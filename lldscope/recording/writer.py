"""The recorder's thread: calls → Arrow tables → sealed parts → merged parts, and a heartbeat.

It polls for calls a few times a second and is not woken by each of them: a thread that wakes up
competes for the interpreter just when training continues.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..core.schema import TABLES
from ..storage import heartbeats
from ..storage.compaction import due, newest
from ..storage.manifest import ManifestFile, manifest_names
from ..storage.part import Owner
from .buffers import to_arrow
from .calls import CallQueue, DropCounter
from .merging import Merger
from .sealer import Sealer

if TYPE_CHECKING:
    from .spool import Spool

SEAL_SECONDS = 1.0  # a complete step is readable after about this long
SEAL_BYTES = 64 << 20  # rows are sealed earlier if this many wait
# Rows of a step that does not end are sealed after this long, or when there are so many bytes.
OPEN_STEP_SECONDS, OPEN_STEP_BYTES = 30.0, 256 << 20
HEARTBEAT_SECONDS = 5.0
GRACE_SECONDS = 60.0  # replaced parts stay this long for readers that are using them
CLOSE_MERGE_BYTES = 64 << 20  # `close` waits for a merge of at most this size


class Writer(threading.Thread):
    """Writes queued calls into one run, as one of its recorders. `spool` is set if the run
    directory is the spool of a remote run."""

    def __init__(
        self, run: Path, owner: Owner, drops: Counter[str], spool: Spool | None = None
    ) -> None:
        super().__init__(name="lldscope-recorder", daemon=True)
        self.run_path, self.owner = run, owner
        self.calls, self.losses = CallQueue(), DropCounter(drops)
        # The heartbeat of the writer before: its losses and line counts are carried over.
        beats = {} if owner.is_first else heartbeats.read_heartbeats(run)
        self._earlier = beats.get(owner.rank, {})
        self._open: dict[str, list[pa.Table]] = defaultdict(list)  # rows of the current step
        self._open_since = 0.0  # when the first of them arrived
        self._open_bytes = 0
        self._manifest = ManifestFile(run, *owner)
        self._last_step: int | None = None
        self._last_beat = 0.0
        self._spool = spool
        self._sealer = Sealer(run, owner, self.losses)
        self._merger = Merger(run, self._manifest, self.losses)
        self._closed = False
        self.wrote_everything = False  # as far as that is known

    def flush(self) -> threading.Event:
        """Seal what is complete now; the event is set after the attempt."""
        done = threading.Event()
        self.calls.command("flush", done)
        return done

    def end(self, seconds: float) -> bool:
        """Seal everything and end the thread; False if that takes longer than `seconds`. Rows that
        wait by then count as lost, though they are still written while the process lives."""
        self.calls.command("close")
        self.join(seconds)
        if self.is_alive():
            why = f"calls not written within {seconds:g} s at the end"
            self.losses.drop(why, max(1, len(self.calls)))
            return False
        return True

    def beat(self) -> None:
        """Write a heartbeat, unless a later recorder of the rank writes one. The losses of earlier
        recorders are added."""
        self._last_beat = time.monotonic()
        with contextlib.suppress(OSError):
            self._manifest.read()
            if any(map(self.owner.precedes, manifest_names(self.run_path))):
                return
            # Lines of this rank's manifests, also of earlier recorders: readers notice if any is
            # lost.
            lines = _counts(self._earlier.get("lines"))
            lines[self._manifest.path.name] = max(self._manifest.lines, self._sealer.commits)
            heartbeats.write_heartbeat(
                self.run_path,
                self.owner.rank,
                closed=self._closed,
                attempt=self.owner.attempt,
                start=self.owner.start,
                step=self._last_step,
                dropped=self.losses.counts + Counter(_counts(self._earlier.get("dropped"))),
                lines=lines,
            )

    def run(self) -> None:
        while not self._closed:
            self.calls.wake.wait(max(SEAL_SECONDS / 5, 0.005))
            self.calls.wake.clear()
            self._process_calls()
            self._guarded("writer", self._tick)
        self.beat()

    def _guarded(self, what: str, action: Callable[..., object], *arguments: Any) -> None:
        """Run a piece of the thread's work. An exception counts as a loss: only `close` may end the
        thread."""
        try:
            action(*arguments)
        except Exception as error:
            self.losses.drop(f"{what}: {type(error).__name__}: {error}")

    def _process_calls(self) -> None:
        while len(self.calls):
            kind, value = self.calls.take()
            if kind == "flush":
                if self._last_step is not None:
                    self._step_complete(self._last_step)  # rows that came after their step's end
                self._guarded("writer", self._sealer.seal)
                value.set()
            elif kind == "close":
                self._guarded("writer", self._finish)
                self._closed = True
            else:
                self._guarded(kind, self._process, kind, value)
            time.sleep(0)  # yields to a training thread that waits for the interpreter
            # On a busy machine there may always be another call.
            self._guarded("writer", self._tick)

    def _process(self, kind: str, value: Any) -> None:
        if kind not in TABLES:
            self._sealer.add_line(kind, value)
            return
        rows = to_arrow(kind, value, *self.owner[:2], self.losses.drop)
        if rows is None:
            return
        if kind in ("evals", "eval_questions"):
            self._sealer.add(kind, rows)  # not part of the current step
            return
        if not self._open:
            self._open_since = time.monotonic()
        self._open[kind].append(rows)
        self._open_bytes += rows.nbytes
        if kind == "steps":
            steps = rows.column("step").to_pylist()
            self._last_step = steps[-1]
            self._step_complete(max(steps))

    def _step_complete(self, last: int = 2**31) -> None:
        """Rows up to step `last` are complete. Rows of later steps, from a trainer that samples
        ahead, wait for their own `step()`."""
        ahead: dict[str, list[pa.Table]] = defaultdict(list)
        for table, tables in self._open.items():
            for rows in tables:
                is_ahead = rows.column("step").to_numpy() > last
                self._sealer.add(table, rows.filter(~is_ahead) if is_ahead.any() else rows)
                if is_ahead.any():
                    ahead[table].append(rows.filter(is_ahead))
        self._open = ahead
        self._open_since = time.monotonic()
        self._open_bytes = sum(t.nbytes for rows in self._open.values() for t in rows)

    def _tick(self) -> None:
        late = self._open and time.monotonic() - self._open_since >= OPEN_STEP_SECONDS
        if late or self._open_bytes > OPEN_STEP_BYTES:
            self._step_complete()  # a very long or large step, or one that never ends
        full = self._sealer.bytes >= SEAL_BYTES and not self._sealer.refused
        if not self._sealer.empty and (self._sealer.age >= SEAL_SECONDS or full):
            self._sealer.seal()
            self._merger.remove_stale(GRACE_SECONDS)
            self._merger.compact(due)
        if time.monotonic() - self._last_beat >= HEARTBEAT_SECONDS:
            self.beat()
            if self._spool:
                self._spool.keep_sending(self.losses.warn)

    def _finish(self) -> None:
        self._step_complete()
        self._sealer.seal()
        self.wrote_everything = not self._sealer.shrink(0)  # what the disk still refuses is lost
        with contextlib.suppress(OSError):
            self._merger.compact(lambda parts: newest(parts, CLOSE_MERGE_BYTES))
            self._sealer.commit([], closed=True)
        self._merger.remove_stale(0.0)


def _counts(value: Any) -> dict[str, int]:
    items = value.items() if isinstance(value, dict) else ()
    return {name: n for name, n in items if type(n) is int}
