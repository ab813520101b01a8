"""A DuckDB that reads one run directory and nothing else, and answers within bounds.

DuckDB itself keeps queries inside the directory (`allowed_directories` is checked after links are
followed). DuckDB would allow writing there, so `statement` refuses queries that write, and the
others run in a transaction that cannot write.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import UsageError

if TYPE_CHECKING:
    import duckdb

MEMORY = "4GB"  # DuckDB's, for everything it computes
SECONDS = 60.0  # one answer may take
ANSWER_BYTES = 1 << 30  # one answer may have
_ROWS = 2048  # in a piece of an answer


def confine(db: duckdb.DuckDBPyConnection, run: Path | None = None) -> None:
    """From here on the database reads below `run` only, or no file at all."""
    for setting in (
        f"memory_limit='{MEMORY}'",
        "temp_directory=''",
        "TimeZone='UTC'",
        "enable_progress_bar=false",
        "autoinstall_known_extensions=false",
        "autoload_known_extensions=false",
        f"allowed_directories=[{quote(str(run)) if run else ''}]",
        "enable_external_access=false",
    ):
        db.execute(f"SET {setting}")


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def bounded(db: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    """A read-only transaction that ends after `seconds`; raises UsageError then, and when memory
    does not suffice."""
    import duckdb

    over = threading.Event()

    def stop() -> None:
        over.set()
        db.interrupt()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    db.execute("BEGIN TRANSACTION READ ONLY")
    timer.start()
    try:
        yield
    except duckdb.InterruptException:
        if not over.is_set():
            raise
        raise UsageError(
            f"The query took longer than {seconds:g} s and was stopped. Ask for fewer steps or "
            "columns, or give --timeout."
        ) from None
    except duckdb.OutOfMemoryException:
        raise UsageError(
            f"The query needs more than {MEMORY} of memory and was stopped. Ask for fewer steps, "
            "or `lldscope export` the tables and use a database of your own."
        ) from None
    finally:
        timer.cancel()
        timer.join()
        db.execute("ROLLBACK")


class Answer(NamedTuple):
    """Columns, their types in DuckDB, and rows of Python values: NULL is None, NaN stays NaN."""

    names: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]


def rows(db: duckdb.DuckDBPyConnection, query: str) -> Answer:
    """The answer as Python values, taken piece by piece; raises UsageError if it gets too large. If
    several columns have one name, the later ones get a number. Dates, times and intervals become
    texts, in UTC: Python has no infinite dates, no months, and few years."""
    db.execute(query)
    exact = [_is_exact(kind) for _, kind, *_ in db.description or ()]
    if not all(exact):
        columns = [f"c{i}" for i in range(len(exact))]
        texts = [
            f"{c if is_exact else f'{c}::VARCHAR'} AS {quote_name(name[0])}"
            for c, is_exact, name in zip(columns, exact, db.description or (), strict=True)
        ]
        # The line end closes a comment at the end of the query.
        inner = f"FROM ({query.rstrip().rstrip(';')}\n) AS answer({', '.join(columns)})"
        db.execute(f"SELECT {', '.join(texts)} {inner}")
    names: list[str] = []
    for name, *_ in db.description or ():
        others = (f"{name}_{i}" for i in range(1, len(names) + 2))
        names.append(next(n for n in (name, *others) if n not in names))
    answer = Answer(names, [str(kind) for _, kind, *_ in db.description or ()], [])
    size = 0
    while piece := db.fetchmany(_ROWS):
        size += sum(sys.getsizeof(row) + sum(map(sys.getsizeof, row)) for row in piece)
        if size > ANSWER_BYTES:
            raise UsageError(
                f"The answer has more than {ANSWER_BYTES >> 20} MB. Add a LIMIT or a WHERE, or "
                "`lldscope export` the tables."
            )
        answer.rows.extend(piece)
    return answer


def _is_exact(kind: Any) -> bool:
    """Whether Python has every value of a type of DuckDB."""
    if kind.id in ("list", "array", "struct", "map", "union"):
        return all(_is_exact(child) for _, child in kind.children if not isinstance(child, int))
    return not re.search("date|time|interval|variant", kind.id)
