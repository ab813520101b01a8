"""Rows of a SQLite table, however far apart their numbers are and whatever is damaged.

Nothing here trusts the file: its tree of pages may lead back, its schema may ask for work without
end, and a default value may be read from any number of rows that do not hold it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from ..core.errors import LldscopeError
from .limits import FREE_BYTES, MAX_RATIO
from .source import Findings

_PIECE = 4096  # rows
_PIECE_BYTES = 16 << 20  # of their texts
_FIRST_ROW, _LAST_ROW = -(1 << 63), (1 << 63) - 1
_MOST_RUNS = 10_000
_SECONDS = 60.0  # for a statement whose work the schema decides
_OPERATIONS = 100_000  # of SQLite between two looks at the clock


def listed(connection: sqlite3.Connection, query: str, path: Path) -> dict[str, str]:
    """The first rows of a query for runs, id → name.

    Raises LldscopeError if the database does not answer it, or not within a minute.
    """
    end = time.monotonic() + _SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > end, _OPERATIONS)
    try:
        return dict(connection.execute(f"{query} LIMIT {_MOST_RUNS}").fetchall())
    except sqlite3.Error as error:
        raise _no_answer(path, error) from None
    finally:
        connection.set_progress_handler(None, 0)


def _no_answer(path: Path, error: sqlite3.Error) -> LldscopeError:
    return LldscopeError(f"{path} cannot be read as a database of metrics: {error}.")


def rows(
    connection: sqlite3.Connection, columns: str, path: Path, findings: Findings
) -> Iterator[tuple]:
    """Rows of the table `metrics` in the order of writing. Those in damaged pages are counted and
    left out. Raises LldscopeError where nothing can be asked, as when the database is locked."""
    query = f"SELECT rowid, {columns} FROM metrics NOT INDEXED WHERE rowid >= ? ORDER BY rowid"
    most = max(FREE_BYTES, MAX_RATIO * path.stat().st_size)
    first, last = _ends(connection)
    at: int | None = first
    while at is not None:
        try:
            read, state = _piece(connection, query, at)
        except sqlite3.OperationalError as error:
            raise _no_answer(path, error) from None
        most -= _size(read)
        if most < 0:  # a default value may stand in any number of rows
            return findings.skip(f"rows beyond {MAX_RATIO} times the size of their database")
        yield from (row[1:] for row in read)
        at = read[-1][0] + 1 if read else at
        if state == "damaged":
            after = _after_damage(connection, query, at)
            lost = (last + 1 if after is None else after) - at  # of rows that follow each other
            findings.skip("rows in damaged pages", max(1, min(lost, _PIECE)))
            at = after
        elif state == "end" or at > _LAST_ROW:
            return None
    return None


def _ends(connection: sqlite3.Connection) -> tuple[int, int]:
    """The first and the last rowid, or those that there can be where damage hides them."""
    try:
        found = connection.execute("SELECT min(rowid), max(rowid) FROM metrics").fetchone()
    except sqlite3.DatabaseError:
        return _FIRST_ROW, _LAST_ROW
    return (_FIRST_ROW, _LAST_ROW) if found[0] is None else found


def _piece(
    connection: sqlite3.Connection, query: str, at: int, most: int = _PIECE
) -> tuple[list[tuple], str]:
    """Rows from a rowid on, and whether there are "more", or what ended them: "end", "damaged"."""
    read: list[tuple] = []
    size, last = 0, at - 1
    try:
        with closing(connection.execute(query, (at,))) as found:
            for row in found:
                if row[0] <= last:  # the tree leads back
                    return read, "damaged"
                read.append(row)
                last, size = row[0], size + _size([row])
                if len(read) == most or size > _PIECE_BYTES:
                    return read, "more"
    except sqlite3.OperationalError:
        raise  # not damage; its writer may have locked it
    except sqlite3.DatabaseError:
        return read, "damaged"
    return read, "end"


def _size(read: list[tuple]) -> int:
    return sum(len(v) for row in read for v in row if isinstance(v, str | bytes))


def _after_damage(connection: sqlite3.Connection, query: str, at: int) -> int | None:
    """The first rowid after `at` from which on rows can be read; None if there is none. Rowids may
    be far apart, so the steps double; what is readable between may be missed."""

    def fails(rowid: int) -> bool:
        return _piece(connection, query, rowid, 1)[1] == "damaged"

    low, stride = at, 1
    while fails(min(low + stride, _LAST_ROW)):
        if low + stride > _LAST_ROW:
            return None
        low, stride = low + stride, stride * 2
    high = min(low + stride, _LAST_ROW)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return high
