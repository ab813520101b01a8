"""Check that an SQL expression over `signals` is harmless and causal, and evaluate it.

DuckDB parses the text and its syntax tree is checked: one expression without sub-selects, made of
columns, constants, operators and functions whose result depends on their arguments alone; windows
say `ORDER BY step` and end at the current row at the latest. So the value at a step depends on rows
up to that step only, and a live answer and a replayed one are the same. The expression is evaluated
in an in-memory database that can reach neither files nor the network.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..core.schema import SIGNALS
from ..diagnosis.detectors import Columns, floats

EVALUATE_SECONDS = 10.0  # an expression that takes longer is interrupted

_SETTINGS: dict[str, Any] = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,  # no variable of this process is a table
    "memory_limit": "512MB",
    "threads": 1,
    "lock_configuration": True,
}
_LOCK = threading.RLock()

# Classes of nodes that an expression may contain, by DuckDB's names.
_ALLOWED = {"COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN",
            "FUNCTION", "CASE", "CAST", "TYPE", "WINDOW", "COLLATE"}  # fmt: skip
_CLASS_NAMES = {"SUBQUERY": "a sub-select", "STAR": "a star", "PARAMETER": "a parameter",
          "LAMBDA": "a lambda", "DEFAULT": "DEFAULT"}  # fmt: skip
_CAUSAL_FUNCTIONS = {"lag", "first_value", "last_value", "nth_value", "row_number", "rank",
                 "dense_rank"}  # fmt: skip
_CURRENT_ENDS = {"CURRENT_ROW_ROWS", "CURRENT_ROW_RANGE", "CURRENT_ROW_GROUPS"}
_PRECEDING_ENDS = {"EXPR_PRECEDING_ROWS", "EXPR_PRECEDING_RANGE", "EXPR_PRECEDING_GROUPS"}
_NUMBERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT",
            "UINTEGER", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE"}  # fmt: skip


class BadExpression(ValueError):
    """What is wrong with an expression, for the person who wrote it."""


class Expressions:
    """A condition and a value over the signals. Raises BadExpression if they cannot be used."""

    def __init__(self, condition: str, value: str | None) -> None:
        self._condition = condition
        self._value = value if value is not None else "NULL::DOUBLE"
        try:
            trees = [_parse(text) for text in (self._condition, self._value)]
            self.needs = tuple(sorted(set().union(*(_columns(tree) for tree in trees))))
        except RecursionError:
            raise BadExpression("it is nested too deeply") from None
        empty = {name: np.zeros(0) for name in SIGNALS.names}
        kinds = self._run(empty, "SELECT {condition}, {value} FROM signals", types=True)
        if kinds[0] != "BOOLEAN":
            raise BadExpression(f"the condition is of type {kinds[0]}, not true or false")
        if kinds[1] not in _NUMBERS and not kinds[1].startswith("DECIMAL"):
            raise BadExpression(f"the value is of type {kinds[1]}, not a number")

    def rows(self, signals: Columns) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """For each row: whether the condition is met (NULL does not meet it), and the value."""
        result = self._run(
            signals,
            "SELECT coalesce({condition}, false) AS holds, "
            "coalesce(CAST({value} AS DOUBLE), 'nan'::DOUBLE) AS value "
            "FROM signals ORDER BY step",
        )
        holds, value = np.asarray(result["holds"], bool), np.asarray(result["value"], np.float64)
        return holds, value

    def _run(self, signals: Columns, sql: str, *, types: bool = False) -> Any:
        """Run a query on the signals, as DOUBLE columns with NULL where not measured."""
        columns = {n: pa.array(floats(signals, n), from_pandas=True) for n in self.needs}
        columns["step"] = pa.array(np.asarray(signals["step"], dtype=np.int64))
        # The line end closes a comment at the end of an expression.
        query = sql.format(condition=f"(\n{self._condition}\n)", value=f"(\n{self._value}\n)")
        with _LOCK:
            database = _database()
            database.register("signals", pa.table(columns))
            timer = threading.Timer(EVALUATE_SECONDS, database.interrupt)
            timer.start()
            try:
                if types:
                    return [str(kind) for kind in database.sql(query).types]
                return database.execute(query).fetchnumpy()
            except duckdb.InterruptException:
                raise BadExpression(f"it takes more than {EVALUATE_SECONDS:.0f} s") from None
            except duckdb.Error as error:
                raise BadExpression(_first_line(error)) from None
            finally:
                timer.cancel()
                database.unregister("signals")


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(":memory:", config=_SETTINGS)


def _first_line(error: duckdb.Error) -> str:
    return str(error).split("\n")[0].strip()


# -- syntax trees ----------------------------------------------------------------------------------


def _tree(text: str) -> dict[str, Any]:
    with _LOCK:
        rows = _database().execute(
            "SELECT json_serialize_sql(?)", [f"SELECT (\n{text}\n)"]
        ).fetchall()  # fmt: skip
    return json.loads(rows[0][0])


def _parse(text: str) -> dict[str, Any]:
    """The syntax tree of the one expression that `text` is."""
    if not text.strip():
        raise BadExpression("it is empty")
    tree = _tree(text)
    if tree["error"]:
        raise BadExpression(f"{tree['error_message']}")
    expressions = _pop_expressions(tree)
    if len(expressions) != 1 or tree != _empty_select():
        raise BadExpression("it must be one expression, nothing before or after it")
    for node in _nodes(expressions[0]):
        _check(node)
    return expressions[0]


def _pop_expressions(tree: dict[str, Any]) -> list[Any]:
    """Remove and return the expressions of a SELECT's syntax tree."""
    nodes = [s["node"] for s in tree["statements"] if s["node"]["type"] == "SELECT_NODE"]
    return [e for node in nodes for e in node.pop("select_list")]


