"""A part: a sealed Parquet file, what its manifest line says of it and what its name says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_PART_NAME = re.compile(r"a(\d+)-r(\d+)-(\d+)(?:-(\d+))?(?:-k(\d+))?\.parquet")


@dataclass(frozen=True)
class Part:
    """A sealed Parquet file: where it is and what it holds."""

    table: str
    file: str
    attempt: int
    rank: int
    rows: int
    size: int
    first_step: int
    last_step: int
    crc: int | None = None  # CRC-32 of the file; None in runs of versions that wrote none

    def path(self, run: Path) -> Path:
        return run / self.table / self.file

    @property
    def name(self) -> PartName:
        name = part_name(self.file)
        assert name is not None
        return name

    def entry(self) -> dict[str, Any]:
        """The part as its manifest line tells it."""
        entry = {
            "file": self.file,
            "rows": self.rows,
            "bytes": self.size,
            "steps": [self.first_step, self.last_step],
        }
        return entry if self.crc is None else entry | {"crc": self.crc}


@dataclass(frozen=True)
class PartName:
    """What the name of a part says; `kept_from` is the step that retention kept rows from."""

    attempt: int
    rank: int
    first: int
    last: int
    kept_from: int = 0

    def covers(self, other: PartName) -> bool:
        """Whether every row that counts in the other part is in this one."""
        if self.owner != other.owner or self == other:
            return False
        span, others = (self.first, self.last), (other.first, other.last)
        if span == others:
            return self.kept_from > other.kept_from
        return self.first <= other.first and other.last <= self.last

    @property
    def owner(self) -> tuple[int, int]:
        return self.attempt, self.rank

    @property
    def file(self) -> str:
        last = "" if self.last == self.first else f"-{self.last:06d}"
        kept = f"-k{self.kept_from}" if self.kept_from else ""
        return f"a{self.attempt}-r{self.rank}-{self.first:06d}{last}{kept}.parquet"

    def overlaps(self, other: PartName) -> bool:
        return self.owner == other.owner and self.first <= other.last and other.first <= self.last


@cache
def part_name(file: str) -> PartName | None:
    """What a file's name says about the part in it; None if it is not the name of a part."""
    match = _PART_NAME.fullmatch(file)
    if match is None:
        return None
    attempt, rank, first, last, kept = match.groups()
    return PartName(int(attempt), int(rank), int(first), int(last or first), int(kept or 0))
