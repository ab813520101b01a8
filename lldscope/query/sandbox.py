"""A DuckDB that reads one run directory and nothing else, and answers within bounds.

DuckDB itself keeps queries inside the directory (`allowed_directories`, which follows links before
it judges). What it does not forbid there is writing: a COPY inside WITH or EXPLAIN ANALYZE makes
files. So people's statements are parsed first, and only plain SELECTs are run, in a transaction
that cannot write.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb

from ..core.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

MEMORY = "4GB"  # DuckDB's, for everything it computes
SECONDS = 60.0  # one answer may take
ANSWER_BYTES = 1 << 30  # one answer may have
_VECTORS = 100  # of 2048 rows, in a piece of an answer …
_ROWS = 2048  # … of Python values

_SELECTS = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_ONLY_SELECT = "Give exactly one SELECT (or DESCRIBE, SHOW, SUMMARIZE): query only reads."


def confine(db: duckdb.DuckDBPyConnection, run: Path) -> None:
    """From here on the database reads below `run` only."""
    for setting in (
        f"memory_limit='{MEMORY}'",
        "temp_directory=''",
        "enable_progress_bar=false",
        "autoinstall_known_extensions=false",
        "autoload_known_extensions=false",
        f"allowed_directories=[{quote(str(run))}]",
        "enable_external_access=false",
    ):
        db.execute(f"SET {setting}")


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def insist_on_select(db: duckdb.DuckDBPyConnection, query: str) -> None:
    """Raises UsageError unless the query is one statement that only reads."""
    try:
        query.encode()  # what a shell gave is not always UTF-8
        statements = duckdb.extract_statements(query)
    except (duckdb.Error, ValueError) as error:
        raise UsageError(f"The SQL cannot be read. {error}") from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(_ONLY_SELECT)
    ((tree,),) = db.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    parsed = json.loads(tree)
    if parsed["error"] or not _node_types(parsed["statements"]) <= _SELECTS:
        raise UsageError(_ONLY_SELECT)


def _node_types(tree: Any) -> set[str]:
    """The kinds of all query nodes in a parse tree; a COPY or INSERT inside WITH is one, too."""
    found, open_ = set(), [tree]
    while open_:
        item = open_.pop()
        if isinstance(item, dict):
            kind = item.get("type")
            if isinstance(kind, str) and kind.endswith("_NODE"):
                found.add(kind)
            open_ += item.values()
        elif isinstance(item, list):
            open_ += item
    return found


@contextmanager
def bounded(db: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    """A read-only transaction that ends after `seconds`; raises UsageError then, and when memory
    does not suffice."""
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


def frame(
    db: duckdb.DuckDBPyConnection, query: str, parameters: Sequence[Any] | None
) -> pd.DataFrame:
    """The answer as a DataFrame, taken piece by piece; raises UsageError if it gets too large."""
    import pandas as pd

    db.execute(query, parameters)
    pieces, size = [db.fetch_df_chunk(_VECTORS)], 0
    while len(pieces[-1]):
        size += int(pieces[-1].memory_usage(deep=True).sum())
        _check_size(size)
        pieces.append(db.fetch_df_chunk(_VECTORS))
    pieces = pieces[:-1] or pieces
    return pieces[0] if len(pieces) == 1 else pd.concat(pieces, ignore_index=True)


class Answer(NamedTuple):
    """Columns, their types in DuckDB, and rows of Python values: NULL is None, NaN stays NaN."""

    names: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]


def rows(db: duckdb.DuckDBPyConnection, query: str) -> Answer:
    """The answer as Python values, taken piece by piece; raises UsageError if it gets too large. Of
    columns with one name the later ones get a number."""
    db.execute(query)
    names: list[str] = []
    for name, *_ in db.description or ():
        others = (f"{name}_{i}" for i in range(1, len(names) + 2))
        names.append(next(n for n in (name, *others) if n not in names))
    answer = Answer(names, [str(kind) for _, kind, *_ in db.description or ()], [])
    size = 0
    while piece := db.fetchmany(_ROWS):
        size += sum(sys.getsizeof(row) + sum(map(sys.getsizeof, row)) for row in piece)
        _check_size(size)
        answer.rows.extend(piece)
    return answer


def _check_size(size: int) -> None:
    if size > ANSWER_BYTES:
        raise UsageError(
            f"The answer has more than {ANSWER_BYTES >> 20} MB. Add a LIMIT or a WHERE, or "
            "`lldscope export` the tables."
        )
