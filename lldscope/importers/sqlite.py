"""Other people's SQLite databases, read without standing in their writers' way.

In WAL mode readers never do; otherwise rows are read in short pieces, because a read of a
rollback-journal database keeps its writer waiting. Nothing is written beside the database: where
even a reader would have to (a WAL without its index, a transaction that a crash left half done),
a copy is read instead.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from .source import Findings

MAGIC = b"SQLite format 3\0"
_PIECE = 4096  # rows
_WAL = 2  # byte 18 of the header: read format version
_TRIES = 5
SECONDS = 5.0  # for a writer that has locked the database


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads. Raises sqlite3.DatabaseError if there is nothing to read."""
    if _can_be_read_in_place(path):
        with closing(_connect(path, "mode=ro")) as connection:
            yield connection
        return
    with tempfile.TemporaryDirectory(prefix="lldscope-") as folder:
        copy = Path(folder) / "copy.db"
        for _ in range(_TRIES):
            before = _state(path)
            for suffix in ("", "-wal", "-journal"):
                copy.with_name(copy.name + suffix).unlink(missing_ok=True)
                if (part := _beside(path, suffix)).is_file():
                    shutil.copyfile(part, copy.with_name(copy.name + suffix))
            if _state(path) == before:
                break  # nobody wrote meanwhile
        with closing(_connect(copy, "mode=rw")) as connection:
            yield connection


def tables(path: Path) -> dict[str, set[str]]:
    """Columns of each table; nothing if the file is not a valid database."""
    try:
        with opened(path) as connection:
            query = (
                "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c "
                "WHERE t.type = 'table'"
            )
            columns: dict[str, set[str]] = {}
            for table, column in connection.execute(query):
                columns.setdefault(table, set()).add(column)
            return columns
    except (sqlite3.Error, OSError):
        return {}


def rows(
    connection: sqlite3.Connection, select: str, table: str, findings: Findings
) -> Iterator[tuple]:
    """Rows of a table in the order of writing; `select` ends where a condition may follow. Rows in
    damaged pages are counted and left out."""
    try:
        first, last = connection.execute(f"SELECT min(rowid), max(rowid) FROM {table}").fetchone()
    except sqlite3.DatabaseError:
        return findings.skip(f"tables that are damaged ({table})")
    if first is None:
        return None
    for start in range(first, last + 1, _PIECE):
        yield from _piece(connection, select, start, min(start + _PIECE - 1, last), findings)
    return None


def _piece(
    connection: sqlite3.Connection, select: str, first: int, last: int, findings: Findings
) -> Iterator[tuple]:
    try:
        yield from connection.execute(
            f"{select} AND rowid BETWEEN ? AND ? ORDER BY rowid", (first, last)
        ).fetchall()
    except sqlite3.OperationalError:
        raise  # not damage: the writer keeps it locked, say
    except sqlite3.DatabaseError:
        if first == last:
            return findings.skip("rows in damaged pages")
        middle = (first + last) // 2
        yield from _piece(connection, select, first, middle, findings)
        yield from _piece(connection, select, middle + 1, last, findings)
    return None


def _can_be_read_in_place(path: Path) -> bool:
    with path.open("rb") as file:
        in_wal_mode = file.read(20)[18:19] == bytes([_WAL])
    if in_wal_mode and not all(_beside(path, suffix).is_file() for suffix in ("-wal", "-shm")):
        return False
    try:
        with closing(_connect(path, "mode=ro")) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        return False  # a crash left a journal that has to be rolled back first
    return True


def _connect(path: Path, how: str) -> sqlite3.Connection:
    address = f"file:{quote(str(path.absolute()))}?{how}"
    connection = sqlite3.connect(address, uri=True, timeout=SECONDS)
    connection.text_factory = lambda text: text.decode(errors="replace")
    return connection


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _state(path: Path) -> list[tuple[int, int] | None]:
    """What changes when somebody writes to the database."""
    parts = (_beside(path, suffix) for suffix in ("", "-wal", "-journal"))
    stats = (part.stat() if part.is_file() else None for part in parts)
    return [s and (s.st_mtime_ns, s.st_size) for s in stats]
