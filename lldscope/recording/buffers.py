"""Columns of a call → Arrow: copied during the call, converted in the writer's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.schema import arrow_schema

Drop = Callable[[str, int], None]  # (reason, how many rows or values are dropped)

SLABS = 32  # slabs that are kept for reuse
SLAB_BYTES = 2 << 20  # a larger slab is not reused
PIECE = 8192  # Python objects that are converted at a time; takes about a millisecond
_SEQUENCES = (list, tuple)
_LAST_NUMBER = np.dtype(np.float64).num  # numpy types up to this one are fully held by their bytes

# A copied array: column, type, length, and whether its mask follows it in the slab.
Copied = tuple[str, np.dtype[Any], int, bool]
# The columns of one call: other values, copied arrays in the order of the slab, and the slab.
Call = tuple[dict[str, Any], list[Copied], BytesIO | None]


class Copier:
    """Copies what a caller may change after its call. Safe to call from several threads.

    Arrays are copied into reused slabs of memory: in newly allocated memory each 4 KiB costs a page
    fault, which takes longer than copying them. numpy is not used for the copy because it releases
    the interpreter meanwhile: the call would then wait for the writer's thread to release it.
    """

    def __init__(self) -> None:
        self._slabs: deque[BytesIO] = deque(maxlen=SLABS)

    def copy(self, columns: dict[str, Any]) -> Call:
        others: dict[str, Any] = {}
        copied: list[Copied] = []
        contents: list[np.ndarray] = []
        # This runs in the training thread with cold caches, so the amount of distinct code matters
        # more than how often it runs: no helper functions, and one write of all arrays.
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
        except (ValueError, BufferError):  # an array is not contiguous
            slab.seek(0)
            slab.writelines([array.tobytes() for array in contents])
        return others, copied, slab

    def done(self, call: Call) -> None:
        """Reuse the slab of a call whose arrays are no longer needed."""
        slab = call[2]
        if slab is not None and slab.tell() <= SLAB_BYTES:
            self._slabs.append(slab)


def columns_of(call: Call) -> dict[str, Any]:
    """All columns of a call; its arrays are copied out of the slab."""
    columns, copied, slab = call
    if slab is not None:
        slab.seek(0)
        for name, dtype, length, masked in copied:
            columns[name] = np.frombuffer(slab.read(length * dtype.itemsize), dtype)
            if masked:
                mask = np.frombuffer(slab.read(length), np.bool_)
                columns[name] = np.ma.array(columns[name], mask=mask)
    return columns


def deep_copy(value: Any) -> Any:
    """A copy of an event's details, which the caller may change after the call."""
    if isinstance(value, dict):
        return {key: deep_copy(v) for key, v in value.items()}
    if isinstance(value, _SEQUENCES):
        return [deep_copy(v) for v in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def _is_masked_column(value: np.ndarray) -> bool:
    masked = isinstance(value, np.ma.MaskedArray)
    return masked and value.ndim == 1 and value.dtype.num <= _LAST_NUMBER


def to_arrow(
    table: str, columns: dict[str, Any], attempt: int, rank: int, drop: Drop
) -> pa.Table | None:
    """Columns of one call as a table of the declared schema; what does not fit it is dropped.

    A scalar is repeated. None if no row is left. Lists in `columns` are emptied.
    """
    schema = arrow_schema(table)
    lengths = {len(v) for v in columns.values() if isinstance(v, np.ndarray | list)}
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
    """Empties the list piece by piece: converting or freeing very many objects at once would block
    the training thread for that long."""
    pieces: list[pa.Array] = []
    while values or not pieces:
        pieces.append(pa.array(values[-PIECE:], from_pandas=False).cast(as_type))
        del values[-PIECE:]
    return pa.concat_arrays(reversed(pieces)) if len(pieces) > 1 else pieces[0]
