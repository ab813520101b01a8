"""Merges a recorder's own parts while it runs, and removes the files they replace."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..storage.compaction import BadPart, merge
from ..storage.manifest import ManifestFile
from ..storage.part import Part
from .calls import DropCounter


class Merger:
    """Merges the parts of one manifest, in the writer's thread."""

    def __init__(self, run: Path, manifest: ManifestFile, losses: DropCounter) -> None:
        self._run, self._manifest, self._losses = run, manifest, losses
        self._unreadable: set[tuple[str, str]] = set()  # parts that cannot be merged
        self._stale: list[tuple[float, Path]] = []  # replaced files, and since when

    def _parts(self, table: str) -> list[Part]:
        """The parts of a table that count, after the last unreadable one."""
        parts = [p for p in self._manifest.active.values() if p.table == table]
        parts.sort(key=lambda p: p.name.first)
        bad = [i for i, p in enumerate(parts) if (table, p.file) in self._unreadable]
        return parts[bad[-1] + 1 :] if bad else parts

    def compact(self, choose: Callable[[Sequence[Part]], Sequence[Part]]) -> None:
        """Merge parts of each table as long as `choose` selects any. Nothing happens while the
        manifest is damaged: parts whose line is lost may lie between listed ones."""
        self._manifest.read()
        if why := self._manifest.damage:
            self._losses.warn("manifest", "another process changed its manifest: %s", why)
            return
        for table in {table for table, _ in self._manifest.active}:
            while (group := choose(self._parts(table))) and self._merge(group):
                pass

    def _merge(self, group: Sequence[Part]) -> bool:
        """Merge parts; returns whether it succeeded."""
        try:
            merge(self._run, group)
        except BadPart as error:
            self._unreadable.add((error.part.table, error.part.file))
            message = "a part cannot be merged: %s. Run: lldscope doctor"
            self._losses.warn(str(error), message, error)
            return False
        except OSError as error:
            message = "parts are not merged now (%s)"
            self._losses.warn(f"merge {error.errno}", message, error.strerror)
            return False
        self._manifest.read()
        now = time.monotonic()
        self._stale += [
            (now, p.path(self._run)) for p in group if (p.table, p.file) in self._manifest.replaced
        ]
        return True

    def remove_stale(self, grace: float) -> None:
        """Remove files that were replaced at least `grace` seconds ago."""
        due = time.monotonic() - grace
        for _, path in (s for s in self._stale if s[0] <= due):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._stale = [s for s in self._stale if s[0] > due]
