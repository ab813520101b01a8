"""Writing parts and listing them in a manifest, and what becomes of files that no manifest lists.

A part is written under a name that ends in `.inprogress`, made durable, renamed, and then listed:
from that line on it counts. A kill between any two of these leaves files that count for nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from ..core.schema import TABLES, arrow_schema
from . import files, json_files
from .manifest import Manifest, Part, PartName, manifest_path, part_name

PART_KEY = b"lldscope.part"  # in a part's own metadata: what it was called when it was written

# unfinished: the writer ended in the middle of it          merged away: a merged part has its rows
# unpublished: a merged part that was never listed          unsealed: rows that were never listed
# passed over: a merged part spans its seal, and no line says that it holds these rows
# foreign: nothing that lldscope writes
UnlistedKind = Literal[
    "unfinished", "merged away", "unpublished", "unsealed", "passed over", "foreign"
]


def write_part(run: Path, table: str, name: PartName, batches: Iterable[pa.Table]) -> Part | None:
    """Write rows as a sealed part; it counts once `seal` has listed it. None if there is no row.

    Each batch becomes a row group. Raises OSError, and then leaves nothing behind.
    """
    import pyarrow.parquet as pq

    folder = run / table
    folder.mkdir(exist_ok=True)
    final = folder / name.file
    temporary = final.with_name(f"{final.name}.{os.getpid()}{json_files.IN_PROGRESS}")
    schema = arrow_schema(table)
    # Measured numbers hardly repeat: a dictionary of them takes more room than they do.
    repeating = [f.name for f in schema if not pa.types.is_floating(f.type)]
    schema = schema.with_metadata({**schema.metadata, PART_KEY: f"{table}/{name.file}"})
    rows, ends = 0, []
    try:
        with open(temporary, "w+b") as sink:
            with pq.ParquetWriter(
                sink,
                schema,
                compression="zstd",
                use_dictionary=repeating,
                write_page_checksum=True,
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
            crc = files.checksum(sink)
        if not rows:
            temporary.unlink()
            return None
        os.replace(temporary, final)
    except BaseException:
        with contextlib.suppress(OSError):  # on a full disk even this counts
            temporary.unlink(missing_ok=True)
        raise
    return Part(table, name.file, *name.owner, rows, size, min(ends), max(ends), crc)


def discard(run: Path, parts: Iterable[Part]) -> None:
    """Remove parts that were written and could not be listed."""
    for part in parts:
        with contextlib.suppress(OSError):
            part.path(run).unlink(missing_ok=True)


def seal(
    run: Path,
    attempt: int,
    rank: int,
    parts: Sequence[Part],
    *,
    replaces: Sequence[Part] = (),
    closed: bool = False,
) -> None:
    """List parts in a manifest with one write: from here on they count (and `replaces` do not).

    `closed` says that this recorder has nothing left to write.
    """
    line: dict[str, Any] = {"time": time.time(), "parts": {p.table: p.entry() for p in parts}}
    if replaces:
        tables = dict.fromkeys(p.table for p in replaces)
        line["replaces"] = {t: [p.file for p in replaces if p.table == t] for t in tables}
    if closed:
        line["closed"] = True
    path = manifest_path(run, attempt, rank)
    _cut_torn_end(path)
    json_files.append_line(path, line)


def _cut_torn_end(path: Path) -> None:
    """Take away the line that a killed writer has not completed: it never counted."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        size = os.fstat(handle).st_size
        end = os.pread(handle, 1 << 20, max(0, size - (1 << 20)))
        if end and not end.endswith(b"\n"):
            os.ftruncate(handle, size - len(end) + end.rfind(b"\n") + 1)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class UnlistedFile:
    """A file among the parts that no manifest lists; `name` is None where it cannot be a part."""

    path: Path
    table: str
    kind: UnlistedKind
    name: PartName | None


def unlisted_files(run: Path, manifest: Manifest) -> Iterator[UnlistedFile]:
    """The files in the tables' folders that do not count, and why they are there."""
    for table in TABLES:
        listed = {p.file: p for p in manifest.parts if p.table == table}
        for path in sorted((run / table).glob("*")):
            if path.name not in listed:
                yield _stray(run, manifest, table, path, listed.values())


def may_go(run: Path, stray: UnlistedFile, manifest: Manifest) -> bool:
    """Whether a file can be removed, by the manifests as they are now: it still does not count, for
    the reason that was found, and what holds its rows is there."""
    listed = {p.file: p for p in manifest.parts if p.table == stray.table}
    name = stray.name
    return (
        name is not None
        and stray.path.name not in listed
        and _stray(run, manifest, stray.table, stray.path, listed.values()) == stray
        and all(p.path(run).exists() for p in listed.values() if p.name.covers(name))
    )


def _stray(
    run: Path, manifest: Manifest, table: str, path: Path, listed: Iterable[Part]
) -> UnlistedFile:
    stem, _, end = path.name.partition(".parquet")
    name = part_name(f"{stem}.parquet")
    if name is None or not path.is_file() or not _ours(end):
        return UnlistedFile(path, table, "foreign", None)
    if end:
        return UnlistedFile(path, table, "unfinished", name)
    gone = (table, path.name) in manifest.replaced
    kind: UnlistedKind = "merged away" if gone else _kind(run, name, listed)
    return UnlistedFile(path, table, kind, name)


def _ours(end: str) -> bool:
    """Whether a file name may go on like this after `.parquet`."""
    return not end or end.endswith(json_files.IN_PROGRESS)


def _kind(run: Path, name: PartName, listed: Iterable[Part]) -> UnlistedKind:
    near = [part for part in listed if name.overlaps(part.name)]
    if any(part.name.covers(name) for part in near):
        # What a merge writes is made of listed parts; a seal of its own may have lost its line.
        own = name.first == name.last and not name.kept_from
        return "passed over" if own else "merged away"
    # Where what it was made of is gone, only the line about the merged part is missing.
    whole = near and all(part.path(run).exists() for part in near)
    return "unpublished" if whole else "unsealed"
