"""Columns of a call → Arrow: copied during the call, converted in the writer's thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.schema import arrow_schema

_NOT_FITTING = (pa.ArrowException, TypeError, ValueError, OverflowError)
Count = Callable[[int], None]
Drop = Callable[[str, int], None]  # (reason, how many rows or values are dropped)

SAMPLE = 1024  # elements of a list, to estimate its size
PIECE = 8192  # Python objects that are converted at a time; takes about a millisecond
_SEQUENCES = (list, tuple)
_LAST_NUMBER = np.dtype(np.float64).num  # numpy types up to this one are fully held by their bytes


class FrozenArray(NamedTuple):
    """A one-dimensional array of numbers in a call's own memory, and perhaps its mask after it."""

    dtype: np.dtype[Any]
    length: int
    has_mask: bool


class Call(NamedTuple):
    """What a call recorded: columns or a line, and one after the other its arrays' bytes."""

    values: dict[str, Any]
    memory: bytes = b""

    def columns(self) -> dict[str, Any]:
        columns, at = {}, 0
        for name, value in self.values.items():
            if isinstance(value, FrozenArray):
                dtype, length, has_mask = value
                value = np.frombuffer(self.memory, dtype, length, at)
                at += value.nbytes
                if has_mask:
                    mask = np.frombuffer(self.memory, np.bool_, length, at)
                    value, at = np.ma.array(value, mask=mask), at + length
            columns[name] = value
        return columns


def copy_call(columns: Mapping[str, Any]) -> Call:
    """Columns whose lists and arrays the caller may change afterwards. Without numpy's own copy: it
    lets other threads have the interpreter, for which the call would have to wait again."""
    values: dict[str, Any] = {}
    arrays: list[np.ndarray] = []
    # This runs in the training thread with cold caches, so the amount of distinct code matters
    # more than how often it runs.
    for name, value in columns.items():
        if isinstance(value, np.ndarray):
            if value.ndim == 0:
                value = None if np.ma.is_masked(value) else value.item()
            elif value.ndim > 1 or value.dtype.num > _LAST_NUMBER:
                value = value.copy()
            elif isinstance(value, np.ma.MaskedArray):
                arrays += [np.ma.getdata(value), np.ma.getmaskarray(value)]
                value = FrozenArray(value.dtype, len(value), True)
            else:
                arrays.append(value)
                value = FrozenArray(value.dtype, len(value), False)
        elif isinstance(value, _SEQUENCES):
            value = list(value)
        values[name] = value
    try:
        return Call(values, b"".join(arrays))  # type: ignore[arg-type]
    except TypeError:  # one of them is not contiguous
        return Call(values, b"".join([a.tobytes() for a in arrays]))


def size_of(call: Call) -> int:
    """About how many bytes a queued call holds."""
    return len(call.memory) + sum(map(_bytes_of, call.values.values()))


def _bytes_of(value: Any) -> int:
    """Of a long list only every n-th element is looked at: this runs in the training thread."""
    if not isinstance(value, list):
        return getsizeof(value)
    stride = len(value) // SAMPLE + 1
    return sum(map(getsizeof, value[::stride])) * stride


def rows_of(call: Call) -> int:
    """How many rows, or lines, a queued call holds."""
    lengths = [len(v) for v in call.values.values() if isinstance(v, list | np.ndarray)]
    lengths += [v.length for v in call.values.values() if isinstance(v, FrozenArray)]
    return max(lengths, default=1)


def deep_copy(value: Any) -> Any:
    """A copy of an event's details, which the caller may change after the call."""
    if isinstance(value, dict):
        return {key: deep_copy(v) for key, v in value.items()}
    if isinstance(value, _SEQUENCES):
        return [deep_copy(v) for v in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def whole(value: Any) -> Any:
    """A number without a fraction, of any type, as an int; anything else as it is."""
    try:
        return int(value) if not isinstance(value, bool | str) and int(value) == value else value
    except (TypeError, ValueError, OverflowError):
        return value


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
    lacking = [a for f, a in zip(schema, arrays, strict=True) if not f.nullable and a.null_count]
    if not lacking:
        return pa.Table.from_arrays(arrays, schema=schema)
    complete = reduce(pc.and_, [a.is_valid() for a in lacking])
    required = [f.name for f in schema if not f.nullable]
    n_bad = n - complete.true_count
    drop(f"{table}: a required column is missing ({', '.join(required)})", n_bad)
    rows = pa.table(arrays, names=schema.names).filter(complete).cast(schema)
    return rows if n_bad < n else None


def _array(table: str, field: pa.Field, value: Any, n: int, drop: Drop) -> pa.Array:
    """A column of `n` values; a value that does not fit becomes NULL and is counted."""
    if value is None:
        return pa.nulls(n, field.type)
    count = partial(drop, f"{table}.{field.name}: values that are not {field.type}")
    infinite = partial(drop, f"{table}.{field.name}: values too large for {field.type}, now Inf")
    try:
        if isinstance(value, list):
            return _array_of_objects(value, field.type, count, infinite)
        if isinstance(value, np.ndarray):
            mask = np.ma.getmaskarray(value) if isinstance(value, np.ma.MaskedArray) else None
            data = np.ma.getdata(value)
            native = data.astype(data.dtype.newbyteorder("="), copy=False)
            column = pa.array(native, mask=mask, from_pandas=False)
            return _cast(column, field.type, infinite)
        return pa.repeat(_cast(pa.array([value]), field.type, infinite)[0], n)
    except _NOT_FITTING:
        if isinstance(value, np.ndarray):
            return _one_by_one(value.tolist(), field.type, count)
        return pa.repeat(_one_by_one([value], field.type, lambda _: count(n))[0], n)


def _array_of_objects(
    values: list[Any], as_type: pa.DataType, count: Count, infinite: Count
) -> pa.Array:
    """Empties the list piece by piece: converting or freeing very many objects at once would block
    the training thread for that long."""
    pieces: list[pa.Array] = []
    while values or not pieces:
        piece = values[-PIECE:]
        try:
            pieces.append(_cast(pa.array(piece, from_pandas=False), as_type, infinite))
        except _NOT_FITTING:
            pieces.append(_one_by_one(piece, as_type, count))
        del values[-PIECE:]
    return pa.concat_arrays(reversed(pieces)) if len(pieces) > 1 else pieces[0]


def _cast(column: pa.Array, as_type: pa.DataType, infinite: Count) -> pa.Array:
    """The array in another type; numbers that single precision turns into infinity are counted."""
    array = column.cast(as_type)
    if as_type == pa.float32() and column.type == pa.float64() and pc.any(pc.is_inf(array)).as_py():
        more = pc.sum(pc.is_inf(array)).as_py() - (pc.sum(pc.is_inf(column)).as_py() or 0)
        if more:
            infinite(more)
    return array


def _one_by_one(values: list[Any], as_type: pa.DataType, count: Count) -> pa.Array:
    """Values some of which do not fit: those become NULL, and half a surrogate pair in a text
    becomes "?"."""
    fitting, bad = [], 0
    for value in values:
        if isinstance(value, str):
            value = value.encode("utf-8", "replace").decode()
        try:
            fitting.append(pa.array([value], from_pandas=False).cast(as_type)[0].as_py())
        except _NOT_FITTING:
            fitting.append(None)
            bad += 1
    if bad:
        count(bad)
    return pa.array(fitting, as_type, from_pandas=False)
