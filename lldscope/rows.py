"""Rows on their way from a call to Arrow: copied at once, converted by the writer's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from .schema import arrow_schema

Drop = Callable[[str, int], None]  # told a reason, and how many rows or values it concerns

SLABS = 32  # that wait to be used again …
SLAB_BYTES = 2 << 20  # … if they are no larger than this
PIECE = 8192  # Python objects that become an array at once: about a millisecond
_NUMBERS = "?bhilqBHILQfd"  # numpy's letters for the types whose bytes are all there is to them


# What was copied of an array: its column and type, and how many bytes of it and of its mask.
Copied = tuple[str, np.dtype[Any], int, int]


class Call(NamedTuple):
    """The columns of one call. The content of `arrays` lies in the slab, one after the other."""

    others: dict[str, Any]
    arrays: list[Copied]
    slab: BytesIO | None

    def columns(self) -> dict[str, Any]:
        """All columns; arrays no longer in the slab."""
        found = dict(self.others)
        if self.slab is not None:
            self.slab.seek(0)
            for name, dtype, size, mask_size in self.arrays:
                found[name] = np.frombuffer(self.slab.read(size), dtype)
                if mask_size:
                    mask = np.frombuffer(self.slab.read(mask_size), np.bool_)
                    found[name] = np.ma.array(found[name], mask=mask)
        return found


class Copier:
    """Copies what callers may change after their call. Calls may come from several threads.

    Arrays are copied into slabs, memory that is used again and again: in memory that is asked for
    anew every 4 KiB cost a page fault, which takes longer than to copy them. And not with numpy,
    which lets other threads in while it copies: then the call would have to wait until the
    writer's thread gives the interpreter back.
    """

    def __init__(self) -> None:
        self._slabs: deque[BytesIO] = deque(maxlen=SLABS)

    def copy(self, columns: dict[str, Any]) -> Call:
        others: dict[str, Any] = {}
        arrays: list[Copied] = []
        slab: BytesIO | None = None
        # Straight on and without helpers: this runs in training, with cold caches.
        for name, value in columns.items():
            if type(value) is np.ndarray and value.ndim == 1 and value.dtype.char in _NUMBERS:
                if slab is None:
                    slab = self._take()
                try:
                    size = slab.write(value)  # type: ignore[arg-type]
                except (ValueError, BufferError):  # not contiguous
                    size = slab.write(value.tobytes())
                arrays.append((name, value.dtype, size, 0))
            elif isinstance(value, list | tuple):
                others[name] = list(value)
            elif not isinstance(value, np.ndarray):
                others[name] = value
            elif _is_masked_column(value):
                if slab is None:
                    slab = self._take()
                size = slab.write(value.data.tobytes())
                hidden = slab.write(np.ma.getmaskarray(value).tobytes())
                arrays.append((name, value.dtype, size, hidden))
            else:
                others[name] = value.copy() if value.ndim else value.item()
        return Call(others, arrays, slab)

    def _take(self) -> BytesIO:
        try:
            slab = self._slabs.pop()
        except IndexError:
            return BytesIO()
        slab.seek(0)
        return slab

    def done(self, call: Call) -> None:
        """The content of the call's arrays is needed no more."""
        if call.slab is not None and call.slab.tell() <= SLAB_BYTES:
            self._slabs.append(call.slab)


def _is_masked_column(value: np.ndarray) -> bool:
    masked = isinstance(value, np.ma.MaskedArray)
    return masked and value.ndim == 1 and value.dtype.char in _NUMBERS


def to_arrow(
    table: str, columns: dict[str, Any], attempt: int, rank: int, drop: Drop
) -> pa.Table | None:
    """Columns of one call as a table of the declared schema; what does not fit is dropped.

    A value that is no column is repeated. None if no row is left. Lists are used up.
    """
    schema = arrow_schema(table)
    lengths = {len(v) for v in columns.values() if _is_column(v)}
    if len(lengths) > 1:
        drop(f"{table}: columns of different lengths {sorted(lengths)}", max(lengths))
        return None
    n = lengths.pop() if lengths else 1
    if n == 0:
        return None
    columns |= {"attempt": attempt, "rank": rank}
    for name in columns.keys() - set(schema.names):
        drop(f"{table}.{name}: not a column of the schema", n)
    arrays = [_array(table, field, columns.get(field.name), n, drop) for field in schema]
    if any(not f.nullable and a.null_count for f, a in zip(schema, arrays, strict=True)):
        required = [f.name for f in schema if not f.nullable]
        drop(f"{table}: a required column is missing ({', '.join(required)})", n)
        return None
    return pa.Table.from_arrays(arrays, schema=schema)


def _is_column(value: Any) -> bool:
    return isinstance(value, np.ndarray | list)


def _array(table: str, field: pa.Field, value: Any, n: int, drop: Drop) -> pa.Array:
    if value is None:
        return pa.nulls(n, field.type)
    try:
        if isinstance(value, list):
            return _array_of_objects(value, field.type)
        if isinstance(value, np.ndarray):
            mask = np.ma.getmaskarray(value) if isinstance(value, np.ma.MaskedArray) else None
            return pa.array(np.ma.getdata(value), mask=mask, from_pandas=False).cast(field.type)
        return pa.repeat(pa.scalar(value).cast(field.type), n)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        drop(f"{table}.{field.name}: values that are not {field.type}", n)
        return pa.nulls(n, field.type)


def _array_of_objects(values: list[Any], as_type: pa.DataType) -> pa.Array:
    """Takes the list apart: to convert, or to let go of, very many objects at once would keep the
    interpreter from training for that long."""
    pieces: list[pa.Array] = []
    while values or not pieces:
        pieces.append(pa.array(values[-PIECE:], from_pandas=False).cast(as_type))
        del values[-PIECE:]
    return pa.concat_arrays(reversed(pieces)) if len(pieces) > 1 else pieces[0]
