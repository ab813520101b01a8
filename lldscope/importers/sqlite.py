"""The SQLite databases of MLflow and Trackio, each read by one query, from a temporary copy.

Schemas: mlflow's store/tracking/dbmodels/models.py (table `metrics`); trackio's sqlite_storage.py
(table `metrics`, whose column `metrics` is JSON in which NaN and Inf are the strings "NaN",
"Infinity" and "-Infinity"). Neither package is needed: MLflow's client brings twenty packages, and
migrates a database that it opens. A copy keeps no writer waiting and may be written to by SQLite,
which has to where a WAL is without its index or a crash left half a transaction.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import LldscopeError
from ..storage.json_files import parse
from .metrics import Call, Point, group_points, logger_calls
from .reading import as_step, choose_run, file_states, seconds_of
from .rows import Candidate
from .source import Findings, Scalars, in_attempts

MAGIC = b"SQLite format 3\0"
# UnicodeDecodeError: of SQLite's message, where it quotes a damaged schema.
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError, OSError)
_TRIES = 5
_LONGEST = 16 << 20  # bytes of a value
_MOST_RUNS = 10_000


@dataclass(eq=False)
class Database:
    """A source in SQLite: the columns of its table `metrics`, and its reader."""

    name: str
    description: str
    columns: frozenset[str]
    rows: Callable[[Path, sqlite3.Connection, Findings], Iterator[Scalars]]

    def looks_like(self, file: Candidate) -> bool:
        if not file.head.startswith(MAGIC):
            return False
        try:
            with open_copy(file.path) as connection:
                return self.columns <= _columns(connection)
        except _UNREADABLE:  # `read` reports the fault of a file of ours
            return all(column.encode() in file.head for column in self.columns)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        """Read a database. A damaged or foreign file is named, and left out from the damage on."""
        for path in paths:
            try:
                with open_copy(path) as connection:
                    if not self.columns <= _columns(connection):
                        findings.skip(f"files that are not a database of {self.name}")
                        continue
                    items = self.rows(path, connection, findings)
                    yield from in_attempts(items, findings, path)
            except _UNREADABLE as error:
                findings.skip("databases that cannot be read to their end")
                findings.note(f"{path} cannot be read to its end: {error}.")


def _mlflow_points(
    path: Path, connection: sqlite3.Connection, findings: Findings
) -> Iterator[Point]:
    query = f"SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active' LIMIT {_MOST_RUNS}"
    runs = {run: name or run for run, name in connection.execute(query)}
    run = choose_run(findings.request.run, runs, path)
    query = (
        "SELECT key, value, step, timestamp, is_nan FROM metrics WHERE run_uuid = ? ORDER BY rowid"
    )
    for key, value, step, at, is_nan in connection.execute(query, (run,)):
        step = as_step(step)
        if step is None or not isinstance(value, int | float) or not isinstance(key, str):
            findings.skip("rows without a step or a number")
            continue
        seconds = at / 1000 if isinstance(at, int) else None
        yield key, math.nan if is_nan else float(value), step, seconds


def _trackio_calls(
    path: Path, connection: sqlite3.Connection, findings: Findings
) -> Iterator[Call]:
    # The tables of older versions have no run_id.
    key = "run_id" if "run_id" in _columns(connection) else "run_name"
    query = f"SELECT {key}, max(run_name) FROM metrics GROUP BY 1 LIMIT {_MOST_RUNS}"
    run = choose_run(findings.request.run, dict(connection.execute(query)), path)
    query = f"SELECT step, timestamp, metrics FROM metrics WHERE {key} = ? ORDER BY rowid"
    for step, at, text in connection.execute(query, (run,)):
        try:
            body = text.encode() if isinstance(text, str) else text
            row: Any = parse(body) if isinstance(body, bytes) else None
        except ValueError:
            row = None
        if isinstance(row, dict):
            yield row, step, seconds_of(at)
        else:
            findings.skip("rows that are not Trackio metrics")


MLFLOW = Database(
    "mlflow",
    "MLflow's SQLite database (mlflow.db), metrics of one run",
    frozenset(("key", "value", "timestamp", "step", "is_nan", "run_uuid")),
    lambda *of: group_points(_mlflow_points(*of)),
)
TRACKIO = Database(
    "trackio",
    "Trackio's SQLite databases (PROJECT.db), metrics of one run",
    frozenset(("run_name", "step", "timestamp", "metrics")),
    lambda *of: logger_calls(_trackio_calls(*of), of[-1]),
)


@contextmanager
def open_copy(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a copy of a database and its side files. Raises LldscopeError if the disk has
    no room for the copy, OSError if it cannot be made."""
    suffixes = ("", "-wal", "-journal")
    sources = [path.with_name(path.name + suffix) for suffix in suffixes]
    if any(source.exists() and not source.is_file() for source in sources):
        raise OSError("what lies beside it is not a file")
    with tempfile.TemporaryDirectory(prefix="lldscope-") as folder:
        size = sum(source.stat().st_size for source in sources if source.is_file())
        if size > shutil.disk_usage(folder).free // 2:
            raise LldscopeError(
                f"{path} is read from a copy, for which {folder} has no room: it would take "
                f"{size >> 20:,} MB. Set TMPDIR to a larger disk."
            )
        copies = [Path(folder) / f"copy.db{suffix}" for suffix in suffixes]
        for _ in range(_TRIES):  # until nothing was written meanwhile
            before = file_states(path)
            for source, copy in zip(sources, copies, strict=True):
                copy.unlink(missing_ok=True)
                if source.is_file():
                    shutil.copyfile(source, copy)
            if file_states(path) == before:
                break
        with closing(sqlite3.connect(copies[0])) as connection:
            connection.text_factory = lambda text: text.decode(errors="replace")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
            connection.execute("PRAGMA trusted_schema = OFF")
            yield connection


def _columns(connection: sqlite3.Connection) -> set[str]:
    """Columns of the table `metrics`; empty if it is a view or virtual."""
    query = (
        "SELECT c.name FROM sqlite_master t, pragma_table_info(t.name) c "
        "WHERE t.type = 'table' AND t.rootpage > 0 AND t.name = 'metrics'"
    )
    return {name for (name,) in connection.execute(query)}
