"""The parts of a run as its reader knows them: which count, are local, and are valid.

`step_ranges` splits a long run, so that the memory of a reader does not grow with its length.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from itertools import pairwise
from pathlib import Path

from ..storage import layout
from ..storage.heartbeats import Beats
from ..storage.integrity import MISSING, find_damage
from ..storage.manifest import Manifest, ManifestReader
from ..storage.part import Owner, Part
from .remote import RemoteCopy

RANGE_ROWS = 2_000_000  # rows of all tables in a range of steps, about
STEP_ROWS = 150  # rows that a step, of which there are eighty signals, counts as
MAX_RANGES = 500  # whatever a manifest claims; enough for 250 million rows


class PartIndex:
    """Follows the parts that the manifests list.

    parts       those that count now, in the order they were listed
    damaged     part → what is wrong with it; such parts are left out of every answer
    dirty_from  the first step with rows that the signals do not include yet, or None
    version     changes whenever the rows that count do
    """

    def __init__(self, run: Path, remote: RemoteCopy | None) -> None:
        self._run, self._remote = run, remote
        self.version = 0
        self.reset()

    def reset(self) -> None:
        """Start over: there is another run at the path now."""
        self._manifests = ManifestReader(self._run)
        self.parts: list[Part] = []
        self.damaged: dict[str, str] = {}
        self.dirty_from: int | None = None
        self._checked: set[str] = set()  # places of parts
        self._readable: tuple[object, list[Part]] = None, []  # as of a state
        self.version += 1

    @property
    def state(self) -> tuple[object, ...]:
        """A value that stays the same as long as the same parts count and can be read; of a remote
        run it never does."""
        return (self.version, *self.damaged) if self._remote is None else (object(),)

    def read(self, beats: Beats | None = None) -> Manifest:
        """The manifests as they are now. `beats` are heartbeats that were read before."""
        return layout.read_manifest(self._run, self._manifests, beats)

    def update(self, manifest: Manifest) -> bool:
        """Replace the parts by those of a manifest, and note the first step whose signals change;
        True if any part has changed."""
        parts = manifest.parts
        if parts == self.parts:
            return False
        # Compare whole parts: a copy that was trained on has other parts of the same names.
        before, listed = set(self.parts), set(parts)
        removals = [p for p in self.parts if p not in listed]
        # A merged part holds rows that were counted before; only new rows need new signals. By its
        # checksum the manifest says that this very part, not another of its name, was merged. A
        # part that was merged before it could be read was not counted.
        merged: dict[tuple[str, Owner], list[Part]] = defaultdict(list)
        counted: set[Part] = set()
        for p in removals:
            is_merged = manifest.replaced.get((p.table, p.file), -1) == p.crc
            if is_merged and p.place not in self.damaged:
                merged[p.table, p.name.owner].append(p)
        for p in removals:
            self.damaged.pop(p.place, None)
            self._checked.discard(p.place)
        for p in parts:
            if p not in before:
                pieces = {q for q in merged[p.table, p.name.owner] if p.name.covers(q.name)}
                if sum(q.rows for q in pieces) == p.rows:
                    counted |= pieces
                else:
                    self.mark_dirty(p.first_step)
        removals = [p for p in removals if p not in counted]
        for p in removals:  # their rows are in no part any more
            self.mark_dirty(p.first_step)
        self.parts = parts
        self.version += 1
        return True

    def update_merged(self) -> bool:
        """If listed parts are missing, read the manifests again: a writer may have merged them.
        True if any part has changed."""
        listed = (p.place for p in self.parts)
        is_gone = any(name in self.damaged and not (self._run / name).exists() for name in listed)
        return is_gone and self.update(self.read())

    def recheck_missing(self) -> None:
        """Check again for missing parts: a copy of a live run may arrive in any order."""
        names = {name for name, why in self.damaged.items() if why == MISSING}
        missing = [p for p in self.parts if p.place in names]
        if missing and self._remote is not None:
            self._remote.fetch(missing)
        for part in missing:
            if part.path(self._run).exists():
                del self.damaged[part.place]
                self._checked.discard(part.place)
                self.mark_dirty(part.first_step)

    def mark_dirty(self, step: int) -> None:
        """Signals change from a step on."""
        self.dirty_from = step if self.dirty_from is None else min(step, self.dirty_from)
        self.version += 1

    def fetch(self, tables: Container[str], first: int, last: int) -> None:
        """Download the parts of tables with steps from first to last, if the run is remote."""
        if self._remote is not None:
            overlap = (p for p in self.parts if p.last_step >= first and p.first_step <= last)
            self._remote.fetch([p for p in overlap if p.table in tables])

    def readable(self) -> list[Part]:
        """The parts that are local and valid."""
        if self._readable[0] != self.state:
            valid = [p for p in self.parts if self._is_local(p) and self._is_valid(p)]
            self._readable = self.state, valid
        return self._readable[1]

    def trusted(self) -> list[Part]:
        """The valid parts, and those not downloaded yet: attempts begin and end where the manifests
        say, whether the parts are local or not."""
        if self._remote is None:
            return self.readable()
        return [p for p in self.parts if not self._is_local(p) or self._is_valid(p)]

    def _is_local(self, part: Part) -> bool:
        return self._remote is None or self._remote.attempted(part)

    def _is_valid(self, part: Part) -> bool:
        if part.place not in self._checked and part.place not in self.damaged:
            if wrong := find_damage(self._run, part):
                self.damaged[part.place] = wrong
            self._checked.add(part.place)
        return part.place not in self.damaged


def step_ranges(
    parts: Iterable[Part], first_step: int, rows: int = RANGE_ROWS
) -> list[tuple[int, int]]:
    """Consecutive ranges (first, last step) of equal length, from `first_step` to the last step of
    the parts, each of about `rows` rows if all steps have as many. Empty if no part holds such
    steps."""
    dirty = [p for p in parts if p.last_step >= first_step]
    if not dirty:
        return []
    end = max(p.last_step for p in dirty) + 1
    weight = sum(p.rows * (STEP_ROWS if p.table == "steps" else 1) for p in dirty)
    n = min(weight // rows + 1, MAX_RANGES, end - first_step)
    edges = [first_step + i * (end - first_step) // n for i in range(n + 1)]
    return [(a, b - 1) for a, b in pairwise(edges)]
