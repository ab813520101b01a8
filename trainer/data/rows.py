"""The rows of a data file, one at a time: Parquet, JSON lines or a JSON list, gzipped or not.

What a file is shows in its first bytes; its name does not matter. Memory holds one row of JSON
lines, one batch of Parquet rows, or a whole JSON list.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from lldscope.core.errors import UsageError

from .corpus import decode

Row = dict[str, Any]

LONGEST = 2**24
"""Bytes of the longest line that is read."""
_CHUNK = 2**16
_BATCH = 512
_BOM = b"\xef\xbb\xbf"
_UNREADABLE = (OSError, EOFError, zlib.error, pa.ArrowException, ValueError, OverflowError)


def read_rows(path: Path, columns: Collection[str]) -> Iterator[tuple[int, Row]]:
    """(row number from 1, row) of a file, blank lines of JSON lines counted but left out.

    Of a Parquet file only `columns` are read, all if it has none of them. Raises UsageError for a
    file that cannot be read, naming it and the row.
    """
    number = 0
    try:
        with path.open("rb") as file:
            for number, row in _rows(file, columns):
                if not isinstance(row, dict):
                    raise UsageError(
                        f"{path}, row {number}: found {shorten(row)}, expected an object"
                    )
                yield number, row
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}") from None
    except _UNREADABLE as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UsageError(f"{path} cannot be read after row {number}: {reason}") from None


def shorten(value: object, limit: int = 80) -> str:
    """A value for an error message: escaped, and cut where it is long."""
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"


def _rows(file: BinaryIO, columns: Collection[str]) -> Iterator[tuple[int, Any]]:
    """Raises ValueError, in words, for what is no row or none of the three kinds."""
    head = file.read(4)
    file.seek(0)
    if head == b"PAR1":
        return enumerate(_parquet_rows(file, columns), 1)
    is_gzip = head[:2] == b"\x1f\x8b"
    stream = cast(io.BufferedReader, gzip.GzipFile(fileobj=file) if is_gzip else file)
    start = stream.peek(_CHUNK).removeprefix(_BOM).lstrip()
    if start.startswith(b"["):
        return enumerate(decode(stream.read()), 1)
    if start.startswith(b"{") or not start:
        return _line_rows(stream)
    raise ValueError(
        f"neither Parquet nor JSON lines nor a JSON list starts with {shorten(start[:20])}"
    )


def _parquet_rows(file: BinaryIO, columns: Collection[str]) -> Iterator[Any]:
    parquet = pq.ParquetFile(file)
    names = parquet.schema_arrow.names
    selection = [name for name in names if name in columns] or names
    for batch in parquet.iter_batches(_BATCH, columns=selection):
        yield from batch.to_pylist()


def _line_rows(stream: BinaryIO) -> Iterator[tuple[int, Any]]:
    number = 0
    while line := stream.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise ValueError(f"the next one is longer than {LONGEST} bytes")
        if not line.isspace():
            yield number, decode(line)
