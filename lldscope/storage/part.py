"""A part: one sealed Parquet file of a table, its name, its manifest entry, and how it is written.

A part is written under a name that ends in `.inprogress`, made durable, and renamed. It counts from
the moment that a manifest line lists it (`manifest.commit`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.schema import arrow_schema
from . import json_files

if TYPE_CHECKING:
    import pyarrow as pa

PART_KEY = b"lldscope.part"  # metadata of a part: the path it was written to
QUARANTINE_DIR = "quarantine"
STEP_TABLES = ("steps", "updates", "responses", "actions")  # their rows begin a step

OWNER = r"a(\d+)-r(\d+)(?:-s(\d+))?"
_PART_NAME = re.compile(f"({OWNER})" + r"-(\d+)(?:-(\d+))?(?:-k(\d+))?\.parquet")


class Owner(NamedTuple):
    """The recorder of a manifest and its parts. A rank that comes back alone, while its sisters go
    on, records in their attempt: `start` counts its starts in that attempt."""

    attempt: int
    rank: int
    start: int = 1

    @classmethod
    def parse(cls, text: str) -> Owner:
        """The opposite of `str`. Raises ValueError."""
        if (match := re.fullmatch(OWNER, text)) is None:
            raise ValueError(f"no owner: {text}")
        return cls(int(match[1]), int(match[2]), int(match[3] or 1))

    def __str__(self) -> str:
        return f"a{self.attempt}-r{self.rank}" + (f"-s{self.start}" if self.start > 1 else "")

    @property
    def words(self) -> str:
        again = f", start {self.start}" if self.start > 1 else ""
        return f"attempt {self.attempt}, rank {self.rank}{again}"

    @property
    def is_first(self) -> bool:
        """Whether its rank cannot have recorded before."""
        return self.attempt == self.start == 1

    def precedes(self, other: Owner) -> bool:
        """Whether the other is a later recorder of the same rank."""
        return self.rank == other.rank and self < other


@dataclass(frozen=True)
class PartName:
    """The content of a part's file name: `a1-r0-000001-000016-k120.parquet`.

    The part holds the rows of the seals `first` to `last` of its owner, except those before the
    step `kept_from`, which retention removed.
    """

    owner: Owner
    first: int
    last: int
    kept_from: int = 0

    @property
    def file(self) -> str:
        last = "" if self.last == self.first else f"-{self.last:06d}"
        removal = f"-k{self.kept_from}" if self.kept_from else ""
        return f"{self.owner}-{self.first:06d}{last}{removal}.parquet"

    def covers(self, other: PartName) -> bool:
        """Whether every row that counts in the other part is in this one."""
        if self.owner != other.owner:
            return False
        if (self.first, self.last) == (other.first, other.last):
            return self.kept_from > other.kept_from
        return self.first <= other.first and other.last <= self.last

    def overlaps(self, other: PartName) -> bool:
        return self.owner == other.owner and self.first <= other.last and other.first <= self.last


@cache
def part_name(file: str) -> PartName | None:
    """The parsed name of a part file; None if it is not the name of a part."""
    match = _PART_NAME.fullmatch(file)
    if match is None:
        return None
    owner, *_, first, last, removal = match.groups()
    return PartName(Owner.parse(owner), int(first), int(last or first), int(removal or 0))


@dataclass(frozen=True)
class Part:
    """A part as its manifest lists it."""

    table: str
    file: str
    rows: int
    size: int  # bytes
    first_step: int
    last_step: int
    crc: int | None = None  # CRC-32 of the file; None in runs of versions that wrote none

    @property
    def place(self) -> str:
        """The path in the run's folder."""
        return f"{self.table}/{self.file}"

    def path(self, run: Path) -> Path:
        return run / self.place

    @property
    def name(self) -> PartName:
        name = part_name(self.file)
        assert name is not None
        return name

    def entry(self) -> dict[str, Any]:
        """The part's entry in a manifest line."""
        entry = {
            "file": self.file,
            "rows": self.rows,
            "bytes": self.size,
            "steps": [self.first_step, self.last_step],
        }
        return entry if self.crc is None else entry | {"crc": self.crc}


def columns_without_floats(schema: pa.Schema) -> list[str]:
    """The columns whose bounds a Parquet file may state. pyarrow leaves NaN out of the bounds of
    floats; DuckDB and polars sort NaN above all numbers and would not look for it beyond the
    bounds."""
    import pyarrow as pa

    return [field.name for field in schema if not pa.types.is_floating(field.type)]


def write_part(run: Path, table: str, name: PartName, batches: Iterable[pa.Table]) -> Part | None:
    """Write rows as a part, each batch as a row group. None if there are no rows.

    Raises OSError, and then leaves nothing behind.
    """
    import pyarrow.parquet as pq

    path = run / table / name.file
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}{json_files.IN_PROGRESS}")
    schema = arrow_schema(table)
    # Measured numbers hardly repeat: a dictionary of them is larger than the numbers themselves.
    no_floats = columns_without_floats(schema)
    schema = schema.with_metadata({**schema.metadata, PART_KEY: f"{table}/{name.file}"})
    rows, ends = 0, []
    try:
        with open(temporary, "w+b") as sink:
            with pq.ParquetWriter(
                sink, schema, compression="zstd", use_dictionary=no_floats,
                write_statistics=no_floats, write_page_checksum=True,
            ) as writer:
                for batch in batches:
                    writer.write_table(batch.combine_chunks())
                    steps = batch.column("step").to_numpy()
                    ends += [int(steps.min()), int(steps.max())]
                    rows += len(batch)
            sink.flush()
            os.fsync(sink.fileno())
            size = sink.seek(0, os.SEEK_END)
            sink.seek(0)
            crc = json_files.checksum(sink)
        if not rows:
            temporary.unlink()
            return None
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk can refuse this as well
            temporary.unlink(missing_ok=True)
        raise
    return Part(table, name.file, rows, size, min(ends), max(ends), crc)


def remove_parts(run: Path, parts: Iterable[Part]) -> None:
    """Remove the files of parts that were written and could not be committed."""
    for part in parts:
        with contextlib.suppress(OSError):
            part.path(run).unlink(missing_ok=True)


def quarantine_reason(run: Path, part: Part) -> str | None:
    """Why `lldscope doctor --repair` moved a part into quarantine; None for any other part."""
    reason = run / QUARANTINE_DIR / f"{part.table}-{Path(part.file).stem}.txt"
    try:
        with json_files.open_inside(reason, run) as file:
            return f"in quarantine: {file.read(1000).decode(errors='replace').strip()}"
    except (OSError, ValueError):
        return None
