"""Whether the files of a run match its manifests: damaged parts, and files that nothing lists."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.schema import TABLES, arrow_schema
from . import json_files
from .manifest import Manifest
from .part import Part, PartName, part_name, quarantine_reason

if TYPE_CHECKING:
    import pyarrow as pa

_compatible: dict[str, Any] = {}  # table → the last compatible schema of a file

MISSING = "the file is missing"


def find_damage(run: Path, part: Part) -> str | None:
    """What is wrong with a part's file; None if nothing is.

    Reads the whole file once, for its checksum, and the footer: rows and column types must match
    the manifest and the schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with json_files.open_inside(part.path(run), run) as file:
            size = file.seek(0, os.SEEK_END)
            if size != part.size:
                return f"{size} bytes instead of {part.size}"
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
    schema_before = _compatible.get(part.table)
    if schema_before is not None and footer.schema.equals(schema_before):
        return None  # most parts of a run are alike
    schema = footer.schema.to_arrow_schema()
    for declared in arrow_schema(part.table):
        index = schema.get_field_index(declared.name)
        if index < 0:
            if not declared.nullable:
                return f"it has no column {declared.name}"
        elif not _is_compatible(schema.field(index).type, declared.type):
            actual = schema.field(index).type
            return f"column {declared.name} is {actual} instead of {declared.type}"
    _compatible[part.table] = footer.schema
    return None


def _is_compatible(actual: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values of a type can be read as the declared type without changing their meaning."""
    from pyarrow import types

    kinds = (
        types.is_signed_integer,
        types.is_floating,
        types.is_boolean,
        lambda t: types.is_string(t) or types.is_large_string(t),
    )
    return any(kind(actual) and kind(declared) for kind in kinds)


# Why a table's folder holds a file that no manifest lists.
UNFINISHED = "a file that was never finished; its writer ended while writing it"
MERGED_AWAY = "its rows are in a merged part"
UNPUBLISHED = "a merged part that was never listed; what it was made of still counts"
COVERED = "a merged part spans its seal, and no manifest says that it holds its rows"
UNSEALED = "it was never listed, and is no intact part of this name"
REMOVABLE = (UNFINISHED, MERGED_AWAY, UNPUBLISHED)  # removing such a file loses no row


@dataclass(frozen=True)
class UnlistedFile:
    """A part, or the beginning of one, that no manifest lists, and `why` it is there."""

    path: Path
    table: str
    name: PartName
    why: str


def unlisted_files(run: Path, manifest: Manifest) -> Iterator[UnlistedFile]:
    """The files of recorders in the tables' folders that do not count."""
    for table in TABLES:
        listed = {p.file: p for p in manifest.parts if p.table == table}
        for path in sorted((run / table).glob("*")):
            if file := _unlisted(run, manifest, table, path, listed):
                yield file


def is_removable(run: Path, file: UnlistedFile, manifest: Manifest) -> bool:
    """Whether a file can be deleted now: the current manifests leave it out for the same reason as
    before, and the parts that hold its rows exist."""
    listed = {p.file: p for p in manifest.parts if p.table == file.table}
    owners = (p for p in listed.values() if p.name.covers(file.name))
    same = _unlisted(run, manifest, file.table, file.path, listed) == file
    return same and all(p.path(run).exists() for p in owners)


def _unlisted(
    run: Path, manifest: Manifest, table: str, path: Path, listed: Mapping[str, Part]
) -> UnlistedFile | None:
    stem, _, suffix = path.name.partition(".parquet")
    name = part_name(f"{stem}.parquet")
    if name is None or path.name in listed or not path.is_file():
        return None
    if suffix:
        is_ours = suffix.endswith(json_files.IN_PROGRESS)
        return UnlistedFile(path, table, name, UNFINISHED) if is_ours else None
    replaced = (table, path.name) in manifest.replaced
    why = MERGED_AWAY if replaced else _why_unlisted(run, name, listed.values())
    return UnlistedFile(path, table, name, why)


def _why_unlisted(run: Path, name: PartName, listed: Iterable[Part]) -> str:
    overlapping = [part for part in listed if name.overlaps(part.name)]
    if any(part.name.covers(name) for part in overlapping):
        # A merged part is made of listed parts; a part of one seal may have lost its commit.
        return COVERED if name.first == name.last and not name.kept_from else MERGED_AWAY
    # If the parts it was made of are gone, only the commit of the merged part is missing.
    complete = overlapping and all(part.path(run).exists() for part in overlapping)
    return UNPUBLISHED if complete else UNSEALED
