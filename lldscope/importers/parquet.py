"""Rows of Parquet files in pieces of bounded size, whatever the files declare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from .limits import FREE_BYTES, MAX_CELLS, MAX_RATIO
from .parquet_pages import unpacked_sizes
from .source import Findings

_ROWS = 4096  # in a piece, at most …
_BYTES = 256 << 20  # … and of their texts

_TEXTS = 1 << 30  # bytes of a file's texts, however small it is

_UNREADABLE = "Parquet files that cannot be read to their end"


def parquet_rows(
    path: Path, findings: Findings, wanted: Callable[[pa.Field], bool] = lambda field: True
) -> Iterator[dict[str, Any]]:
    """The rows of the columns that are wanted. What cannot be read is counted."""
    try:
        size = path.stat().st_size
        most = max(FREE_BYTES, MAX_RATIO * size)
        texts = max(_TEXTS, MAX_RATIO * size)
        with path.open("rb") as raw, pq.ParquetFile(path) as file:
            names = [field.name for field in file.schema_arrow if wanted(field)]
            n = file.metadata.num_rows
            if n * len(names) > MAX_CELLS:
                return findings.skip(f"Parquet files of more than {MAX_CELLS:,} values")
            for group in range(file.num_row_groups):
                declared = _unpacked(raw, file.metadata.row_group(group))
                if declared > most:
                    return findings.skip(
                        f"Parquet files that unpack to more than {MAX_RATIO} times their size"
                    )
                # A short code may stand for a text as long as all that is declared.
                rows = max(1, min(_ROWS, _BYTES // max(declared, 1)))
                pieces = file.iter_batches(rows, [group], names, use_threads=False)
                for piece in pieces:
                    texts -= sum(_size(column) for column in piece.columns)
                    if texts < 0:
                        return findings.skip(f"rows beyond {MAX_RATIO} times the size of a file")
                    findings.advance(size * piece.num_rows // max(n, 1))
                    yield from piece.to_pylist()
    except (pa.ArrowException, OSError, OverflowError, ValueError) as error:
        findings.skip(_UNREADABLE)
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        findings.note(f"{path.name}: {reason[:200]}")


def _unpacked(raw: BinaryIO, group: Any) -> int:
    """What a row group unpacks to, by its own account or by that of its pages, if they ask for
    more."""
    columns = [group.column(i) for i in range(group.num_columns)]
    pages = sum(size for column in columns for size in unpacked_sizes(raw, column))
    return max(group.total_byte_size, pages)


def _size(column: pa.Array) -> int:
    """Bytes of its texts, each as often as it is there."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return 0 if is_number(column.type) else column.nbytes


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
