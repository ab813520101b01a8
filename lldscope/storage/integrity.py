"""Whether the files of a run match its manifests: damaged parts, and files that nothing lists."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from ..core.schema import TABLES, arrow_schema
from . import json_files
from .manifest import Manifest
from .part import Part, PartName, part_name, quarantine_reason

MISSING = "the file is missing"

_MAGIC = b"PAR1"


def find_damage(run: Path, part: Part) -> str | None:
    """What is wrong with a part's file; None if nothing is.

    Reads the whole file once, for its checksum, and the footer: rows, steps and column types must
    match the manifest and the schema.
    """
    import pyarrow.parquet as pq

    try:
        with json_files.open_inside(part.path(run), run) as file:
            size = file.seek(0, os.SEEK_END)
            if size != part.size:
                return f"{size} bytes instead of {part.size}"
            file.seek(-min(size, len(_MAGIC)), os.SEEK_END)
            if file.read() != _MAGIC:
                return "it does not end as a Parquet file"
            file.seek(0)
            if part.crc is not None and json_files.checksum(file) != part.crc:
                return "its checksum is wrong"
            file.seek(0)
            return _footer_mismatch(part, pq.read_metadata(file))
    except FileNotFoundError:
        return quarantine_reason(run, part) or MISSING
    except (ValueError, OSError, pa.ArrowException) as error:
        return json_files.reason(error).split("\n")[0]


def _footer_mismatch(part: Part, footer: Any) -> str | None:
    """Where a part's footer differs from the manifest or the schema."""
    if footer.num_rows != part.rows:
        return f"{footer.num_rows} rows instead of {part.rows}"
    schema = footer.schema.to_arrow_schema()
    for declared in arrow_schema(part.table):
        index = schema.get_field_index(declared.name)
        if index < 0:
            if not declared.nullable:
                return f"it has no column {declared.name}"
        elif not _is_compatible(schema.field(index).type, declared.type):
            actual = schema.field(index).type
            return f"column {declared.name} is {actual} instead of {declared.type}"
    columns = (
        group.column(i)
        for group in map(footer.row_group, range(footer.num_row_groups))
        for i in range(group.num_columns)
    )
    spans = [column.statistics for column in columns if column.path_in_schema == "step"]
    steps = [(s.min, s.max) for s in spans if s is not None and s.has_min_max]
    if steps and (min(a for a, _ in steps), max(b for _, b in steps)) != (
        part.first_step,
        part.last_step,
    ):
        return "its steps are not those in the manifest"
    return None


def _is_compatible(actual: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values of a type can be read as the declared type without changing their meaning."""
    kinds = (
        pa.types.is_signed_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
    )
    return any(kind(actual) and kind(declared) for kind in kinds)


UnlistedKind = Literal[
    "unfinished", "merged away", "unpublished", "unsealed", "passed over", "foreign"
]
# Why a file of each kind is there.
REASONS: dict[UnlistedKind, str] = {
    "unfinished": "a file that was never finished; its writer ended while writing it",
    "merged away": "its rows are in a merged part",
    "unpublished": "a merged part that was never listed; what it was made of still counts",
    "unsealed": "it was never listed, and cannot be read",
    "passed over": "a merged part spans its seal, and no manifest says that it holds its rows",
    "foreign": "not a file of lldscope",
}


@dataclass(frozen=True)
class UnlistedFile:
    """A file in a table's folder that no manifest lists; `name` is None if it cannot be a part."""

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
                yield _classify(run, manifest, table, path, listed.values())


def is_removable(run: Path, file: UnlistedFile, manifest: Manifest) -> bool:
    """Whether a file can be deleted, by the manifests as they are now: it still does not count, for
    the same reason, and the parts that have its rows exist."""
    listed = {p.file: p for p in manifest.parts if p.table == file.table}
    name = file.name
    return (
        name is not None
        and file.path.name not in listed
        and _classify(run, manifest, file.table, file.path, listed.values()) == file
        and all(p.path(run).exists() for p in listed.values() if p.name.covers(name))
    )


def _classify(
    run: Path, manifest: Manifest, table: str, path: Path, listed: Iterable[Part]
) -> UnlistedFile:
    stem, _, suffix = path.name.partition(".parquet")
    name = part_name(f"{stem}.parquet")
    ours = not suffix or suffix.endswith(json_files.IN_PROGRESS)
    if name is None or not path.is_file() or not ours:
        return UnlistedFile(path, table, "foreign", None)
    if suffix:
        return UnlistedFile(path, table, "unfinished", name)
    replaced = (table, path.name) in manifest.replaced
    kind: UnlistedKind = "merged away" if replaced else _kind(run, name, listed)
    return UnlistedFile(path, table, kind, name)


def _kind(run: Path, name: PartName, listed: Iterable[Part]) -> UnlistedKind:
    overlapping = [part for part in listed if name.overlaps(part.name)]
    if any(part.name.covers(name) for part in overlapping):
        # A merged part is made of listed parts; a part of one seal may have lost its commit.
        single = name.first == name.last and not name.kept_from
        return "passed over" if single else "merged away"
    # If the parts it was made of are gone, only the commit of the merged part is missing.
    complete = overlapping and all(part.path(run).exists() for part in overlapping)
    return "unpublished" if complete else "unsealed"
