"""Rows on their way from a call to Arrow: copied at once, converted by the writer's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from .schema import arrow_schema

Drop = Callable[[str, int], None]  # told a reason, and how many rows or values it concerns


class Copied(NamedTuple):
    """The content of a one-dimensional array, and which entries are masked."""

    data: bytes
    dtype: np.dtype[Any]
    mask: bytes | None

    def __len__(self) -> int:
        return len(self.data) // self.dtype.itemsize

    def arrow(self) -> pa.Array:
        values = np.frombuffer(self.data, self.dtype)
        mask = None if self.mask is None else np.frombuffer(self.mask, np.bool_)
        return pa.array(values, mask=mask)


def own(value: Any) -> Any:
    """A copy of what the caller may change after the call.

    Of an array its bytes: numpy's own copy lets other threads in, and then the call would have to
    wait until the writer's thread stops to give the interpreter back.
    """
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return value.item()
        if value.ndim > 1 or value.dtype.hasobject or not value.dtype.itemsize:
            return value.copy()
        if isinstance(value, np.ma.MaskedArray):
            mask = value.mask
            hidden = None if mask is np.ma.nomask else mask.tobytes()
            return Copied(value.data.tobytes(), value.dtype, hidden)
        return Copied(value.tobytes(), value.dtype, None)
    return list(value) if isinstance(value, list | tuple) else value


def to_arrow(
    table: str, columns: dict[str, Any], attempt: int, rank: int, drop: Drop
) -> pa.Table | None:
    """Columns of one call as a table of the declared schema; what does not fit is dropped.

    A value that is no column is repeated. None if no row is left.
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
    return isinstance(value, Copied | np.ndarray | list)


def _array(table: str, field: pa.Field, value: Any, n: int, drop: Drop) -> pa.Array:
    if value is None:
        return pa.nulls(n, field.type)
    try:
        if isinstance(value, Copied):
            return value.arrow().cast(field.type)
        if isinstance(value, np.ma.MaskedArray):
            return pa.array(value.data, mask=np.ma.getmaskarray(value)).cast(field.type)
        if isinstance(value, np.ndarray | list):
            return pa.array(value, from_pandas=False).cast(field.type)
        return pa.repeat(pa.scalar(value).cast(field.type), n)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        drop(f"{table}.{field.name}: values that are not {field.type}", n)
        return pa.nulls(n, field.type)
