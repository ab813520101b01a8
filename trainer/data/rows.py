"""The rows of a data file, one at a time: Parquet, JSON lines or a JSON list, gzipped or not.

What a file is shows in its first bytes; its name does not matter. Memory holds one row of JSON or
one batch of Parquet rows.
"""

from __future__ import annotations

import gzip
import io
import json
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
"""Bytes (JSON lines) or characters (JSON list) of the longest row that is read."""
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
            for number, row in _rows(file, path, columns):
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


def _rows(file: BinaryIO, path: Path, columns: Collection[str]) -> Iterator[tuple[int, Any]]:
    head = file.read(4)
    file.seek(0)
    if head == b"PAR1":
        return _parquet_rows(file, columns)
    is_gzip = head[:2] == b"\x1f\x8b"
    stream = cast(io.BufferedReader, gzip.GzipFile(fileobj=file) if is_gzip else file)
    start = stream.peek(_CHUNK).removeprefix(_BOM).lstrip()
    if start.startswith(b"["):
        return _list_rows(io.TextIOWrapper(stream, "utf-8-sig"), path)
    if start.startswith(b"{") or not start:
        return _line_rows(stream, path)
    raise UsageError(
        f"{path} is neither Parquet nor JSON lines nor a JSON list: it starts with "
        f"{shorten(start[:20])}"
    )


def _parquet_rows(file: BinaryIO, columns: Collection[str]) -> Iterator[tuple[int, Any]]:
    parquet = pq.ParquetFile(file)
    names = parquet.schema_arrow.names
    selection = [name for name in names if name in columns] or names
    number = 0
    for batch in parquet.iter_batches(_BATCH, columns=selection):
        for row in batch.to_pylist():
            number += 1
            yield number, row


def _line_rows(stream: BinaryIO, path: Path) -> Iterator[tuple[int, Any]]:
    number = 0
    while line := stream.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise UsageError(f"{path}, row {number}: longer than {LONGEST} bytes")
        if not line.isspace():
            try:
                yield number, decode(line)
            except ValueError as error:
                raise UsageError(f"{path}, row {number}: {error}") from None


def _list_rows(text: io.TextIOBase, path: Path) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON list, read and decoded piece by piece."""
    decoder = json.JSONDecoder()
    number = 0

    def ahead(buffer: str) -> str:
        """`buffer` from its next visible character on, read further if it has none."""
        while not (buffer := buffer.lstrip()):
            buffer = text.read(_CHUNK)
            if not buffer:
                raise UsageError(f"{path}: the list does not end after row {number}")
        return buffer

    buffer = ahead("")[1:]
    while (buffer := ahead(buffer))[0] != "]":
        if number:
            if buffer[0] != ",":
                raise UsageError(f"{path}: found {shorten(buffer[:20])} after row {number}, "
                                 "expected a comma or the list's end")
            buffer = ahead(buffer[1:])
        number += 1
        while True:
            try:
                row, end = decoder.raw_decode(buffer)
                break
            except RecursionError:
                raise UsageError(f"{path}, row {number}: nested too deeply") from None
            except ValueError as error:
                more = text.read(max(_CHUNK, len(buffer))) if len(buffer) <= LONGEST else ""
                if not more:
                    raise UsageError(f"{path}, row {number}: this is not JSON ({error})") from None
                buffer += more
        yield number, row
        buffer = buffer[end:]
    if rest := (buffer[1:] + text.read(_CHUNK)).strip():
        raise UsageError(f"{path}: found {shorten(rest[:20])} after the list, expected its end")
