"""Rows on their way from a call to Arrow: copied at once, converted by the writer's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.schema import arrow_schema

Drop = Callable[[str, int], None]  # told a reason, and how many rows or values it concerns

SLABS = 32  # that wait to be used again …
SLAB_BYTES = 2 << 20  # … if they are no larger than this
PIECE = 8192  # Python objects that become an array at once: about a millisecond
_SEQUENCES = (list, tuple)
_LAST_NUMBER = np.dtype(np.float64).num  # numpy's types up to this one are nothing but their bytes

# An array that was copied: its column, type and length, and whether a mask lies behind it.
Copied = tuple[str, np.dtype[Any], int, bool]
# The columns of one call: arrays, one after the other in the slab, and all others.
Call = tuple[dict[str, Any], list[Copied], BytesIO | None]


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
        copied: list[Copied] = []
        contents: list[np.ndarray] = []
        # This runs in training, with cold caches: what counts is how many different things it
        # does, more than how often. So no helpers, and one copy of all arrays.
        for name, value in columns.items():
            kind = type(value)
            if kind is np.ndarray and value.ndim == 1 and value.dtype.num <= _LAST_NUMBER:
                copied.append((name, value.dtype, len(value), False))
                contents.append(value)
            elif kind is int or kind is float or kind is str:
                others[name] = value
            elif isinstance(value, _SEQUENCES):
                others[name] = list(value)
            elif not isinstance(value, np.ndarray):
                others[name] = value
            elif value.ndim == 0:
                others[name] = None if np.ma.is_masked(value) else value.item()
            elif _is_masked_column(value):
                copied.append((name, value.dtype, len(value), True))
                contents += [np.ma.getdata(value), np.ma.getmaskarray(value)]
            else:
                others[name] = value.copy()
        if not contents:
            return others, copied, None
        try:
            slab = self._slabs.pop()
            slab.seek(0)
        except IndexError:
            slab = BytesIO()
        try:
            slab.writelines(contents)  # type: ignore[arg-type]
        except (ValueError, BufferError):  # one is not contiguous
            slab.seek(0)
            slab.writelines([array.tobytes() for array in contents])
        return others, copied, slab

    def done(self, call: Call) -> None:
        """The content of the call's arrays is needed no more."""
        slab = call[2]
        if slab is not None and slab.tell() <= SLAB_BYTES:
            self._slabs.append(slab)


def columns_of(call: Call) -> dict[str, Any]:
    """All columns of a call; arrays no longer in the slab."""
    found, copied, slab = call
    if slab is not None:
        slab.seek(0)
        for name, dtype, length, masked in copied:
            found[name] = np.frombuffer(slab.read(length * dtype.itemsize), dtype)
            if masked:
                mask = np.frombuffer(slab.read(length), np.bool_)
                found[name] = np.ma.array(found[name], mask=mask)
    return found


def frozen(value: Any) -> Any:
    """The details of an event, so that what the caller changes after the call is not in them."""
    if isinstance(value, dict):
        return {key: frozen(v) for key, v in value.items()}
    if isinstance(value, _SEQUENCES):
        return [frozen(v) for v in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def _is_masked_column(value: np.ndarray) -> bool:
    masked = isinstance(value, np.ma.MaskedArray)
    return masked and value.ndim == 1 and value.dtype.num <= _LAST_NUMBER


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
