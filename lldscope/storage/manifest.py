"""Which parts of a run count: the manifests, replayed.

There is one manifest per attempt and rank, `manifest/a1-r0.jsonl`, to which lines are only ever
added. A line lists the parts of several tables, so a step becomes visible in all tables at once,
and the parts that a merged part replaces. Its writer is the recorder of that rank; after the end of
that process `lldscope compact`, the next attempt's rank 0 and the doctor may add lines, too. Where
two of them merged the same parts at once the first line stands and the second is void, so that no
row is ever counted twice and nobody needs a lock. Only the last line can be torn, by a kill.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.schema import TABLES
from . import files
from .part import Part, PartName, part_name

__all__ = ["Manifest", "ManifestFile", "ManifestReader", "Part", "PartName", "part_name"]

MANIFEST_DIR = "manifest"
QUARANTINE_DIR = "quarantine"

STEP_TABLES = ("steps", "updates", "responses", "actions")  # their rows begin a step

_MANIFEST_NAME = re.compile(r"a(\d+)-r(\d+)\.jsonl")
_TABLE_NAME = re.compile(r"[a-z_]{1,64}")
_MOST_COUNT = 2**50  # what a manifest may claim
_MOST_NAMED = 20  # bad lines of one manifest


@dataclass
class Manifest:
    """The parts of a run that count now, and what is wrong with the manifests, by place.

    `replaced` are the files that merged parts stand for, with the checksums they were listed with
    (None: without one, or their line is bad), `closed` the (attempt, rank) whose
    recorder sealed everything before it ended, `lines` the complete lines of each file.
    """

    parts: list[Part] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    replaced: dict[tuple[str, str], int | None] = field(default_factory=dict)
    closed: set[tuple[int, int]] = field(default_factory=set)
    lines: dict[str, int] = field(default_factory=dict)

    def bad_files(self) -> dict[str, str]:
        """The names of the manifests of which something cannot be read, and one reason for each."""
        return {
            place.partition(" ")[0].removeprefix(f"{MANIFEST_DIR}/"): why
            for place, why in reversed(self.damaged.items())
        }


def manifest_path(run: Path, attempt: int, rank: int) -> Path:
    return run / MANIFEST_DIR / f"a{attempt}-r{rank}.jsonl"


def is_manifest(file: str) -> bool:
    return _MANIFEST_NAME.fullmatch(file) is not None


def manifest_names(run: Path) -> list[tuple[int, int]]:
    """The (attempt, rank) that have a manifest, in order."""
    found = (_MANIFEST_NAME.fullmatch(p.name) for p in (run / MANIFEST_DIR).glob("*.jsonl"))
    return sorted((int(m[1]), int(m[2])) for m in found if m)


class ManifestReader:
    """Reads the manifests of a run again and again; each time only what was added since."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._files: dict[tuple[int, int], ManifestFile] = {}

    def read(self) -> Manifest:
        names = manifest_names(self._run)
        self._files = {n: self._files.get(n) or ManifestFile(self._run, *n) for n in names}
        result = Manifest()
        for name, file in self._files.items():
            file.read()
            result.parts += file.parts()
            result.damaged |= file.damaged
            result.replaced |= file.replaced
            result.lines[file.path.name] = file.lines
            if file.closed:
                result.closed.add(name)
        return result


