"""The signals of a range of steps, computed by a DuckDB that holds the rows of one range at a time.

Of few rows, as a live run adds them, planning costs more than reading: the views are used as they
are. Of many rows only columns are stored that were measured; a response is told by one integer, by
which DuckDB joins ten times as fast as by (step, rank, response_id); and each view is a table, as
one statement of them all takes several times as long to plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from ..core.schema import arrow_schema
from ..storage.part import Part
from .database import SQL_TYPES, create_empty, rows_of, standing
from .sandbox import confine, quote
from .signal_rows import stored_columns
from .views import (
    BEFORE_ROWS,
    ROWS,
    SIGNAL_TABLES,
    Words,
    class_columns,
    columns_read,
    statement,
    view_sql,
)

FEW_ROWS = 100_000  # of all tables together; up to here one thread is faster than several
# View → the table without which it is empty, and is not computed.
OPTIONAL = {"step_probes": "probes", "step_action_retention": "retention"}
# Views that several others read: materialized once per range, in this order.
SHARED = ("group_totals", "response_class", "action_class", "action_totals", "response_delta")
_PACKED = ("responses", "actions")  # told by one integer in ranges of many rows
_MOST_BITS = 2**24  # to see whether responses are told apart; DuckDB's index has 2**20 entries
_LAST = BEFORE_ROWS.index("step_measured")
# Of many rows all that `step_measured` joins.
_STEPS = tuple(v for v in BEFORE_ROWS[:_LAST] if v.startswith(("step_", "update_")))


class SignalEngine:
    """Computes signals of the run directory `run`.

    It is separate from the database for queries, so that its tables can be plain ones and its
    settings can follow the size of the range.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._db = duckdb.connect(":memory:")
        create_empty(self._db, SIGNAL_TABLES)
        confine(self._db, run)
        self._db.execute("SET preserve_insertion_order=false")  # no signal depends on it
        self._db.execute(view_sql("macros"))
        self._columns = {table: columns_read(table) for table in SIGNAL_TABLES}
        self._measured: list[str] = []  # columns of actions with any value in the range
        self._kinds: dict[str, str] = {}  # what was created: name → TABLE or VIEW
        self._filled: set[str] = set()  # tables that are not empty
        self._few = False

    def close(self) -> None:
        self._db.close()

    def signals(
        self, parts: Sequence[Part], starts: Mapping[int, int], first: int, last: int
    ) -> Iterator[tuple[str, Any]]:
        """For each of ROWS a pyarrow.Table of the steps from `first` to `last`, in their order.

        `parts` are the valid ones of the run, `starts` the first step of each attempt.
        """
        wanted = [p for p in parts if p.last_step >= first and p.first_step <= last]
        self._configure(sum(p.rows for p in wanted) <= FEW_ROWS)
        for table in SIGNAL_TABLES:
            paths = [quote(str(p.path(self._run))) for p in wanted if p.table == table]
            where = standing(table, starts) or "WHERE true"
            self._read(table, paths, f"{where} AND step BETWEEN {first} AND {last}")
            if table == "actions" and not self._few:
                self._measured = self._measured_in(paths)
        stored: tuple[str, ...] = SHARED
        words, width = None, 0
        if not self._few:
            stored = (*SHARED, *_STEPS)
            words, width = self._pack(first, last)
        for name in stored:
            if name == "action_class" and words is not None:
                words = self._store_classes(words, width, stored)
            else:
                self._create(name, statement(name, stored, words))
        for rows, view in ROWS.items():
            if view == "step_signals" and "scalars" not in self._filled:
                view = "step_measured"  # no imported means to fall back on
            if view not in OPTIONAL or OPTIONAL[view] in self._filled:
                yield rows, self._ask(rows, statement(view, stored, words))
        if not self._few:
            self._drop()

    def _configure(self, few: bool) -> None:
        """Choose the settings for a range of few rows, or of many."""
        if few != self._few:
            self._few = few
            self._drop()
            self._db.execute("SET threads=1" if few else "RESET threads")
            self._db.execute(f"PRAGMA {'disable' if few else 'enable'}_optimizer")

    def _read(self, table: str, paths: Sequence[str], where: str) -> None:
        """Create a table with the rows of some files that match `where`."""
        if not paths and table in self._kinds and table not in self._filled:
            return  # it is empty already
        if table == "evals":  # `standing` looks there whether an evaluation was repeated
            self._create("all_evals", rows_of(table, paths))
        rows = f"{rows_of(table, paths, self._columns[table])} {where if paths else ''}"
        if table in _PACKED and not self._few:
            self._create(f"read_{table}", rows, "VIEW")
        else:
            self._create(table, rows)
        self._filled = self._filled | {table} if paths else self._filled - {table}

    def _pack(self, first: int, last: int) -> tuple[Words, int]:
        """Create `responses`, and a view `actions`, with the column `response`: one integer for
        each response of the range. Returns how views read it, and how many integers there are."""
        rows = " UNION ALL ".join(f"SELECT rank, response_id FROM read_{t}" for t in _PACKED)
        ends = "coalesce(min(rank), 0), coalesce(max(rank), 0)"
        ends = f"{ends}, {ends.replace('rank', 'response_id')}"
        rank, last_rank, response, last_response = self._row(f"SELECT {ends} FROM ({rows})")
        ranks, responses = last_rank - rank + 1, last_response - response + 1
        width = (last - first + 1) * ranks * responses
        kind = "BIGINT" if width < 2**63 else "HUGEINT"
        short = "INTEGER" if width < 2**31 else kind
        key = (
            f"(((step::{kind} - ({first})) * {ranks} + rank::{kind} - ({rank})) * {responses}"
            f" + response_id::{kind} - ({response}))::{short} AS response"
        )
        self._create("responses", f"SELECT *, {key} FROM read_responses")
        columns = [*self._measured, *self._nulls(self._columns["actions"])]
        self._create("actions", f"SELECT {', '.join(columns)}, {key} FROM read_actions", "VIEW")
        return Words("response", "response"), width

    def _measured_in(self, paths: Sequence[str]) -> list[str]:
        """The columns of actions that have a value, as the files' statistics say."""
        names = self._columns["actions"]
        if not paths:
            return names
        empty = self._db.execute(
            "SELECT path_in_schema, bool_and(coalesce(stats_null_count = num_values, false)) "
            f"FROM parquet_metadata([{', '.join(paths)}]) GROUP BY path_in_schema"
        )
        found = dict(empty.fetchall())
        return [name for name in names if not found.get(name, True)]

    def _nulls(self, names: Sequence[str]) -> list[str]:
        """Those of the columns of actions that were not measured, as SQL."""
        fields = arrow_schema("actions")
        return [
            f"NULL::{SQL_TYPES[fields.field(name).type]} AS {name}"
            for name in names
            if name not in self._measured
        ]

    def _store_classes(self, words: Words, width: int, stored: Sequence[str]) -> Words:
        """Create `action_class` with what was measured; returns how other views read it.

        DuckDB uses `response` as an index in inner joins only: where every action has a response,
        and none has two, that gives the same.
        """
        columns = class_columns()
        words = words._replace(
            actions=", ".join(n for n in columns if n in self._measured),
            unmeasured=frozenset(columns) - set(self._measured),
        )
        different = f"bit_count(bitstring_agg(response, 0, {width}))"
        unique = (
            width <= _MOST_BITS
            and self._row(f"SELECT coalesce({different}, 0) = count(*) FROM responses")[0]
        )
        if unique:
            words = words._replace(own_actions="action_class", class_join="JOIN")
        self._create("classified", statement("action_class", stored, words))
        same = "(SELECT count(*) FROM classified) = (SELECT count(*) FROM read_actions)"
        if unique and not self._row(f"SELECT {same}")[0]:
            words = words._replace(class_join="LEFT JOIN")
            self._create("classified", statement("action_class", stored, words))
        rows = f"SELECT {', '.join(['*', *self._nulls(columns)])} FROM classified"
        self._create("action_class", rows, "VIEW")
        return words

    def _ask(self, rows: str, sql: str) -> Any:
        """One of ROWS, in the order of steps and with the types that are stored."""
        columns = (f"{n}::{SQL_TYPES[kind]} AS {n}" for n, kind in stored_columns(rows))
        self._create(rows, f"SELECT {', '.join(columns)} FROM ({sql})")
        return self._db.sql(f"FROM {rows} ORDER BY step").to_arrow_table()

    def _row(self, sql: str) -> tuple[Any, ...]:
        return self._db.execute(sql).fetchall()[0]

    def _create(self, name: str, sql: str, kind: str = "TABLE") -> None:
        self._db.execute(f"CREATE OR REPLACE {kind} {name} AS {sql}")
        self._kinds[name] = kind

    def _drop(self) -> None:
        """Drop all that was created, to release its memory."""
        for name, kind in self._kinds.items():
            self._db.execute(f"DROP {kind} {name}")
        self._kinds.clear()
        self._filled.clear()
