"""Which parts of a run count: the manifests, append-only logs of commits, and how to add to one.

There is one manifest per recorder, `manifest/a1-r0.jsonl`. Each line is a commit: it adds
parts of several tables, so that a step becomes visible in all tables at once, and removes the parts
that a merged part replaces. The recorder of that rank writes it; after the end of that process
`lldscope compact`, rank 0 of the next attempt, and the doctor may append to it. If two processes
merge the same parts at once, the first commit is valid and the second is void: no row is ever
counted twice, and no lock is needed. Only the last line can be torn, by a kill.

Each line has its number, `n`, which counts from 1: a reader notices lines that are gone. A recorder
counts its own lines, so that it goes on with the right number if the file is cut or removed under
it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.numbers import plural
from ..core.schema import TABLES
from . import json_files
from .part import OWNER, Owner, Part, part_name

MANIFEST_DIR = "manifest"

_MANIFEST_NAME = re.compile(f"({OWNER})" + r"\.jsonl")
_NUMBER = re.compile(rb', "n": (\d{1,12}), "crc": \d{1,10}\}\Z')
_TABLE_NAME = re.compile(r"[a-z_]{1,64}")
_MAX_COUNT = 2**50  # rows and bytes that an entry may claim


@dataclass
class Manifest:
    """The parts of a run that count, and what is wrong with its manifests.

    parts      in the order they were committed
    damaged    manifest, as in `manifest_file` → reason
    replaced   (table, file) that merged parts replace → the checksum it was listed with (None if
               it had none, or its line cannot be read)
    closed     the recorders that committed everything before they ended
    owners     recorder → number of complete lines of its manifest
    """

    parts: list[Part] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    replaced: dict[tuple[str, str], int | None] = field(default_factory=dict)
    closed: set[Owner] = field(default_factory=set)
    owners: dict[Owner, int] = field(default_factory=dict)


def manifest_file(attempt: int, rank: int, start: int = 1) -> str:
    return f"{MANIFEST_DIR}/{Owner(attempt, rank, start)}.jsonl"


def manifest_path(run: Path, attempt: int, rank: int, start: int = 1) -> Path:
    return run / manifest_file(attempt, rank, start)


def owner_of(file: str) -> Owner | None:
    """The recorder of a manifest, by the name of the file; None if it is no manifest."""
    match = _MANIFEST_NAME.fullmatch(file)
    return Owner.parse(match[1]) if match else None


def manifest_names(run: Path) -> list[Owner]:
    """The recorders that have a manifest, in order."""
    owners = (owner_of(path.name) for path in (run / MANIFEST_DIR).glob("*.jsonl"))
    return sorted(owner for owner in owners if owner)


def commit(
    run: Path,
    owner: tuple[int, ...],
    add: Sequence[Part],
    *,
    remove: Sequence[Part] = (),
    closed: bool = False,
    after: int = 0,
) -> int:
    """Append one line: from here on the parts of `add` count, and those of `remove` do not.

    `closed` states that this recorder has nothing left to write. `after` is the number of the last
    line that the caller knows. Returns the number of the new line. Raises OSError.
    """
    line: dict[str, Any] = {"time": json_files.now(), "parts": {p.table: p.entry() for p in add}}
    if remove:
        tables = dict.fromkeys(p.table for p in remove)
        line["replaces"] = {t: [p.file for p in remove if p.table == t] for t in tables}
    if closed:
        line["closed"] = True
    path = manifest_path(run, *owner)
    number = max(after, _cut_torn_line(path)) + 1
    json_files.append_line(path, line | {"n": number})
    return number


def _cut_torn_line(path: Path) -> int:
    """Remove the last line if a killed writer left it incomplete: it never counted. Returns the
    number of the line that is last now; 0 without a number."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        size = os.fstat(handle).st_size
        end = os.pread(handle, 1 << 20, max(0, size - (1 << 20)))
        whole = end[: end.rfind(b"\n") + 1]
        if len(whole) < len(end):
            os.ftruncate(handle, size - len(end) + len(whole))
    finally:
        os.close(handle)
    return line_number(whole[:-1].rpartition(b"\n")[2])


def line_number(line: bytes) -> int:
    match = _NUMBER.search(line)
    return int(match[1]) if match else 0


