"""The calls of a training on their way to the writer's thread, and their losses."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from typing import Any

log = logging.getLogger("lldscope")

# What may wait; further rows are dropped so that training neither blocks nor runs out of memory.
QUEUE_CALLS = 4096
QUEUE_BYTES = 512 << 20


class DropCounter:
    """Counts losses by reason, and logs each problem once. Thread-safe."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self._logged: set[str] = set()

    def drop(self, reason: str, count: int = 1) -> None:
        """Count a loss, and log it where it is the first for its reason."""
        self.counts[reason] += count
        self.warn(reason, "dropped %d × %s (counted from here on, not repeated)", count, reason)

    def warn(self, key: str, message: str, *values: object) -> None:
        """Log a warning, once per key."""
        if key not in self._logged:
            self._logged.add(key)
            log.warning("lldscope: " + message, *values)


class CallQueue:
    """The waiting calls, in order: (table, its columns), (file, its line), or (command, value).
    `wake` is set to end the writer's wait."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.bytes = 0
        self._calls: deque[tuple[str, Any, int]] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._calls)

    def put(self, kind: str, value: Any, size: int) -> bool:
        """Queue copied columns of a table, or a line of a file. False if the queue is full."""
        with self._lock:
            waiting = len(self._calls)
            if waiting >= QUEUE_CALLS or self.bytes + size > QUEUE_BYTES:
                return False
            self._calls.append((kind, value, size))
            self.bytes += size
        if waiting == QUEUE_CALLS // 2 or self.bytes > QUEUE_BYTES // 2:
            self.wake.set()
        return True

    def command(self, kind: str, value: Any = None) -> None:
        """Queue a command for the writer, even if the queue is full."""
        with self._lock:
            self._calls.append((kind, value, 0))
        self.wake.set()

    def take(self) -> tuple[str, Any]:
        """The call that has waited longest."""
        with self._lock:
            kind, value, size = self._calls.popleft()
            self.bytes -= size
        return kind, value
