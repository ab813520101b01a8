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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import wire
from .logged import LoggerCalls, of_one_run
from .reading import parsed
from .source import Findings, Rows, Scalars

_HEADER = b":W&B\xe1\xbe"  # and a version
_BLOCK = 1 << 15
_CHUNK = struct.Struct("<IHB")  # CRC of the type and the data, length, type
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MOST_BYTES = 16 << 20  # of a record


class WandbOffline:
    name = "wandb"
    description = "W&B run files (*.wandb), metrics"

    def looks_like(self, path: Path, head: bytes) -> bool:
        return head.startswith(_HEADER)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars | Rows]:
        calls = LoggerCalls(findings)
        for path in of_one_run(paths, findings, lambda path: path.stem.removeprefix("run-")):
            for data in _records(path, findings):
                try:
                    histories = wire.parts(data, 2)
                    rows = [_row(history) for history in histories]
                except (ValueError, RecursionError):
                    findings.skip("records that are no W&B history")
                    continue
                for row, step in rows:
                    time = row.get("_timestamp")
                    time = time if isinstance(time, float) else None
                    if scalars := calls.record(row, row.get("_step", step), time):
                        yield scalars


def _records(path: Path, findings: Findings) -> Iterator[bytes]:
    """The valid records of a file; after damage, those from the next block on."""
    begun: list[bytes] | None = None
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
                    begun = None
                    break
                data, at = block[at + _CHUNK.size : end], end
                if kind in (_FULL, _FIRST):
                    begun = []
                if begun is None:
                    continue  # the rest of a record whose beginning is lost
                begun.append(data)
                if kind in (_FULL, _LAST):
                    yield b"".join(begun)
                    begun = None
                elif len(begun) * _BLOCK > _MOST_BYTES:
                    findings.skip("records too long for metrics")
                    begun = None
            else:
                if at < len(block) < _BLOCK:  # not even a chunk's header is there
                    begun = begun or []
    if begun is not None:
        findings.skip("records that were not finished")
    return None


def _row(history: bytes) -> tuple[dict[str, Any], int | None]:
    """Names and values of a `HistoryRecord`, and its step."""
    row: dict[str, Any] = {}
    step = None
    for number, kind, value in wire.fields(history):
        if kind != wire.BYTES:
            continue
        if number == 1:
            name, text = _item(value)
            row[name] = parsed(text.encode()) if text else None
        elif number == 2:
            step = next((wire.signed(v) for n, _, v in wire.fields(value) if n == 1), 0)
    return row, step


def _item(item: bytes) -> tuple[str, str]:
    key, nested, text = "", [], ""
    for number, kind, value in wire.fields(item):
        if kind != wire.BYTES:
            continue
        word = value.decode(errors="replace")
        if number == 1:
            key = word
        elif number == 2:
            nested.append(word)
        elif number == 16:
            text = word
    return key or ".".join(nested), text
