"""Merges a recorder's own parts while it runs, and removes the files they replace."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from ..storage import compaction
from ..storage.compaction import BadPart, merge
from ..storage.manifest import ManifestFile
from ..storage.part import Part
from .calls import Losses


class Merger:
    """Merges the parts of one manifest, in the writer's thread.

    `pause` is called during a merge, `busy` is True meanwhile.
    """

    def __init__(
        self, run: Path, manifest: ManifestFile, losses: Losses, pause: Callable[[], None]
    ) -> None:
        self._run, self._manifest, self._losses, self._pause = run, manifest, losses, pause
        self.busy = False
        self._unreadable: set[str] = set()  # parts that cannot be merged
        self._stale: list[tuple[float, Path]] = []  # replaced files, and since when
        # Rank 0 also merges the parts of earlier attempts, once.
        self._earlier_merged = manifest.attempt == 1 or manifest.rank > 0

    def _tables(self) -> dict[str, list[Part]]:
        """The parts of this recorder that count, by table, after the last one that cannot be read
        or is gone, as in a spool once it is on the store."""
        self._manifest.read()
        tables: dict[str, list[Part]] = defaultdict(list)
        for part in sorted(self._manifest.active.values(), key=lambda p: p.name.first):
            name = f"{part.table}/{part.file}"
            if name in self._unreadable or not part.path(self._run).exists():
                tables[part.table].clear()
            else:
                tables[part.table].append(part)
        return tables

    def compact(self) -> None:
        """Merge what is due, and once what earlier attempts have left.

        Nothing while the manifest is damaged: parts whose line is lost may lie between those that
        are listed, and a merged part would pass over them.
        """
        self._manifest.read()
        if self._manifest.damaged:
            why = next(iter(self._manifest.damaged.values()))
            self._losses.warn("manifest", "another process changed its manifest: %s", why)
            return
        for table in self._tables():
            while group := compaction.due(self._tables()[table]):
                if not self._merge(group):
                    break
        if not self._earlier_merged:
            self._earlier_merged = True
            self._while_busy(
                lambda: compaction.compact(
                    self._run, before_attempt=self._manifest.attempt, pause=self._pause
                )
            )

    def merge_newest(self, max_bytes: int) -> None:
        """At the end: merge the newest parts of each table, up to `max_bytes`."""
        tables = self._tables()
        for parts in tables.values() if not self._manifest.damaged else ():
            start, size = len(parts), 0
            while start and size + parts[start - 1].size <= max_bytes:
                start -= 1
                size += parts[start].size
            if len(parts) - start > 1:
                self._merge(parts[start:])

    def _merge(self, group: Sequence[Part]) -> bool:
        if not self._while_busy(lambda: merge(self._run, group, pause=self._pause)):
            return False
        self._manifest.read()
        now = time.monotonic()
        self._stale += [
            (now, p.path(self._run)) for p in group if (p.table, p.file) in self._manifest.replaced
        ]
        return True

    def _while_busy(self, work: Callable[[], object]) -> bool:
        """Do something long during which calls are still accepted; False if it failed."""
        self.busy = True
        try:
            work()
        except BadPart as error:
            self._unreadable.add(f"{error.part.table}/{error.part.file}")
            message = "a part cannot be merged: %s. Run: lldscope doctor"
            self._losses.warn(str(error), message, error)
            return False
        except OSError as error:
            message = "parts are not merged now (%s)"
            self._losses.warn(f"merge {error.errno}", message, error.strerror)
            return False
        finally:
            self.busy = False
        return True

    def remove_stale(self, grace: float) -> None:
        """Remove files that were replaced at least `grace` seconds ago."""
        due = time.monotonic() - grace
        for _, path in (s for s in self._stale if s[0] <= due):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._stale = [s for s in self._stale if s[0] > due]
