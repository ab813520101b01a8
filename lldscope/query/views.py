"""The views over the tables of a run: their SQL, which views each reads, and which columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Container
from functools import cache
from importlib import resources
from typing import NamedTuple

from ..core.schema import SIGNALS, TABLES
from ..storage.part import STEP_TABLES

# Views in the order in which they build on each other. The results of some are stored per step
# (ROWS: name → view), which a live run only appends to; the last views read these.
SQL = resources.files(__package__) / "sql"
SIGNAL_TABLES = (*STEP_TABLES, "retention", "evals", "probes", "scalars")  # of signals
BEFORE_ROWS = (
    "group_totals",
    "response_class",
    "action_class",
    "action_totals",
    "response_likelihood",
    "response_delta",
    "action_ratios",
    "step_ratios",
    "step_action_ratios",
    "step_likelihood",
    "step_displaced",
    "step_totals",
    "update_totals",
    "step_conduct",
    "step_groups",
    "step_actions",
    "step_first_actions",
    "action_retention",
    "response_retention",
    "step_retention",
    "step_evals",
    "step_measured",
    "step_scalars",
    "step_signals",
    "step_action_signals",
    "step_action_retention",
    "step_probes",
)
ROWS = {
    "signal_rows": "step_signals",
    "action_signal_rows": "step_action_signals",
    "retention_signal_rows": "step_action_retention",
    "probe_signal_rows": "step_probes",
}
AFTER_ROWS = ("signals", "action_signals", "retention_signals", "probe_signals")
VIEW_NAMES = ("macros", *BEFORE_ROWS, *AFTER_ROWS)
# View → a table, and of actions columns of it: where none has a value, it has nothing to say.
SILENT_WITHOUT: dict[str, tuple[str, tuple[str, ...]]] = {
    "step_ratios": ("actions", ("logp_behaviour_sum", "logp_inner_sum")),
    "step_action_ratios": ("actions", ("logp_behaviour_sum", "logp_inner_sum")),
    "step_first_actions": ("actions", ("docs_hash",)),
    "step_retention": ("retention", ()),
    "step_evals": ("evals", ()),
}
_CLASS_VIEWS = ("action_class", "own_actions")  # what stands for actions in the SQL
_SUMS = re.compile(r"\b(?:finite_sum|finite_weight|counted|counted_true|total|total_difference)"
                   r"\(([\w\s,]+)\)")  # fmt: skip


class Words(NamedTuple):
    """What the SQL of views leaves open, because the engine of signals stores rows otherwise."""

    response: str = "rank, response_id"  # what tells responses of a step apart
    same_response: str = "step, rank, response_id"  # of a join
    actions: str = ""  # columns of action_class
    own_actions: str = "actions"  # rows of actions, each once
    class_join: str = "LEFT JOIN"  # of actions with the class of their response
    unmeasured: frozenset[str] = frozenset()  # columns of actions; sums of them are NULL
    silent: frozenset[str] = frozenset()  # views that have nothing to say


@cache
def _text(name: str) -> str:
    """The SQL of a view without comments; the registry fills in lists of signals."""
    sql = (SQL / f"{name}.sql").read_text(encoding="utf-8")
    listed = [c for c in SIGNALS.columns if c.name not in ("step", "tokens_seen", "n_nonfinite")]
    signals = ", ".join(c.name for c in listed)
    means = [f"coalesce(m.{c.name}, s.means['{c.name}']) AS {c.name}," for c in listed
             if c.kind == "float"]  # fmt: skip
    sql = sql.replace("{signals}", signals).replace("{means}", "\n        ".join(means))
    return re.sub(r"--.*", "", sql)


@cache
def view_sql(name: str, words: Words | None = None) -> str:
    """The SELECT behind a view, or the macros of all."""
    sql, words = _text(name), words or Words(actions=", ".join(class_columns()))
    if name in words.silent:
        return _nothing(sql)
    for word in ("response", "same_response", "actions", "own_actions", "class_join"):
        sql = sql.replace(f"{{{word}}}", getattr(words, word))
    if words.unmeasured:
        sql = _SUMS.sub(
            lambda m: "NULL::DOUBLE" if _identifiers(m[1]) & words.unmeasured else m[0], sql
        )
    return sql


def _nothing(sql: str) -> str:
    """The columns of a view over steps, and no rows: its sums take long to plan."""
    head, _, _ = sql.partition("\nFROM")
    keys = re.findall(r"^ {4}(\w+),$", head, re.MULTILINE)
    sums = (f"NULL AS {name}" for name in re.findall(r" AS (\w+),?$", head, re.MULTILINE))
    return f"SELECT {', '.join([*keys, *sums])} FROM action_totals WHERE false"


def statement(name: str, stored: Container[str] = (), words: Words | None = None) -> str:
    """The SELECT behind a view, together with the views that it reads; but for those `stored` as
    tables. DuckDB binds it once, where it would bind a view when it is made and when it is read."""
    needed = [
        f"{v} AS NOT MATERIALIZED ({view_sql(v, words)})" for v in _needed(name, stored, words)
    ]
    sql = view_sql(name, words)
    return f"WITH {', '.join(needed)} {sql}" if needed else sql


def _needed(name: str, stored: Container[str], words: Words | None) -> list[str]:
    """The views that a view reads, each after those that it reads itself."""
    found: dict[str, None] = {}
    for view in BEFORE_ROWS[: BEFORE_ROWS.index(name)]:
        if view in _identifiers(view_sql(name, words)) and view not in stored:
            found |= dict.fromkeys([*_needed(view, stored, words), view])
    return list(found)


@cache
def _identifiers(sql: str) -> set[str]:
    return set(re.findall(r"\w+", sql))


def columns_read(table: str) -> list[str]:
    """The columns of a table that signals are computed from."""
    return _columns(table, {table, *(_CLASS_VIEWS if table == "actions" else ())})


def class_columns() -> list[str]:
    """The columns of actions that `action_class` has, but for those that tell actions apart."""
    keys = ("step", "rank", "response_id")
    return [name for name in _columns("actions", _CLASS_VIEWS) if name not in keys]


def _columns(table: str, sources: Collection[str]) -> list[str]:
    """The columns of a table that are named in views that read one of the sources."""
    texts = (f"{_text(view)} {view_sql(view, Words())}" for view in BEFORE_ROWS)
    views = map(_identifiers, texts)
    words = set().union(*(w for w in views if not w.isdisjoint(sources)))
    return [name for name in TABLES[table].names if name in words]
