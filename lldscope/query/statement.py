"""Refuses statements that do more than read, by their kind and their parse tree.

DuckDB forbids most of it (`sandbox.confine`), with two exceptions: a COPY or INSERT inside WITH
writes even in a read-only transaction, and some functions run a text as SQL on a connection of
their own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb

from ..core.errors import UsageError

MOST_CHARACTERS = 100_000  # of a statement
# DuckDB bounds neither time nor memory of planning.
MOST = {"JOIN": 30, "SELECT_NODE": 300, "SET_OPERATION_NODE": 300, "STAR": 100}

_ONLY_SELECT = "Give exactly one SELECT (or DESCRIBE, SHOW, SUMMARIZE): query only reads."
_TOO_DEEP = "The SQL is nested too deeply. Give a name to the inner parts with WITH."

_READING = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}  # query nodes
_RUNS_TEXT = {"query", "query_table", "json_execute_serialized_sql"}


def insist_on_select(db: duckdb.DuckDBPyConnection, query: str) -> None:
    """Raises UsageError unless the query is one statement that only reads tables of the run."""
    if len(query) > MOST_CHARACTERS:
        raise UsageError(f"The SQL has {len(query):,} characters; {MOST_CHARACTERS:,} are allowed.")
    try:
        query.encode()  # an argument from a shell is not always UTF-8
        statements = duckdb.extract_statements(query)
    except (duckdb.Error, ValueError) as error:
        raise UsageError(f"The SQL cannot be read. {error}") from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(_ONLY_SELECT)
    nodes = list(_nodes(_parse(db, query)))
    kinds = (node.get("type") for node in nodes)  # the type of a value is an object
    counts = Counter(kind for kind in kinds if isinstance(kind, str))
    for kind, most in MOST.items():
        if counts[kind] > most:
            what = kind.removesuffix("_NODE").lower().replace("_", " ")
            raise UsageError(f"The SQL has {counts[kind]} × {what}; {most} are allowed.")
    if any(kind.endswith("_NODE") and kind not in _READING for kind in counts):
        raise UsageError(_ONLY_SELECT)
    for node in nodes:
        if str(node.get("function_name")).lower() in _RUNS_TEXT:
            raise UsageError(f"{node['function_name']} runs a text as SQL and is not allowed here.")
        if node.get("materialized") == "CTE_MATERIALIZE_NEVER":  # it can grow as 2ⁿ
            raise UsageError("NOT MATERIALIZED is not allowed: leave it out.")


def columns_of(db: duckdb.DuckDBPyConnection, query: str) -> set[str]:
    """The names of columns that a query mentions, in lower case."""
    nodes = (n for n in _nodes(_parse(db, query)) if n.get("class") == "COLUMN_REF")
    return {node["column_names"][-1].lower() for node in nodes}


def _parse(db: duckdb.DuckDBPyConnection, query: str) -> Any:
    ((text,),) = db.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    try:
        tree = json.loads(text)
    except RecursionError:
        raise UsageError(_TOO_DEEP) from None
    if tree["error"]:
        raise UsageError(_ONLY_SELECT)
    return tree["statements"]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object in a parse tree."""
    open_ = [tree]
    while open_:
        item = open_.pop()
        if isinstance(item, dict):
            yield item
            open_ += item.values()
        elif isinstance(item, list):
            open_ += item
