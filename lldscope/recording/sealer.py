"""Rows on their way from the writer's memory to sealed parts, whatever the disk says."""

from __future__ import annotations

import errno
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..storage import json_files, part_file
from ..storage.manifest import Part, PartName
from .buffers import Drop

log = logging.getLogger("lldscope")

MAX_WAITING_BYTES = 256 << 20  # rows kept in memory while the disk refuses them
MAX_WAITING_LINES = 10_000  # … and events

_ADVICE = {
    errno.ENOSPC: "Make room on its file system.",
    errno.EDQUOT: "Make room within the disk quota.",
    errno.EACCES: "Make it writable for this process again.",
    errno.EPERM: "Make it writable for this process again.",
    errno.EROFS: "Mount its file system for writing again.",
    errno.ENOENT: "Put the directory back.",
}


class Sealer:
    """Keeps rows of complete steps, and events, until the disk has taken them.

    `drop` counts what is lost, `warn` tells something once. `refused` while the disk takes nothing.
    """

    def __init__(
        self, run: Path, attempt: int, rank: int, *, drop: Drop, warn: Callable[..., None]
    ) -> None:
        self._run, self._attempt, self._rank = run, attempt, rank
        self._drop, self._warn = drop, warn
        self._ready: dict[str, list[pa.Table]] = defaultdict(list)
        self._lines: deque[tuple[str, Any]] = deque()  # as file and value
        self._seals = 0
        self._last = time.monotonic()
        self.refused = False

    def add(self, table: str, rows: Iterable[pa.Table]) -> None:
        """Take rows of complete steps."""
        self._ready[table] += rows

    def add_line(self, file: str, value: Any) -> None:
        if len(self._lines) >= MAX_WAITING_LINES:
            self._drop(f"{file}: lines lost because the disk refuses them", 1)
            return
        try:  # not when it is sealed: one line that cannot be written would hold up all rows
            plain = json_files.jsonable(value)
        except Exception as error:
            self._not_json(file, error)
        else:
            self._lines.append((file, plain))

    def _not_json(self, file: str, error: Exception) -> None:
        self._drop(f"{file}: a line that cannot become JSON ({type(error).__name__})", 1)

    @property
    def age(self) -> float:
        """Seconds since the last seal, whether it succeeded or not."""
        return time.monotonic() - self._last

    @property
    def rows(self) -> int:
        """How many rows wait."""
        return sum(len(t) for tables in self._ready.values() for t in tables)

    @property
    def empty(self) -> bool:
        return not self.rows and not self._lines

    def seal(self) -> None:
        """Write what is ready as parts and list them in one manifest line; keep it on failure.

        `steps` comes last: where its part is there the others of the seal are, too.
        """
        written: list[Part] = []
        try:
            self._write_lines()
            name = PartName(self._attempt, self._rank, self._seals + 1, self._seals + 1)
            for table in sorted(self._ready, key=lambda t: t == "steps"):
                rows = pa.concat_tables(self._ready[table])
                part = part_file.write_part(self._run, table, name, [rows])
                written += [part] if part else []
            if written:
                part_file.seal(self._run, self._attempt, self._rank, written)
        except Exception as error:
            part_file.discard(self._run, written)
            self._hold(error)
            return
        finally:  # not before: where a seal takes long, the next must not be due at its end
            self._last = time.monotonic()
        if written:
            self._seals += 1
        self._ready.clear()
        if self.refused:
            self.refused = False
            log.warning("lldscope: %s takes rows again", self._run)

    def _write_lines(self) -> None:
        while self._lines:
            file, value = self._lines[0]
            try:
                json_files.append_line(self._run / file, value)
            except OSError:
                raise
            except Exception as error:  # what was nested just not too deeply before
                self._not_json(file, error)
            self._lines.popleft()

    def _hold(self, error: Exception) -> None:
        self.refused = True
        number = error.errno or 0 if isinstance(error, OSError) else 0
        words = error.strerror if isinstance(error, OSError) else type(error).__name__
        self._warn(
            f"refused: {number or words}",
            "%s takes no rows (%s). Training goes on; up to %d MiB wait in memory and are written "
            "as soon as that is possible. %s",
            self._run,
            words or error,
            MAX_WAITING_BYTES >> 20,
            _ADVICE.get(number, "Look at its file system."),
        )
        self.lose(MAX_WAITING_BYTES)

    def lose(self, beyond: int) -> None:
        """Let go of waiting rows until so many bytes are left, the largest table first."""
        sizes = {table: sum(t.nbytes for t in rows) for table, rows in self._ready.items()}
        for table in sorted(sizes, key=lambda t: -sizes[t]):
            if sum(sizes.values()) <= beyond:
                return
            del sizes[table]
            lost = sum(map(len, self._ready.pop(table)))
            self._drop(f"{table}: rows lost because the disk refuses them", lost)
