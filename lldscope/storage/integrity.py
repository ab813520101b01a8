"""What is wrong with a sealed part: its file against the manifest and the registry."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..core.schema import arrow_schema
from . import files
from .manifest import Part, quarantined

MISSING = "the file is missing"

_MAGIC = b"PAR1"


def find_damage(run: Path, part: Part) -> str | None:
    """What is wrong with a part's file, in words; None if nothing is.

    Reads the whole file once, for its checksum, and the footer: rows, steps and column types must
    be what the manifest and the registry say.
    """
    import pyarrow.parquet as pq

    try:
        with files.open_inside(part.path(run), run) as file:
            size = file.seek(0, os.SEEK_END)
            if size != part.size:
                return f"{size} bytes instead of {part.size}"
            file.seek(-min(size, len(_MAGIC)), os.SEEK_END)
            if file.read() != _MAGIC:
                return "it does not end as a Parquet file"
            file.seek(0)
            if part.crc is not None and files.checksum(file) != part.crc:
                return "its checksum is not the one it was written with"
            file.seek(0)
            return _misfit(part, pq.read_metadata(file))
    except FileNotFoundError:
        return quarantined(run, part) or MISSING
    except (ValueError, OSError, pa.ArrowException) as error:
        return files.words(error).split("\n")[0]


def _misfit(part: Part, footer: Any) -> str | None:
    """Where a part's footer says something else than the manifest or the registry."""
    if footer.num_rows != part.rows:
        return f"{footer.num_rows} rows instead of {part.rows}"
    schema = footer.schema.to_arrow_schema()
    for declared in arrow_schema(part.table):
        index = schema.get_field_index(declared.name)
        if index < 0:
            if not declared.nullable:
                return f"it has no column {declared.name}"
        elif not _fits(schema.field(index).type, declared.type):
            found = schema.field(index).type
            return f"column {declared.name} is {found} instead of {declared.type}"
    spans = [
        group.column(i).statistics
        for group in map(footer.row_group, range(footer.num_row_groups))
        for i in range(group.num_columns)
        if group.column(i).path_in_schema == "step"
    ]
    steps = [(s.min, s.max) for s in spans if s is not None and s.has_min_max]
    if steps and (min(a for a, _ in steps), max(b for _, b in steps)) != (
        part.first_step,
        part.last_step,
    ):
        return "it holds other steps than its manifest says"
    return None


def _fits(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether a column's values can be read as the declared type without loss of meaning."""
    kinds = (
        pa.types.is_signed_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
    )
    return any(kind(found) and kind(declared) for kind in kinds)
