"""Protocol buffers' wire format, as far as the records of others need it: fields, no schemas.

Format: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, Any]  # an int where the wire type is VARINT, bytes otherwise


def fields(message: bytes) -> Iterator[Field]:
    """(number, wire type, value) of every field in order.

    Raises ValueError where the bytes are no message.
    """
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(message, at)
            yield number, wire, value
            continue
        if wire == BYTES:
            size, at = _varint(message, at)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} is not known")
        if at + size > end:
            raise ValueError("a field is longer than its message")
        yield number, wire, message[at : at + size]
        at += size


def parts(message: bytes, number: int) -> list[bytes]:
    """Every value of one field that is bytes: strings and messages."""
    return [v for n, wire, v in fields(message) if n == number and isinstance(v, bytes)]


def varints(packed: bytes) -> list[int]:
    """A packed field of integers."""
    values, at = [], 0
    while at < len(packed):
        value, at = _varint(packed, at)
        values.append(value)
    return values


def signed(value: int) -> int:
    """An int32 or int64, which the wire holds as 64 bits without a sign."""
    return value - (1 << 64) if value >> 63 else value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("the message ends inside a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ValueError("a number has more than ten bytes")