class ManifestReader:
    """Reads the manifests of a run repeatedly, each time only the lines appended since."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._files: dict[Owner, ManifestFile] = {}

    def read(self) -> Manifest:
        names = manifest_names(self._run)
        self._files = {n: self._files.get(n) or ManifestFile(self._run, *n) for n in names}
        result = Manifest()
        for name, file in self._files.items():
            file.read()
            result.parts += file.active.values()
            if file.damage:
                result.damaged[manifest_file(*name)] = file.damage
            result.replaced |= file.replaced
            result.owners[name] = file.lines
            if file.closed:
                result.closed.add(name)
        return result


class ManifestFile:
    """The commits of one manifest, replayed as far as they have been read.

    `active` are the parts that count, by (table, file), in the order they were committed; `offset`
    is the number of bytes read; `damage` is what is wrong with the file, None if nothing is.
    """

    def __init__(self, run: Path, attempt: int, rank: int, start: int = 1) -> None:
        self.owner = Owner(attempt, rank, start)
        self.run, self.path = run, manifest_path(run, *self.owner)
        self._inode = -1
        self._reset()

    def _reset(self) -> None:
        self.offset = self.lines = self._bad_lines = self._missing = 0
        self.active: dict[tuple[str, str], Part] = {}
        self.replaced: dict[tuple[str, str], int | None] = {}
        self._first_problem = ""
        self.damage: str | None = None
        self.closed = False

    def read(self) -> None:
        """Replay the complete lines that were appended; the last one may be torn by a kill."""
        self.damage = None
        try:
            new = self._new_bytes()
        except FileNotFoundError:
            self._reset()
            return
        except (ValueError, OSError) as error:
            self._reset()
            self.damage = json_files.reason(error)
            return
        *complete, rest = new.split(b"\n")
        self.offset += len(new) - len(rest)
        for line in complete:
            self.lines += 1
            self._missing = max(self._missing, line_number(line) - self.lines)
            if (problem := self.replay(line)) is not None:
                self._first_problem = self._first_problem or f"line {self.lines}: {problem}"
                self._bad_lines += 1
        if self._bad_lines:
            bad = plural(self._bad_lines, "line")
            self.damage = f"{bad} cannot be read ({self._first_problem})"
        elif self._missing:
            self.damage = f"{self._missing} of the lines that were written are missing"
        elif rest and not json_files.is_torn(rest):
            self.damage = "its end is destroyed"

    def _new_bytes(self) -> bytes:
        with json_files.open_inside(self.path, self.run) as file:
            state = os.fstat(file.fileno())
            json_files.check_size(state.st_size)
            if state.st_ino != self._inode or state.st_size < self.offset:
                self._reset()  # another run was put here, or the doctor repaired the file
                self._inode = state.st_ino
            file.seek(self.offset)
            return file.read()

    def replay(self, line: bytes) -> str | None:
        """Apply one commit; returns what is wrong with the line, None if nothing is."""
        try:
            self._apply(*json_files.parse_line(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return str(error) if type(error) is ValueError else "it lists no parts"
        return None

    def _apply(self, line: dict[str, Any], has_checksum: bool) -> None:
        # In a line with a checksum, an unknown table is one of a later version.
        parts = [
            self._part(table, entry, has_checksum) for table, entry in line["parts"].items()
            if table in TABLES or not (has_checksum and _TABLE_NAME.fullmatch(table))
        ]
        keys = [(t, f) for t, names in line.get("replaces", {}).items() for f in names]
        self.closed |= line.get("closed") is True
        if any(key in self.replaced for key in keys):
            return  # another process merged these parts before: this commit is void
        for key in keys:
            old = self.active.pop(key, None)
            self.replaced[key] = old.crc if old else None
        for part in parts:
            if part.name.first < part.name.last:
                self._remove_covered(part)
            self.active[part.table, part.file] = part

    def _remove_covered(self, new_part: Part) -> None:
        """A merged part replaces what it covers, even if a commit of some of it is damaged."""
        for key, part in list(self.active.items()):
            if part.table == new_part.table and new_part.name.covers(part.name):
                del self.active[key]
                self.replaced[key] = part.crc

    def _part(self, table: str, entry: dict[str, Any], has_checksum: bool) -> Part:
        file, rows, size = entry["file"], entry["rows"], entry["bytes"]
        first, last = entry["steps"]
        crc = entry.get("crc")
        if crc is not None and not has_checksum:
            raise ValueError("it has lost its checksum")
        name = part_name(file)
        if table not in TABLES or name is None or name.owner != self.owner:
            raise ValueError(f"it lists no part of this attempt and rank: {table}/{file}")
        numbers = (rows, size, first, last, 0 if crc is None else crc)
        if (
            any(type(n) is not int for n in numbers)
            or not -(2**31) <= first <= last < 2**31
            or not (0 <= rows <= _MAX_COUNT and 0 <= size <= _MAX_COUNT)
        ):
            raise ValueError(f"the numbers of a part are not valid: {numbers}")
        return Part(table, file, rows, size, first, last, crc)
