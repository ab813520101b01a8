"""Rows and events on their way from the writer's memory to disk, also while the disk refuses."""

from __future__ import annotations

import errno
import logging
import time
from collections import defaultdict, deque
from pathlib import Path

import pyarrow as pa

from ..storage import json_files, manifest, part
from ..storage.part import Owner, Part, PartName
from .calls import DropCounter

log = logging.getLogger("lldscope")

MAX_WAITING_BYTES = 256 << 20  # of rows that wait in memory while the disk refuses them
MAX_WAITING_LINES = 10_000  # of events, likewise

_ADVICE = {
    errno.ENOSPC: "Make room on its file system.",
    errno.EDQUOT: "Make room within the disk quota.",
    errno.EACCES: "Make it writable for this process again.",
    errno.EPERM: "Make it writable for this process again.",
    errno.EROFS: "Mount its file system for writing again.",
    errno.ENOENT: "Put the directory back.",
}


class Sealer:
    """Holds rows of complete steps, and events, until they are on disk.

    `refused` is True while the disk refuses writes.
    """

    def __init__(self, run: Path, owner: Owner, losses: DropCounter) -> None:
        self._run, self._owner, self._losses = run, owner, losses
        self._rows: dict[str, list[pa.Table]] = defaultdict(list)
        self.bytes = 0  # of the rows that wait
        self._lines: deque[tuple[str, str]] = deque()  # (file, JSON)
        self._seals = 0
        self.commits = 0  # the number of this recorder's last line in its manifest
        self._last = time.monotonic()
        self.refused = False

    def add(self, table: str, rows: pa.Table) -> None:
        if len(rows):
            self._rows[table].append(rows)
            self.bytes += rows.nbytes

    def add_line(self, file: str, text: str) -> None:
        """Add a line of a file, an object as JSON."""
        if len(self._lines) < MAX_WAITING_LINES:
            self._lines.append((file, text))
        else:
            self._losses.drop(f"{file}: lines lost because the disk refuses them")

    @property
    def age(self) -> float:
        """Seconds since the last seal, whether it succeeded or not."""
        return time.monotonic() - self._last

    @property
    def empty(self) -> bool:
        return not self._rows and not self._lines

    def seal(self) -> None:
        """Write the waiting rows as parts and commit the parts. After a failure the rows go on
        waiting."""
        parts: list[Part] = []
        try:
            while self._lines:
                file, text = self._lines[0]
                json_files.append_text(self._run / file, text)
                self._lines.popleft()
            seal = self._seals + 1
            name = PartName(self._owner, seal, seal)
            for table, waiting in self._rows.items():
                new = part.write_part(self._run, table, name, [pa.concat_tables(waiting)])
                parts += [new] if new else []
            if parts:
                self.commit(parts)
        except Exception as error:
            part.remove_parts(self._run, parts)
            self._report_failure(error)
            return
        finally:  # at the end: after a slow seal the next one must not be due at once
            self._last = time.monotonic()
        if parts:
            self._seals += 1
        self._rows.clear()
        self.bytes = 0
        if self.refused:
            self.refused = False
            log.warning("lldscope: %s accepts rows again", self._run)

    def commit(self, parts: list[Part], *, closed: bool = False) -> None:
        """Add a line to the manifest. Raises OSError."""
        self.commits = manifest.commit(
            self._run, self._owner, parts, closed=closed, after=self.commits
        )

    def _report_failure(self, error: Exception) -> None:
        self.refused = True
        number = error.errno or 0 if isinstance(error, OSError) else 0
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        self._losses.warn(
            f"refused: {number or reason}",
            "%s accepts no rows (%s). Training goes on; up to %d MiB wait in memory and are "
            "written as soon as that is possible. %s",
            self._run,
            reason or error,
            MAX_WAITING_BYTES >> 20,
            _ADVICE.get(number, "Check its file system."),
        )
        self.shrink(MAX_WAITING_BYTES)

    def shrink(self, max_bytes: int) -> int:
        """Drop waiting rows, the largest table first, until at most `max_bytes` are left. Returns
        the number of dropped rows."""
        total = 0
        sizes = {table: sum(t.nbytes for t in rows) for table, rows in self._rows.items()}
        for table in sorted(sizes, key=lambda t: -sizes[t]):
            if sum(sizes.values()) <= max_bytes:
                break
            del sizes[table]
            count = sum(map(len, self._rows.pop(table)))
            self._losses.drop(f"{table}: rows lost because the disk refuses them", count)
            total += count
        self.bytes = sum(sizes.values())
        return total
