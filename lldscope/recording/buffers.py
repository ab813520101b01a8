"""Columns of a call → Arrow: copied during the call, converted in the writer's thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from sys import getsizeof
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.schema import arrow_schema

_NOT_FITTING = (pa.ArrowException, TypeError, ValueError, OverflowError)
Drop = Callable[[str, int], None]  # (reason, how many rows or values are dropped)

_NUMBERS = frozenset((float, int, bool, type(None)))
_CONTAINERS = frozenset((list, tuple, dict))  # pyarrow follows one that holds itself to a crash
_NUMBER_BYTES = 32  # of a Python number
SAMPLE = 1024  # elements of a list from which its size is estimated
_LAST_NUMBER = np.dtype(np.float64).num  # numpy types up to this one are fully held by their bytes


def copy_columns(columns: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Copies of the columns that the caller may change afterwards, and their approximate size in
    bytes."""
    copies, size = dict(columns), _NUMBER_BYTES * len(columns)
    for name, value in columns.items():
        if type(value) in _NUMBERS:
            continue
        if isinstance(value, np.ndarray):
            copies[name] = copy = _copy_array(value)
            size += getattr(copy, "nbytes", 0)
        elif isinstance(value, (list, tuple)):
            copies[name] = list(value)
            # Of a long list only every n-th element is looked at: this is the training thread.
            stride = len(value) // SAMPLE + 1
            size += sum(map(getsizeof, value[::stride])) * stride
        else:
            size += getsizeof(value)
    return copies, size


def _copy_array(value: np.ndarray) -> Any:
    if value.ndim == 0:
        return None if np.ma.is_masked(value) else value.item()
    if isinstance(value, np.ma.MaskedArray):
        data, mask = np.ma.getdata(value), np.ma.getmaskarray(value)
        return np.ma.array(_copy_array(data), mask=_copy_array(mask))
    if value.ndim > 1 or value.dtype.num > _LAST_NUMBER:
        return value.copy()
    # numpy's own copy lets other threads have the interpreter, for which a call would have to wait.
    return np.frombuffer(value.tobytes(), value.dtype)


def whole(value: Any) -> Any:
    """A number without a fraction, of any type, as an int; other values unchanged."""
    try:
        return int(value) if not isinstance(value, bool | str) and int(value) == value else value
    except (TypeError, ValueError, OverflowError):
        return value


def to_arrow(
    table: str, columns: dict[str, Any], attempt: int, rank: int, drop: Drop
) -> pa.Table | None:
    """Columns of one call as a table of the declared schema. Values that do not fit are dropped.
    Scalars are repeated. None if no row is left."""
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
    is_column = isinstance(value, list | np.ndarray)
    try:
        if isinstance(value, np.ndarray):
            mask = np.ma.getmaskarray(value) if isinstance(value, np.ma.MaskedArray) else None
            data = np.ma.getdata(value)
            native = data.astype(data.dtype.newbyteorder("="), copy=False)
            column = pa.array(native, mask=mask, from_pandas=False)
        else:
            values = value if is_column else [value]
            if not _CONTAINERS.isdisjoint(map(type, values)):
                raise TypeError
            column = pa.array(values, from_pandas=False)
        if column.type != field.type:
            column = column.cast(field.type)
    except _NOT_FITTING:
        values = value.tolist() if isinstance(value, np.ndarray) else value
        column, n_bad = _one_by_one(values if is_column else [value], field.type)
        if n_bad:
            reason = f"{table}.{field.name}: values that are not {field.type}"
            drop(reason, n_bad if is_column else n)
    return column if is_column else pa.repeat(column[0], n)


def _one_by_one(values: list[Any], as_type: pa.DataType) -> tuple[pa.Array, int]:
    """Convert values that do not all fit, and count the misfits: they become NULL; half a surrogate
    pair in a text becomes "?"."""
    fitting, n_bad = [], 0
    for value in values:
        if isinstance(value, str):
            value = value.encode("utf-8", "replace").decode()
        try:
            if type(value) in _CONTAINERS:
                raise TypeError
            fitting.append(pa.array([value], from_pandas=False).cast(as_type)[0].as_py())
        except _NOT_FITTING:
            fitting.append(None)
            n_bad += 1
    return pa.array(fitting, as_type, from_pandas=False), n_bad