@cache
def _empty_select() -> dict[str, Any]:
    tree = _tree("1")
    _pop_expressions(tree)
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every node of a syntax tree that has a class, outermost first."""
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        for part in tree.values():
            yield from _nodes(part)
    elif isinstance(tree, list):
        for part in tree:
            yield from _nodes(part)


def _columns(tree: dict[str, Any]) -> set[str]:
    return {p["column_names"][0].lower() for p in _nodes(tree) if p["class"] == "COLUMN_REF"}


def _check(node: dict[str, Any]) -> None:
    kind = node["class"]
    if kind not in _ALLOWED:
        raise BadExpression(f"{_CLASS_NAMES.get(kind, kind.lower())} is not allowed")
    if kind == "COLUMN_REF":
        name = ".".join(node["column_names"])
        if name.lower() not in SIGNALS.names:
            raise BadExpression(f"there is no signal {name}; see: lldscope schema signals")
    elif kind == "FUNCTION":
        _check_function(node["function_name"].lower())
    elif kind == "WINDOW":
        _check_window(node)


@cache
def _functions() -> dict[str, set[tuple[str, str | None, str | None]]]:
    """Function → (kind, stability, type of the result) of each of its forms."""
    with _LOCK:
        rows = _database().execute(
            "SELECT function_name, function_type, stability, return_type FROM duckdb_functions()"
        ).fetchall()  # fmt: skip
    forms: dict[str, set[tuple[str, str | None, str | None]]] = {}
    for name, *form in rows:
        forms.setdefault(name.lower(), set()).add(tuple(form))
    return forms


def _check_function(name: str) -> None:
    kinds = _functions().get(name, set())
    if any(kind == "aggregate" for kind, _, _ in kinds):
        raise BadExpression(
            f"{name} needs a window, as in {name}(…) OVER (ORDER BY step ROWS 9 PRECEDING)"
        )
    scalar = [(stability, gives) for kind, stability, gives in kinds if kind == "scalar"]
    deterministic = all(stability == "CONSISTENT" for stability, _ in scalar)
    # Functions that return texts or lists could fill the memory.
    numeric = any(gives in {*_NUMBERS, "BOOLEAN", "ANY"} for _, gives in scalar)
    # DuckDB writes some plain functions, such as nullif, as macros.
    if not (scalar and deterministic and numeric) and name not in ("nullif", "ifnull"):
        raise BadExpression(f"{name} is no function that gives a number from its arguments alone")


def _check_window(node: dict[str, Any]) -> None:
    name = node["function_name"].lower()
    kinds = {kind for kind, _, _ in _functions().get(name, set())}
    if name not in _CAUSAL_FUNCTIONS and "aggregate" not in kinds:
        raise BadExpression(f"{name} looks at later steps, or is no window function")
    orders = node["orders"]
    by_step = len(orders) == 1 and orders[0]["type"] in ("ORDER_DEFAULT", "ASCENDING")
    if not by_step or orders[0]["expression"].get("column_names") != ["step"]:
        raise BadExpression(f"the window of {name} must say ORDER BY step")
    end = node["end"]
    if end not in _CURRENT_ENDS and not (end in _PRECEDING_ENDS and _positive(node["end_expr"])):
        raise BadExpression(f"the window of {name} looks at later steps")
    if name == "lag":
        offsets = [node.get("offset_expr"), *_arguments(node)[1:2]]
        if not all(_positive(offset) for offset in offsets if offset is not None):
            raise BadExpression("the second argument of lag must be a number, 0 or more")


def _arguments(node: dict[str, Any]) -> list[Any]:
    return [a["expression"] for a in node.get("arguments", ())]


def _positive(node: dict[str, Any] | None) -> bool:
    """Whether a node is a literal number, 0 or more."""
    literal = (node or {}).get("literal") or (node or {}).get("value") or {}
    text = str(literal.get("text", literal.get("value")))
    return text.replace(".", "", 1).isdecimal()
