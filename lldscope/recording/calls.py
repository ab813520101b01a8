"""A thread that takes the calls of a training: their queue, and what of them is lost."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from .buffers import Call, columns_of, size_of, to_arrow

log = logging.getLogger("lldscope")

# What may wait; further rows are dropped so that training neither blocks nor runs out of memory.
QUEUE_CALLS = 4096
QUEUE_BYTES = 512 << 20


class CallThread(threading.Thread):
    """What is queued waits in `_calls`, in order. `dropped` counts lost rows by reason, `done` is
    called when a call's copies are no longer used."""

    def __init__(self, name: str, drops: Counter[str], done: Callable[[Call], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.dropped, self._done = drops, done
        self._calls: deque[tuple[str, Any]] = deque()
        self._sizes: deque[int] = deque()  # bytes of each of them
        self._bytes = 0
        self._counting = threading.Lock()
        self._wake = threading.Event()
        self._warned: set[str] = set()

    def enqueue(self, kind: str, value: Any) -> bool:
        """Queue a call: the copied columns of a table, or a line of a file. False if it is full."""
        size = size_of(value)
        with self._counting:
            waiting = len(self._calls)
            if waiting >= QUEUE_CALLS or self._bytes + size > QUEUE_BYTES:
                return False
            self._append(kind, value, size)
        if waiting == QUEUE_CALLS // 2 or self._bytes > QUEUE_BYTES // 2:
            self._wake.set()
        return True

    def _append(self, kind: str, value: Any, size: int = 0) -> None:
        self._calls.append((kind, value))
        self._sizes.append(size)
        self._bytes += size

    def _take(self) -> tuple[str, Any]:
        """The call that has waited longest."""
        with self._counting:
            self._bytes -= self._sizes.popleft()
            return self._calls.popleft()

    def flush(self) -> threading.Event:
        """Seal what is complete now; the event is set after the attempt."""
        done = threading.Event()
        with self._counting:
            self._append("flush", done)
        self._wake.set()
        return done

    def drop(self, reason: str, count: int = 1) -> None:
        """Count a loss, and log it where it is the first for its reason. From any thread."""
        self.dropped[reason] += count
        self._warn(reason, "dropped %d × %s (counted from here on, not repeated)", count, reason)

    def _warn(self, key: str, message: str, *values: object) -> None:
        """Log a warning, once per key."""
        if key not in self._warned:
            self._warned.add(key)
            log.warning("lldscope: " + message, *values)

    def _rows_of(self, table: str, call: Call, attempt: int, rank: int) -> pa.Table | None:
        try:
            columns = columns_of(call)
        finally:
            self._done(call)
        return to_arrow(table, columns, attempt, rank, self.drop)
