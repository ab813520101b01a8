"""The signals of a run as Arrow tables in the order of steps, and their columns as arrays.

Of pyarrow only what works on whole buffers is used: a scalar, or a list made an array, imports
pandas, and `pyarrow.compute` takes as long to load as a short run takes to judge.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..core.schema import SIGNALS, VIEWS, Kind
from .views import ROWS

# Of stored signals; DuckDB's sums of integers have 128 bits, which pandas would hold as objects.
_STORED: dict[Kind, pa.DataType] = {
    "int": pa.int32(),
    "count": pa.int64(),
    "float": pa.float64(),
    "sum": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "time": pa.float64(),
}
_MOST_CHUNKS = 64  # of stored signals, before they become one


class SignalRows:
    """For each of ROWS its table, to which later steps are added."""

    def __init__(self) -> None:
        self._tables = {rows: _no_rows(rows) for rows in ROWS}

    def __getitem__(self, rows: str) -> pa.Table:
        return self._tables[rows]

    def add(self, rows: str, table: pa.Table) -> None:
        """Add signals of later steps, which are in the order of steps."""
        stored = self._tables[rows]
        new = {name: table[name] for name in stored.column_names if name != "tokens_seen"}
        if "tokens_seen" in stored.column_names:
            seen = stored["tokens_seen"][-1].as_py() if len(stored) else None
            new["tokens_seen"] = pa.chunked_array([_tokens_seen(new["n_tokens"], seen)])
        later = pa.Table.from_arrays(_own_memory(new.values()), schema=stored.schema)
        stored = pa.concat_tables([stored, later])
        if stored.column(0).num_chunks > _MOST_CHUNKS:
            stored = stored.combine_chunks()
        self._tables[rows] = stored

    def forget(self, first_step: int) -> None:
        """Delete the signals of `first_step` and later steps."""
        for rows, table in self._tables.items():
            if len(table):
                before = np.searchsorted(array(table["step"]), first_step)
                self._tables[rows] = table.slice(0, int(before))


class SignalColumns:
    """The columns of a table as arrays, NaN for NULL; each is made when it is asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __getitem__(self, name: str) -> NDArray[Any]:
        return array(self._table[name])


def array(column: pa.ChunkedArray) -> NDArray[Any]:
    """The values of a column of numbers, NaN for NULL."""
    values, valid = _values(column)
    return values if valid is None else np.where(valid, values, np.nan)


def _values(column: pa.ChunkedArray) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """The values of a column of numbers, and which of them are not NULL; None if all are."""
    whole = column.combine_chunks()
    bits, data = whole.buffers()
    if not len(whole) or data is None:
        return np.empty(0), None
    rows = slice(whole.offset, whole.offset + len(whole))
    values = np.frombuffer(data, str(whole.type))[rows]
    if not whole.null_count:
        return values, None
    valid = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[rows]
    return values, valid == 1


def stored_columns(rows: str) -> list[tuple[str, pa.DataType]]:
    """The columns of one of ROWS as its view has them, and their types."""
    view = VIEWS[rows.replace("_rows", "s")]
    columns = [(c.name, _STORED[c.kind]) for c in view.columns if c.name != "tokens_seen"]
    return [*columns, ("n_tokens", pa.int64())] if view == SIGNALS else columns


def _no_rows(rows: str) -> pa.Table:
    """One of ROWS without any."""
    columns = stored_columns(rows)
    seen = [("tokens_seen", pa.int64())] if ("n_tokens", pa.int64()) in columns else []
    return pa.Table.from_batches([], pa.schema([*columns, *seen]))


def _own_memory(columns: Collection[pa.ChunkedArray]) -> list[Any]:
    """The same columns apart from DuckDB's result, all of which is kept as long as one of them is.
    Those that were not measured, most in many runs, are one in memory for each type."""
    nothing: dict[pa.DataType, Any] = {}
    own = []
    for column in columns:
        if column.null_count == len(column):
            own.append(nothing.setdefault(column.type, pa.nulls(len(column), column.type)))
        else:
            own.append(pa.chunked_array([_copy(chunk) for chunk in column.chunks]))
    return own


def _copy(array: pa.Array) -> pa.Array:
    buffers = [b and pa.py_buffer(b.to_pybytes()) for b in array.buffers()]
    if not array.null_count:
        buffers[0] = None
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, array.offset)


def _tokens_seen(tokens: pa.ChunkedArray, before: int | None) -> pa.Array:
    """Of steps in order the sum of their tokens and of those `before`; NULL as long as none are
    known."""
    values, valid = _values(tokens)
    if valid is None:
        valid = np.ones(len(values), bool)
    seen = np.cumsum(np.where(valid, values, 0), dtype=np.int64) + (before or 0)
    known = np.logical_or.accumulate(valid) | (before is not None)
    bits = pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(values), [bits, pa.py_buffer(seen)])