class ManifestFile:
    """The lines of one manifest, replayed as far as they have been read."""

    def __init__(self, run: Path, attempt: int, rank: int) -> None:
        self.run, self.path = run, manifest_path(run, attempt, rank)
        self.attempt, self.rank = attempt, rank
        self.inode = -1
        self._begin()

    def _begin(self) -> None:
        self.offset = self.lines = self.bad_lines = 0
        self.live: dict[tuple[str, str], Part] = {}
        self.replaced: dict[tuple[str, str], int | None] = {}
        self.damaged: dict[str, str] = {}
        self.closed = False

    def read(self) -> None:
        """Take up the lines that are complete; the last one may be torn by a kill."""
        name = f"{MANIFEST_DIR}/{self.path.name}"
        self.damaged.pop(name, None)
        try:
            new = self._new_bytes()
        except FileNotFoundError:
            self._begin()
            return
        except (ValueError, OSError) as error:
            self._begin()
            self.damaged[name] = files.words(error)
            return
        *whole, rest = new.split(b"\n")
        self.offset += len(new) - len(rest)
        for line in whole:
            self.lines += 1
            if (wrong := self.take(line)) is not None:
                self.bad_lines += 1
                if self.bad_lines <= _MOST_NAMED:
                    self.damaged[f"{name} line {self.lines}"] = wrong
                else:
                    more = self.bad_lines - _MOST_NAMED
                    self.damaged[f"{name} other lines"] = f"{more:,} more are no better"
        if rest and not files.torn(rest):
            self.damaged[name] = "its end is destroyed"

    def take(self, line: bytes) -> str | None:
        """Take up one line; what is wrong with it, in words, None if nothing is."""
        try:
            self._replay(*files.parse_line(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return str(error) if type(error) is ValueError else "it lists no parts"
        return None

    def _new_bytes(self) -> bytes:
        with files.open_inside(self.path, self.run) as file:
            state = os.fstat(file.fileno())
            if state.st_size > files.MOST_BYTES:
                raise ValueError(f"it has {state.st_size} bytes, more than such a file can have")
            if state.st_ino != self.inode or state.st_size < self.offset:
                self._begin()  # another run lies here now, or the doctor has been
                self.inode = state.st_ino
            file.seek(self.offset)
            return file.read()

    def _replay(self, line: dict[str, Any], vouched: bool) -> None:
        added = self._parts(line["parts"], vouched)
        gone = [(t, f) for t, names in line.get("replaces", {}).items() for f in names]
        self.closed |= line.get("closed") is True
        if any(key in self.replaced for key in gone):
            return  # another process merged these before: its parts count, not these
        for key in gone:
            let_go = self.live.pop(key, None)
            self.replaced[key] = let_go.crc if let_go else None
        for part in added:
            self._cover(part)
            self.live[part.table, part.file] = part

    def _cover(self, part: Part) -> None:
        """A merged part stands for what it holds, also where the line about some of it is bad."""
        if part.name.first < part.name.last:
            for key, other in list(self.live.items()):
                if key[0] == part.table and part.name.covers(other.name):
                    del self.live[key]
                    self.replaced[key] = other.crc

    def _parts(self, told: dict[str, Any], vouched: bool) -> list[Part]:
        """The parts of a line. Tables this version does not know are passed over, if a checksum
        says that they were meant."""
        parts = []
        for table, entry in told.items():
            if table not in TABLES and vouched and _TABLE_NAME.fullmatch(table):
                continue
            part = self._part(table, entry)
            if part.crc is not None and not vouched:
                raise ValueError("it has lost its checksum")
            parts.append(part)
        return parts

    def _part(self, table: str, entry: dict[str, Any]) -> Part:
        file, rows, size = entry["file"], entry["rows"], entry["bytes"]
        first, last = entry["steps"]
        crc = entry.get("crc")
        name = part_name(file)
        if table not in TABLES or name is None or name.owner != (self.attempt, self.rank):
            raise ValueError(f"it lists no part of this attempt and rank: {table}/{file}")
        numbers = (rows, size, first, last, 0 if crc is None else crc)
        if (
            any(type(n) is not int for n in numbers)
            or not -(2**31) <= first <= last < 2**31
            or not (0 <= rows <= _MOST_COUNT and 0 <= size <= _MOST_COUNT)
        ):
            raise ValueError(f"it lists no numbers of a part: {numbers}")
        return Part(table, file, *name.owner, rows, size, first, last, crc)

    def parts(self) -> list[Part]:
        """The parts that count, in the order they were listed."""
        return list(self.live.values())


def quarantine_path(run: Path, table: str, file: str) -> Path:
    """Where `doctor --repair` moves a damaged part; the reason lies beside it, as text."""
    return run / QUARANTINE_DIR / f"{table}-{file}"


def quarantined(run: Path, part: Part) -> str | None:
    """Why a part lies in quarantine; None if it does not."""
    reason = quarantine_path(run, part.table, part.file).with_suffix(".txt")
    try:
        with files.open_inside(reason, run) as file:
            return f"in quarantine: {file.read(1000).decode(errors='replace').strip()}"
    except (OSError, ValueError):
        return None


def attempts(parts: Iterable[Part]) -> dict[int, tuple[int, int]]:
    """Attempt → its first and last step, from the manifests alone. A step that was begun counts:
    its rows must not be mixed with those of the attempt before."""
    spans: dict[int, tuple[int, int]] = {}
    for p in (p for p in parts if p.table in STEP_TABLES):
        first, last = spans.get(p.attempt, (p.first_step, p.last_step))
        spans[p.attempt] = (min(first, p.first_step), max(last, p.last_step))
    return spans
