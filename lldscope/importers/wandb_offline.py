"""W&B's `.wandb` files, which `wandb` writes beside every run, offline or not.

A header of seven bytes, then LevelDB's log format: blocks of 32 KiB that hold chunks, a record
being one chunk or several. A record is a protocol buffer `Record`, of which the history is read.
Formats: wandb's core/pkg/leveldb/record.go (with CRC-32 as of zlib) and
wandb/proto/wandb_internal.proto. The package `wandb` has no reader of its own any more (0.31), and
none of it is needed.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..storage.json_files import parse
from .metrics import Call, logger_calls, time_of
from .reading import of_one_run
from .rows import Candidate
from .source import Findings, Rows, Scalars, in_attempts

_HEADER = b":W&B\xe1\xbe"  # and a version
_BLOCK = 1 << 15
_CHUNK = struct.Struct("<IHB")  # CRC of the type and the data, length, type
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MOST_BYTES = 16 << 20  # of a record


class WandbOffline:
    name = "wandb"
    description = "W&B run files (*.wandb), metrics"

    def looks_like(self, file: Candidate) -> bool:
        return file.head.startswith(_HEADER)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars | Rows]:
        calls = self._calls(paths, findings)
        yield from in_attempts(logger_calls(calls, findings), findings)

    def _calls(self, paths: Sequence[Path], findings: Findings) -> Iterator[Call]:
        for path in of_one_run(paths, findings, lambda path: path.stem.removeprefix("run-")):
            for data in _records(path, findings):
                try:
                    rows = [_row(history) for history in _fields(data)[2]]
                except (ValueError, TypeError):
                    findings.skip("records that are not W&B history")
                    continue
                for row, step in rows:
                    yield row, row.get("_step", step), time_of(row)


def _records(path: Path, findings: Findings) -> Iterator[bytes]:
    """The valid records of a file; after damage, reading resumes at the next block."""
    pieces: list[bytes] | None = None
    with path.open("rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            findings.advance(len(block))
            at = 7 if file.tell() == len(block) else 0
            while at + _CHUNK.size <= len(block):
                crc, length, kind = _CHUNK.unpack_from(block, at)
                end = at + _CHUNK.size + length
                if end > len(block) and len(block) < _BLOCK:
                    return findings.skip("records that were not finished")
                if not (crc or length or kind):
                    break  # zeros fill the block
                if end > len(block) or zlib.crc32(block[at + 6 : end]) != crc:
                    findings.skip("bytes between damaged records", len(block) - at)
                    pieces = None
                    break
                data, at = block[at + _CHUNK.size : end], end
                if kind in (_FULL, _FIRST):
                    pieces = []
                if pieces is None:
                    continue  # the rest of a record whose beginning is lost
                pieces.append(data)
                if kind in (_FULL, _LAST):
                    yield b"".join(pieces)
                    pieces = None
                elif len(pieces) * _BLOCK > _MOST_BYTES:
                    findings.skip("records too long for metrics")
                    pieces = None
            else:
                if at < len(block) < _BLOCK:  # not even a chunk's header is there
                    pieces = pieces or []
    if pieces is not None:
        findings.skip("records that were not finished")
    return None


def _row(history: bytes) -> tuple[dict[str, Any], int | None]:
    """Names and values of a `HistoryRecord`, and its step."""
    fields = _fields(history)
    row: dict[str, Any] = {}
    for item in map(_fields, fields[1]):
        key, text = (b"".join(item[number][-1:]) for number in (1, 16))
        name = key or b".".join(item[2])
        row[name.decode(errors="replace")] = parse(text) if text else None
    step = _fields(fields[2][-1])[1] if fields[2] else [None]
    return row, step[0] if step else 0


def _fields(message: bytes) -> defaultdict[int, list[Any]]:
    """The fields of a protocol buffer: number → values, which are numbers or bytes.

    Format: https://protobuf.dev/programming-guides/encoding/. Raises ValueError for other bytes.
    """
    fields: defaultdict[int, list[Any]] = defaultdict(list)
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while shift < 70:
            if at >= len(message):
                raise ValueError("the message ends inside a number")
            byte, at = message[at], at + 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("a number has more than ten bytes")

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            fields[key >> 3].append(varint())
            continue
        sizes = {1: 8, 5: 4}
        size = varint() if key & 7 == 2 else sizes.get(key & 7)
        if size is None or at + size > len(message):
            raise ValueError("the bytes are no message")
        at += size
        fields[key >> 3].append(message[at - size : at])
    return fields
