"""The SQLite databases of MLflow and Trackio, read without blocking their writers.

Schemas: mlflow's store/tracking/dbmodels/models.py (table `metrics`); trackio's sqlite_storage.py
(table `metrics`, whose column `metrics` is JSON in which NaN and Inf are the strings "NaN",
"Infinity" and "-Infinity"). Neither package is needed.

In WAL mode readers never do; otherwise rows are read in short pieces, because a read of a
rollback-journal database keeps its writer waiting. Nothing is written beside the database: where
even a reader would have to (a WAL without its index, a transaction that a crash left half done),
a copy is read instead.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..core.errors import LldscopeError
from .logged import LoggerCalls, Point, chosen, joined
from .reading import as_step, parsed
from .source import Findings, Rows, Scalars
from .sqlite_rows import listed, rows

MAGIC = b"SQLite format 3\0"
_LONGEST = 64 << 20  # bytes of a value
_WAL = 2  # byte 18 of the header: read format version
_TRIES = 5
_INFINITE = 1.7976931348623157e308  # what MLflow's database holds for Inf, which SQL has not
SECONDS = 5.0  # for a writer that has locked the database


class _Database:
    """A source in SQLite: its name to a reader, and the columns of its table `metrics`."""

    owner: str
    columns: frozenset[str]

    def looks_like(self, path: Path, head: bytes) -> bool:
        return head.startswith(MAGIC) and self.columns <= tables(path).get("metrics", set())

    def open_all(
        self, paths: Sequence[Path], findings: Findings
    ) -> Iterator[tuple[Path, sqlite3.Connection]]:
        for path in paths:
            if not self.looks_like(path, MAGIC):  # as when the format was forced
                findings.skip(f"files that are no database of {self.owner}")
                continue
            with opened(path) as connection:
                yield path, connection


class MlflowDatabase(_Database):
    name = "mlflow"
    description = "MLflow's SQLite database (mlflow.db), metrics of one run"
    owner = "MLflow"
    columns = frozenset(("key", "value", "timestamp", "step", "is_nan", "run_uuid"))

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars | Rows]:
        for path, connection in self.open_all(paths, findings):
            yield from joined(self._points(path, connection, findings))

    def _points(
        self, path: Path, connection: sqlite3.Connection, findings: Findings
    ) -> Iterator[Point]:
        query = "SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active'"
        runs = {run: name or run for run, name in listed(connection, query, path).items()}
        run = chosen(findings.request.run, runs, path)
        columns = "run_uuid, key, value, step, timestamp, is_nan"
        for of, key, value, step, time, is_nan in rows(connection, columns, path, findings):
            if of != run:
                continue
            step = as_step(step)
            if step is None or not isinstance(value, int | float) or not isinstance(key, str):
                findings.skip("rows without a step or a number")
                continue
            value = math.copysign(math.inf, value) if abs(value) >= _INFINITE else float(value)
            seconds = time / 1000 if isinstance(time, int) else None
            yield key, math.nan if is_nan else value, step, seconds


class Trackio(_Database):
    name = "trackio"
    description = "Trackio's SQLite databases (PROJECT.db), metrics of one run"
    owner = "Trackio"
    columns = frozenset(("run_name", "step", "timestamp", "metrics"))

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars | Rows]:
        for path, connection in self.open_all(paths, findings):
            calls = LoggerCalls(findings)
            # The tables of older versions have no run_id.
            own = "run_id" if "run_id" in tables(path)["metrics"] else "run_name"
            query = f"SELECT {own}, max(run_name) FROM metrics GROUP BY 1"
            run = chosen(findings.request.run, listed(connection, query, path), path)
            columns = f"{own}, step, timestamp, metrics"
            for of, step, time, text in rows(connection, columns, path, findings):
                if of != run:
                    continue
                try:
                    body = text.encode() if isinstance(text, str) else text
                    row: Any = parsed(body) if isinstance(body, bytes) else None
                except (ValueError, RecursionError):
                    row = None
                if not isinstance(row, dict):
                    findings.skip("rows that are no metrics of Trackio")
                elif scalars := calls.record(row, step, _seconds(time)):
                    yield scalars


def _seconds(text: object) -> float | None:
    """Unix time of an ISO date, in UTC unless it says otherwise; None if it is none."""
    try:
        moment = datetime.fromisoformat(str(text))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads. Raises sqlite3.DatabaseError if there is nothing to read,
    LldscopeError if it would take a copy that the disk has no room for."""
    beside = [_beside(path, suffix) for suffix in ("-wal", "-shm", "-journal")]
    if any(part.exists() and not part.is_file() for part in beside):
        raise sqlite3.DatabaseError("what is beside it is no file")
    if _can_be_read_in_place(path):
        with closing(_connect(path, "mode=ro")) as connection:
            yield connection
        return
    with tempfile.TemporaryDirectory(prefix="lldscope-") as folder:
        copy = Path(folder) / "copy.db"
        needed = sum(part.stat().st_size for part in (path, *beside) if part.is_file())
        if needed > shutil.disk_usage(folder).free // 2:
            raise LldscopeError(
                f"{path} can only be read from a copy, for which {folder} has no room: it would "
                f"take {needed >> 20:,} MB. Close the program that has it open."
            )
        for _ in range(_TRIES):
            before = _state(path)
            for suffix in ("", "-wal", "-journal"):
                copy.with_name(copy.name + suffix).unlink(missing_ok=True)
                if (part := _beside(path, suffix)).is_file():
                    shutil.copyfile(part, copy.with_name(copy.name + suffix))
            if _state(path) == before:
                break  # it was not written to meanwhile
        with closing(_connect(copy, "mode=rw")) as connection:
            yield connection


def tables(path: Path) -> dict[str, set[str]]:
    """Columns of each table; nothing if the file is not a valid database."""
    try:
        with opened(path) as connection:
            query = (
                "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c "
                "WHERE t.type = 'table' AND t.rootpage > 0"  # no virtual table
            )
            columns: dict[str, set[str]] = {}
            for table, column in connection.execute(query):
                columns.setdefault(table, set()).add(column)
            return columns
    except (sqlite3.Error, OSError):
        return {}


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
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _state(path: Path) -> list[tuple[int, int] | None]:
    """Changes whenever the database is written to."""
    parts = (_beside(path, suffix) for suffix in ("", "-wal", "-journal"))
    stats = (part.stat() if part.is_file() else None for part in parts)
    return [s and (s.st_mtime_ns, s.st_size) for s in stats]
