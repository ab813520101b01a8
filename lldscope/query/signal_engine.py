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
import pyarrow as pa

from ..core.schema import arrow_schema
from ..storage.part import Part
from .database import SQL_TYPES, create_empty, rows_of, standing
from .sandbox import confine, quote
from .signal_rows import stored_columns
from .views import (
    BEFORE_ROWS,
    ROWS,
    SIGNAL_TABLES,
    SILENT_WITHOUT,
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
_PARQUET = {
    pa.int32(): "INT32",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "BYTE_ARRAY",
}
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
        # Of _PACKED: columns with any value in the range.
        self._measured: dict[str, list[str]] = {}
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
        stored: tuple[str, ...] = SHARED
        words, width = Words(actions=", ".join(class_columns()), silent=self._silent()), 0
        if not self._few:
            stored = (*SHARED, *_STEPS)
            words, width = self._pack(words, first, last)
        for name in stored:
            if name == "action_class" and not self._few:
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
        names = self._columns[table]
        rows = rows_of(table, paths, names)
        if table in _PACKED:
            self._measured[table] = names
            if paths and not self._few:  # of few rows, asking takes longer than it saves
                self._measured[table], as_declared = self._look_at(table, paths)
                if as_declared:
                    rows = self._straight(table, paths)
        if paths:
            rows = f"{rows} {where}"
        if table in _PACKED and not self._few:
            self._create(f"read_{table}", rows, "VIEW")
        else:
            self._create(table, rows)
        self._filled = self._filled | {table} if paths else self._filled - {table}

    def _pack(self, words: Words, first: int, last: int) -> tuple[Words, int]:
        """Create views `responses` and `actions` with the column `response`: one integer for each
        response of the range. Returns how views read it, and how many integers there are."""
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
        told = {t: ", ".join([*names, key]) for t, names in self._measured.items()}
        self._create("told_responses", f"SELECT {told['responses']} FROM read_responses")
        self._create("responses", self._with_nulls("responses", "told_responses"), "VIEW")
        self._create("told_actions", f"SELECT {told['actions']} FROM read_actions", "VIEW")
        self._create("actions", self._with_nulls("actions", "told_actions"), "VIEW")
        return words._replace(response="response", same_response="response"), width

    def _silent(self) -> frozenset[str]:
        """The views that have nothing to say of the range."""
        measured = set(self._measured["actions"])
        if self._few:  # counting takes less time than planning views that have nothing to say
            names = sorted({name for _, columns in SILENT_WITHOUT.values() for name in columns})
            counts = self._row(f"SELECT {', '.join(f'count({n})' for n in names)} FROM actions")
            measured = {name for name, count in zip(names, counts, strict=True) if count}
        return frozenset(
            view
            for view, (table, columns) in SILENT_WITHOUT.items()
            if table not in self._filled or (columns and not measured.intersection(columns))
        )

    def _look_at(self, table: str, paths: Sequence[str]) -> tuple[list[str], bool]:
        """The columns of a table that have a value, as the files' statistics say, and whether the
        files hold them in the types that the registry declares."""
        found = self._db.execute(
            "SELECT path_in_schema, bool_and(coalesce(stats_null_count = num_values, false)),"
            f" list(DISTINCT type) FROM parquet_metadata([{', '.join(paths)}]) GROUP BY ALL"
        ).fetchall()
        types = {name: types for name, empty, types in found if not empty}
        fields = arrow_schema(table)
        measured = [name for name in self._columns[table] if name in types]
        return measured, all(types[n] == [_PARQUET[fields.field(n).type]] for n in measured)

    def _straight(self, table: str, paths: Sequence[str]) -> str:
        """The measured columns of a table, from its files alone. Through a union with an empty
        table DuckDB loses their least and greatest values, and a join its index."""
        fields = arrow_schema(table)
        columns = (f"{n}::{SQL_TYPES[fields.field(n).type]} AS {n}" for n in self._measured[table])
        files = f"read_parquet([{', '.join(paths)}], union_by_name=true)"
        return f"SELECT {', '.join(columns)} FROM {files}"

    def _with_nulls(self, table: str, source: str, but: Sequence[str] = ()) -> str:
        """A source with those columns of a table that were not measured, all of them NULL."""
        fields = arrow_schema(table)
        nulls = (
            f"NULL::{SQL_TYPES[fields.field(name).type]} AS {name}"
            for name in self._columns[table]
            if name not in self._measured[table] and name not in but
        )
        return f"SELECT {', '.join(['*', *nulls])} FROM {source}"

    def _store_classes(self, words: Words, width: int, stored: Sequence[str]) -> Words:
        """Create `action_class` with what was measured; returns how other views read it.

        DuckDB uses `response` as an index in inner joins only: where every action has a response,
        and none has two, that gives the same.
        """
        columns = class_columns()
        words = words._replace(
            actions=", ".join(n for n in columns if n in self._measured["actions"]),
            unmeasured=frozenset(columns) - set(self._measured["actions"]),
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
        others = [n for n in self._columns["actions"] if n not in columns]
        self._create("action_class", self._with_nulls("actions", "classified", others), "VIEW")
        return words

    def _ask(self, rows: str, sql: str) -> Any:
        """One of ROWS, in the order of steps and with the types that are stored."""
        columns = (f"{n}::{SQL_TYPES[kind]} AS {n}" for n, kind in stored_columns(rows))
        sql = f"SELECT {', '.join(columns)} FROM ({sql})"
        if rows == "signal_rows" and not self._few:  # joins a row per step of tables, all stored
            self._db.execute("PRAGMA disable_optimizer")
            try:
                self._create(rows, sql)
            finally:
                self._db.execute("PRAGMA enable_optimizer")
        else:
            self._create(rows, sql)
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
