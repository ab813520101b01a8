"""TensorBoard's event files: scalars, written as plain values or as tensors.

An event file is a row of TFRecords: length (8 bytes), its CRC, the data, its CRC; the data is an
`Event` protocol buffer, of which four fields are read. Formats: tensorflow's
core/lib/io/record_writer.h, tensorboard's compat/proto/{event,summary,tensor}.proto. Nothing of
TensorFlow or TensorBoard is needed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from . import wire
from .logged import Point, joined, of_one_run
from .source import Findings, Rows, Scalars

_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_MOST_BYTES = 1 << 16  # of a record that may hold scalars; longer ones are images, graphs, texts
_WINDOW = 1 << 20
_NAME = re.compile(r"\.tfevents\.(\d+)")
_FIRST = b"brain.Event:"  # in the first record of every event file

# TensorProto.DataType → its dtype in `tensor_content`, and the field that holds typed values.
_DTYPES = {
    1: ("<f4", 5),
    2: ("<f8", 6),
    3: ("<i4", 7),
    9: ("<i8", 10),
    10: ("?", 11),
    19: ("<f2", 13),
}


class TensorBoard:
    name = "tensorboard"
    description = "TensorBoard event files (*.tfevents.*), scalars"

    def looks_like(self, path: Path, head: bytes) -> bool:
        return len(head) > 24 and _length(head[:12]) is not None and _FIRST in head[:64]

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars | Rows]:
        # A folder is a run, as for TensorBoard itself.
        files = sorted(of_one_run(paths, findings, lambda path: str(path.parent)), key=_written)
        yield from joined(point for path in files for point in _points(path, findings))


def _points(path: Path, findings: Findings) -> Iterator[Point]:
    with path.open("rb") as file:
        for record in _records(file, findings):
            try:
                step, time, values = _event(record)
            except (ValueError, struct.error):
                findings.skip("records that are no TensorBoard event")
                continue
            for tag, value in values.items():
                yield tag, value, step, time


def _written(path: Path) -> tuple[int, str]:
    """A writer puts the second at which it began into the file's name."""
    stamp = _NAME.search(path.name)
    return int(stamp[1]) if stamp else 0, path.name


def _records(file: BinaryIO, findings: Findings) -> Iterator[bytes]:
    """The valid records of a file up to its end, which a writer may be moving."""
    at = 0
    while header := file.read(_HEADER.size):
        length = _length(header)
        findings.advance(len(header) + min(length or 0, _MOST_BYTES) + _CRC.size)
        if length is None:
            if len(header) < _HEADER.size:
                return findings.skip("records that were not finished")
            after = _next_header(file, at + 1)
            findings.skip("bytes between damaged records", (after or file.seek(0, 2)) - at)
            if after is None:
                return None
            at = file.seek(after)
            continue
        at += _HEADER.size + length + _CRC.size
        if length > _MOST_BYTES:
            if at > file.seek(0, 2):
                return findings.skip("records that were not finished")
            findings.skip("records too long for a scalar (images, graphs, texts)")
            file.seek(at)
            continue
        data = file.read(length + _CRC.size)
        if len(data) < length + _CRC.size:
            return findings.skip("records that were not finished")
        if _masked_crc(data[:length]) != _CRC.unpack(data[length:])[0]:
            findings.skip("records whose checksum is wrong")
            continue
        yield data[:length]
    return None


def _next_header(file: BinaryIO, at: int) -> int | None:
    """Where the next valid header begins, from `at` on; None if there is none."""
    size = _WINDOW >> 8  # most damage is short
    while True:
        file.seek(at)
        window = file.read(size)
        if (found := _first_header(window)) is not None:
            return at + found
        if len(window) < size:
            return None
        at += size - _HEADER.size + 1
        size = min(4 * size, _WINDOW)


def _first_header(window: bytes) -> int | None:
    """The first place at which a header's checksum is right. All at once: in a stretch of zeros
    every place looks like one."""
    data = np.frombuffer(window, np.uint8)
    places = len(data) - _HEADER.size + 1
    if places <= 0:
        return None
    # The length of a record is under 2**24 almost always: five bytes of zeros.
    guesses = np.flatnonzero(~np.any([data[i : i + places] for i in range(3, 8)], axis=0))
    headers = data[guesses[:, None] + np.arange(_HEADER.size)]
    table = np.array(_TABLE, np.uint32)
    crc = np.full(len(headers), 0xFFFFFFFF, np.uint32)
    for column in range(8):
        crc = table[(crc ^ headers[:, column]) & 0xFF] ^ crc >> np.uint32(8)
    crc ^= np.uint32(0xFFFFFFFF)
    masked = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)
    given = np.ascontiguousarray(headers[:, 8:]).view("<u4")[:, 0]
    (right,) = np.nonzero(masked == given)
    return int(guesses[right[0]]) if len(right) else None


def _length(header: bytes) -> int | None:
    """The length that a record's header gives; None if its checksum is wrong."""
    if len(header) < _HEADER.size:
        return None
    length, crc = _HEADER.unpack(header)
    return length if _masked_crc(header[:8]) == crc else None


def _crc_table() -> list[int]:
    """CRC-32C (Castagnoli), reflected; RFC 3720, appendix B.4."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _event(record: bytes) -> tuple[int, float | None, dict[str, float]]:
    """Step, Unix time and scalars of an event; texts, histograms and images are no scalars."""
    step, time = 0, None
    values: dict[str, float | None] = {}
    for number, kind, value in wire.fields(record):
        if number == 1 and kind == wire.FIXED64:
            (time,) = struct.unpack("<d", value)
        elif number == 2 and kind == wire.VARINT:
            step = wire.signed(value)
        elif number == 5 and kind == wire.BYTES:
            values |= dict(map(_tagged, wire.parts(value, 1)))
    return step, time, {tag: value for tag, value in values.items() if value is not None}


def _tagged(summary: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, kind, value in wire.fields(summary):
        if number == 1 and kind == wire.BYTES:
            tag = value.decode(errors="replace")
        elif number == 2 and kind == wire.FIXED32:
            (scalar,) = struct.unpack("<f", value)
        elif number == 8 and kind == wire.BYTES:
            scalar = _scalar(value)
    return tag, scalar


def _scalar(tensor: bytes) -> float | None:
    """The number that a tensor without dimensions holds; None for any other tensor."""
    kind, content = 0, b""
    given: dict[int, bytes | int] = {}
    for number, wired, value in wire.fields(tensor):
        if number == 1 and wired == wire.VARINT:
            kind = value
        elif number == 2 and wired == wire.BYTES:
            if wire.parts(value, 2):
                return None  # it has dimensions
        elif number == 4 and wired == wire.BYTES:
            content = value
        else:
            given[number] = value
    if kind not in _DTYPES:
        return None
    dtype, typed = _DTYPES[kind]
    if content:
        return float(np.frombuffer(content, dtype)[0])
    value = given.get(typed, b"")
    if isinstance(value, bytes) and kind in (1, 2):
        return float(np.frombuffer(value, dtype)[0]) if value else 0.0
    bits = value if isinstance(value, int) else next(iter(wire.varints(value)), 0)
    return float(np.uint16(bits).view(np.float16)) if kind == 19 else float(wire.signed(bits))
