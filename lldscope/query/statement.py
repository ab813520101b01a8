"""What a statement of a person may do, decided from its parse tree: read the tables of the run.

Everything is denied that is not listed: kinds of nodes, tables, functions. DuckDB forbids less: a
COPY or INSERT inside WITH writes even in a read-only transaction, and some functions run a text as
SQL on a connection of their own, or read and write files.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb

from ..core.errors import UsageError
from ..core.sql_functions import FUNCTIONS, TABLE_FUNCTIONS

MOST_CHARACTERS = 100_000  # of a statement
# Planning takes time and memory that DuckDB bounds by nothing, and looks at no clock meanwhile.
MOST = {"JOIN": 30, "SELECT_NODE": 300, "SET_OPERATION_NODE": 300, "STAR": 100}

_ONLY_SELECT = "Give exactly one SELECT (or DESCRIBE, SHOW, SUMMARIZE): query only reads."
_TOO_DEEP = "The SQL is nested too deeply. Give a name to the inner parts with WITH."

# Nodes by DuckDB's names: expressions by their class, others by their type.
_CLASSES = {
    "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT",
    "FUNCTION", "LAMBDA", "LAMBDA_REF", "OPERATOR", "PARAMETER", "POSITIONAL_REFERENCE", "STAR",
    "SUBQUERY", "TYPE", "WINDOW",
}  # fmt: skip
_TYPES = {
    "SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE",
    "BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "PIVOT", "SHOW_REF", "SUBQUERY",
    "TABLE_FUNCTION", "DISTINCT_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER",
    "ORDER_MODIFIER", "ASCENDING", "DESCENDING", "ORDER_DEFAULT",
}  # fmt: skip
_TABLES = (
    "SELECT table_name FROM duckdb_tables() WHERE NOT internal "
    "UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal"
)
_SPECIAL = {"tables", "databases", "__show_tables_expanded"}  # what SHOW can show beside a table
_SCHEMAS = ("memory", "main", "temp")
_CATALOG = {"tables", "columns"}  # of information_schema
# A name of WITH must not be one that DuckDB would take for a file in another place of the text.
_PLAIN_NAME = re.compile(r"[\w ]+")


def insist_on_select(db: duckdb.DuckDBPyConnection, query: str) -> None:
    """Raises UsageError unless the query is one statement that only reads tables of the run."""
    if len(query) > MOST_CHARACTERS:
        raise UsageError(f"The SQL has {len(query):,} characters; {MOST_CHARACTERS:,} are allowed.")
    try:
        query.encode()  # what a shell gave is not always UTF-8
        statements = duckdb.extract_statements(query)
    except (duckdb.Error, ValueError) as error:
        raise UsageError(f"The SQL cannot be read. {error}") from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(_ONLY_SELECT)
    tables = {name.lower() for (name,) in db.execute(_TABLES).fetchall()}
    nodes = list(_nodes(_parse(db, query)))
    kinds = (node.get("type") for node in nodes)  # that of a value is an object
    for kind, count in Counter(kind for kind in kinds if isinstance(kind, str)).items():
        if count > MOST.get(kind, count):
            what = kind.removesuffix("_NODE").lower().replace("_", " ")
            raise UsageError(f"The SQL has {count} × {what}; {MOST[kind]} are allowed.")
    tables |= {name.lower() for node in nodes for name in _names_given(node)}
    of_from = {id(node["function"]) for node in nodes if node.get("type") == "TABLE_FUNCTION"}
    for node in nodes:
        if id(node) not in of_from:
            _check(node, tables)


def _parse(db: duckdb.DuckDBPyConnection, query: str) -> Any:
    ((text,),) = db.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    try:
        parsed = json.loads(text)
    except RecursionError:
        raise UsageError(_TOO_DEEP) from None
    if parsed["error"]:
        raise UsageError(_ONLY_SELECT)
    return parsed["statements"]


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


def _names_given(node: dict[str, Any]) -> Iterator[str]:
    """The tables that a node names by WITH."""
    entries = (node.get("cte_map") or {}).get("map") or ()
    if any(e["value"].get("materialized") == "CTE_MATERIALIZE_NEVER" for e in entries):
        raise UsageError("NOT MATERIALIZED is not allowed: leave it out.")  # it can grow as 2ⁿ
    for name in (*(entry["key"] for entry in entries), node.get("cte_name"), node.get("ctename")):
        if name:
            if not _PLAIN_NAME.fullmatch(name):
                raise UsageError(f"{name!r} cannot be a name in WITH: use letters, digits and _.")
            yield name


def _check(node: dict[str, Any], tables: set[str]) -> None:
    kind, known = (node["class"], _CLASSES) if "class" in node else (node.get("type"), _TYPES)
    if isinstance(kind, str) and kind not in known and not kind.endswith("_TYPE_INFO"):
        raise UsageError(_ONLY_SELECT)
    if kind == "BASE_TABLE":
        _check_table(node, tables)
    elif kind == "SHOW_REF" and not node.get("query"):
        if node["table_name"].strip('"') not in _SPECIAL:
            raise UsageError(_ONLY_SELECT)
    elif kind == "TABLE_FUNCTION":
        _check_function(node["function"]["function_name"], TABLE_FUNCTIONS)
    elif kind in ("FUNCTION", "WINDOW"):
        _check_function(node["function_name"], FUNCTIONS)


def _check_table(node: dict[str, Any], tables: set[str]) -> None:
    schema = [node.get(part) or "" for part in ("catalog_name", "schema_name")]
    name = node["table_name"]
    if schema[1].lower() == "information_schema" and name.lower() in _CATALOG:
        return
    if name.lower() not in tables or not {part.lower() for part in schema} <= {"", *_SCHEMAS}:
        raise UsageError(
            f"There is no table {name!r} in a run. SHOW TABLES lists those there are; files cannot "
            "be read here."
        )


def _check_function(name: str, allowed: frozenset[str]) -> None:
    if name.lower() not in allowed:
        raise UsageError(
            f"{name} cannot be used here: a query computes from the tables of the run, and reads, "
            "writes and runs nothing else."
        )
