"""A recorder's own parts, merged while it runs, and removed when readers have let go of them."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from ..storage import compaction
from ..storage import merge as merged
from ..storage.manifest import ManifestFile, Part


class Merger:
    """Merges the parts of one manifest, in the writer's thread.

    `pause` is called in the middle of it, `busy` says so meanwhile, `warn` tells something once.
    """

    def __init__(
        self,
        run: Path,
        manifest: ManifestFile,
        *,
        warn: Callable[..., None],
        pause: Callable[[], None],
    ) -> None:
        self._run, self._manifest, self._warn, self._pause = run, manifest, warn, pause
        self.busy = False
        self._unreadable: set[str] = set()  # parts that cannot be merged
        self._stale: list[tuple[float, Path]] = []  # merged away: since when, and where
        # What earlier attempts have left is for rank 0.
        self._tidied = manifest.attempt == 1 or manifest.rank > 0

    def _tables(self) -> dict[str, list[Part]]:
        """The parts of this recorder that count, by table, after the last that cannot be read."""
        self._manifest.read()
        tables: dict[str, list[Part]] = defaultdict(list)
        for part in sorted(self._manifest.parts(), key=lambda p: p.name.first):
            if f"{part.table}/{part.file}" in self._unreadable:
                tables[part.table].clear()
            else:
                tables[part.table].append(part)
        return tables

    def compact(self) -> None:
        """Merge what is due, and once what earlier attempts have left."""
        for table in self._tables():
            while group := compaction.due(self._tables()[table]):
                if not self._merge(group):
                    break
        if not self._tidied:
            self._tidied = True
            self._busy(
                lambda: compaction.compact(
                    self._run, before_attempt=self._manifest.attempt, pause=self._pause
                )
            )

    def merge_newest(self, most_bytes: int) -> None:
        """At the end: one part of each table from the newest ones, as far as that is quick."""
        for found in self._tables().values():
            start, size = len(found), 0
            while start and size + found[start - 1].size <= most_bytes:
                start -= 1
                size += found[start].size
            if len(found) - start > 1:
                self._merge(found[start:])

    def _merge(self, group: Sequence[Part]) -> bool:
        def merge() -> None:
            merged.merge(self._run, group, pause=self._pause)

        if not self._busy(merge):
            return False
        self._manifest.read()
        now = time.monotonic()
        self._stale += [
            (now, p.path(self._run)) for p in group if (p.table, p.file) in self._manifest.replaced
        ]
        return True

    def _busy(self, work: Callable[[], object]) -> bool:
        """Do something long during which calls are still taken; False if it did not succeed."""
        self.busy = True
        try:
            work()
        except merged.BadPart as error:
            self._unreadable.add(f"{error.part.table}/{error.part.file}")
            self._warn(str(error), "a part cannot be merged: %s. Run: lldscope doctor", error)
            return False
        except OSError as error:
            self._warn(f"merge {error.errno}", "parts are not merged now (%s)", error.strerror)
            return False
        finally:
            self.busy = False
        return True

    def remove_stale(self, grace: float) -> None:
        due = time.monotonic() - grace
        for _, path in (s for s in self._stale if s[0] <= due):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._stale = [s for s in self._stale if s[0] > due]
