"""Rows of Parquet files, a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .source import Findings

_ROWS = 4096  # in a piece


def parquet_rows(
    path: Path, findings: Findings, keep: Callable[[pa.Field], bool] = lambda field: True
) -> Iterator[dict[str, Any]]:
    """The rows of the columns that are wanted. What cannot be read is counted."""
    try:
        size = path.stat().st_size
        with pq.ParquetFile(path) as file:
            names = [field.name for field in file.schema_arrow if keep(field)]
            for piece in file.iter_batches(_ROWS, columns=names, use_threads=False):
                findings.advance(size * piece.num_rows // max(file.metadata.num_rows, 1))
                yield from piece.to_pylist()
    except (pa.ArrowException, OSError, OverflowError, ValueError) as error:
        findings.skip("Parquet files that cannot be read to their end")
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        findings.note(f"{path.name}: {reason[:200]}")


def is_number(kind: pa.DataType) -> bool:
    """Whether all that a column holds are numbers, dates or truth values."""
    if pa.types.is_struct(kind):
        return all(is_number(field.type) for field in kind)
    return pa.types.is_primitive(kind)


def schema_of(path: Path) -> pa.Schema | None:
    """None where the file is no Parquet file."""
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError, OverflowError, UnicodeError):
        return None
