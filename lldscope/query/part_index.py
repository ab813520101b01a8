"""The parts of a run as a reader has taken them up: which count, are here, and can be believed."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..storage import layout
from ..storage.integrity import MISSING, find_damage
from ..storage.manifest import Manifest, ManifestReader
from ..storage.part import Part

if TYPE_CHECKING:
    from .remote import RemoteCopy


class PartIndex:
    """Takes up the parts that the manifests list, again and again.

    parts     those that count now, in the order they were listed
    damaged   part → why it cannot be believed; such parts are left out of every answer
    owed      the first step that has rows which are not in the signals yet
    version   another one whenever the rows that count are others
    """

    def __init__(self, run: Path, mirror: RemoteCopy | None) -> None:
        self._run, self._mirror = run, mirror
        self.version = 0
        self.forget()

    def forget(self) -> None:
        """Begin anew: another run lies here now."""
        self._manifests = ManifestReader(self._run)
        self.parts: list[Part] = []
        self.damaged: dict[str, str] = {}
        self.owed: int | None = None
        self._checked: set[tuple[str, str]] = set()
        self.version += 1

    def read(self) -> Manifest:
        """The manifests as they are now."""
        return layout.read_manifest(self._run, self._manifests)

    def take(self, manifest: Manifest) -> bool:
        """Take the parts as they are now, and note from which step on signals are owed; True if
        they have changed."""
        parts = manifest.parts
        if parts == self.parts:
            return False
        # Whole parts, not names: a copy that went its own way has other parts of the same name.
        known, listed = set(self.parts), set(parts)
        gone, new = [p for p in self.parts if p not in listed], [p for p in parts if p not in known]
        for p in gone:
            self.damaged.pop(f"{p.table}/{p.file}", None)
            self._checked.discard((p.table, p.file))
        # A merged part holds rows that were counted before; only new rows need new signals.
        away = {p for p in gone if _merged_away(p, manifest)}
        for p in new:
            if not _made_of(p, away):
                self._owe(p.first_step)
        # Rows that are listed no more, and were not merged into a part that is, are gone.
        for p in gone:
            if p not in away or not any(p.table == q.table and q.name.covers(p.name) for q in new):
                self._owe(p.first_step)
        self.parts = parts
        self.version += 1
        return True

    def take_merged(self) -> bool:
        """Where listed parts were not there, a writer may have merged them since: take the parts
        anew; True if they have changed."""
        listed = (f"{p.table}/{p.file}" for p in self.parts)
        gone = any(name in self.damaged and not (self._run / name).exists() for name in listed)
        return gone and self.take(self.read())

    def look_again(self) -> None:
        """A part that was missing may have come: a copy of a live run is not made in order."""
        names = {name for name, why in self.damaged.items() if why == MISSING}
        missing = [p for p in self.parts if f"{p.table}/{p.file}" in names]
        if missing and self._mirror is not None:
            self._mirror.bring(missing)
        for part in missing:
            if part.path(self._run).exists():
                del self.damaged[f"{part.table}/{part.file}"]
                self._checked.discard((part.table, part.file))
                self._owe(part.first_step)

    def _owe(self, step: int) -> None:
        self.owed = step if self.owed is None else min(step, self.owed)
        self.version += 1

    def bring(self, tables: Container[str], first: int, last: int) -> None:
        """Have the parts of tables here that hold steps from first to last, if they are afar."""
        if self._mirror is not None:
            here = (p for p in self.parts if p.last_step >= first and p.first_step <= last)
            self._mirror.bring([p for p in here if p.table in tables])

    def sound(self) -> list[Part]:
        """The parts that are here and can be believed."""
        return [p for p in self.parts if self._is_here(p) and self._is_sound(p)]

    def believed(self) -> list[Part]:
        """The sound parts, and those not brought yet: attempts begin and end where the manifests
        say, whether a part is here or not."""
        return [p for p in self.parts if not self._is_here(p) or self._is_sound(p)]

    def _is_here(self, part: Part) -> bool:
        return self._mirror is None or self._mirror.tried(part)

    def _is_sound(self, part: Part) -> bool:
        key = (part.table, part.file)
        name = "/".join(key)
        if key not in self._checked and name not in self.damaged:
            if wrong := find_damage(self._run, part):
                self.damaged[name] = wrong
            self._checked.add(key)
        return name not in self.damaged


def _merged_away(part: Part, manifest: Manifest) -> bool:
    """Whether the manifests say that just this part, not another of its name, was merged."""
    key = part.table, part.file
    return key in manifest.replaced and manifest.replaced[key] == part.crc


def _made_of(part: Part, known: Iterable[Part]) -> bool:
    """Whether a part was merged from known ones: from the first to the last seal that it spans."""
    name = part.name
    held = [p.name for p in known if p.table == part.table and name.covers(p.name)]
    first, last = min((n.first for n in held), default=0), max((n.last for n in held), default=0)
    return (first, last) == (name.first, name.last)
