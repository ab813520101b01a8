"""Open runs for reading: Parquet parts → DuckDB views → pandas.

A `Run` holds an in-memory DuckDB connection whose views read the run's sealed parts. `refresh()`
takes up what was sealed since, and computes the signals of the new steps only. Reading never
writes into the run directory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from . import store
from .errors import RunNotFound, UsageError
from .schema import SIGNALS, TABLES, arrow_schema

if TYPE_CHECKING:
    import pandas as pd

    from .assess import Assessment
    from .evidence import Restarts
    from .rules import Rule

_T = TypeVar("_T")

HELD_ROWS = 100_000  # new rows, at most, that are held in memory while signals are computed

# Views in the order in which they build on each other. What they give per step is kept in tables
# (ROWS: table → view), to which a live run only adds; the last views read those.
_STEP_TABLES = ("steps", "updates", "responses", "actions")
_SIGNAL_TABLES = (*_STEP_TABLES, "probes")
_BEFORE_ROWS = (
    "group_totals",
    "response_class",
    "response_likelihood",
    "step_likelihood",
    "step_displaced",
    "step_totals",
    "update_totals",
    "step_conduct",
    "step_groups",
    "step_actions",
    "step_first_actions",
    "step_signals",
    "step_action_signals",
    "step_probes",
)
_ROWS = {
    "signal_rows": "step_signals",
    "action_signal_rows": "step_action_signals",
    "probe_signal_rows": "step_probes",
}
_AFTER_ROWS = ("signals", "action_signals", "probe_signals")


@cache
def view_sql(name: str) -> str:
    """The SELECT behind a view, or the macros that they use."""
    return resources.files(__package__).joinpath(f"sql/{name}.sql").read_text(encoding="utf-8")


def open_run(path: str | Path) -> Run:
    """Open a run directory; raises RunNotFound, NewerSchema or LldscopeError with the reason."""
    return Run(Path(path))


def find_runs(root: str | Path) -> list[Path]:
    """Run directories under a root, by name, at most two levels down; the root itself if it is one.

    Raises RunNotFound if the root does not exist.
    """
    root = Path(root)
    if not root.is_dir():
        raise RunNotFound(f"There is no folder {root}.")
    if (root / store.RUN_FILE).is_file():
        return [root]
    found = [p.parent for depth in ("*", "*/*") for p in root.glob(f"{depth}/{store.RUN_FILE}")]
    return sorted(found)


class Run:
    """One run, open for reading. Methods may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.info = store.read_run(self.path)
        self.damaged: dict[str, str] = {}  # part → what is wrong with it; left out of every query
        self._lock = threading.RLock()
        self._parts: list[store.Part] = []
        self._defined_from: int | None = None  # the first step that the tables show
        self._owed: int | None = None  # the first step whose signals are not computed yet
        self._checked: set[tuple[str, str]] = set()
        self._assessed: Assessment | None = None
        self._assessed_for: tuple[float, tuple[Rule, ...]] | None = None
        self._db = _connect(self.path)
        self._define_views()
        self.refresh()

    @property
    def name(self) -> str:
        return str(self.info.get("name") or self.path.name)

    def close(self) -> None:
        """Let go of the database; the run cannot be asked afterwards."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- asking -----------------------------------------------------------------------------------

    def sql(self, query: str, parameters: Sequence[Any] | None = None) -> pd.DataFrame:
        """Run one SELECT over the tables and views of the run.

        Read-only: a statement that is not a query, or one that reaches outside the run directory,
        raises UsageError.
        """
        try:
            statements = duckdb.extract_statements(query)
        except duckdb.Error as error:
            raise UsageError(f"The SQL cannot be read. {error}") from None
        kinds = {s.type for s in statements}
        if len(statements) != 1 or kinds - _READING:
            raise UsageError(
                "Give exactly one SELECT (or EXPLAIN, DESCRIBE, SHOW): query only reads."
            )
        try:
            with self._lock:
                return self._guarded(lambda: self._whole_frame(query, parameters))
        except duckdb.Error as error:
            raise UsageError(str(error)) from None

    def signals(self) -> pd.DataFrame:
        """One row per step; columns, units and meanings are those of `lldscope.schema.SIGNALS`."""
        return self._frame("SELECT * FROM signals")[list(SIGNALS.names)]

    def action_signals(self) -> pd.DataFrame:
        """One row per (step, action_index, correct); see `lldscope.schema.ACTION_SIGNALS`."""
        return self._frame("SELECT * FROM action_signals")

    def probe_signals(self) -> pd.DataFrame:
        """One row per (step, probe); see `lldscope.schema.PROBE_SIGNALS`."""
        return self._frame("SELECT * FROM probe_signals")

    def phases(self) -> pd.DataFrame:
        """Causal phases as spans: phase, start_step, end_step."""
        return self.assess().phase_spans()

    def alerts(self) -> pd.DataFrame:
        """Every alarm that ever fired; `step` is where it first did."""
        return self.assess().alert_frame()

    def assess(self, arl: float | None = None, rules: Sequence[Rule] | None = None) -> Assessment:
        """Signals, phases, alarms and verdict of the run as of its last row; see `assess`.

        `rules` are those that raise alarms; by default the built-in ones.
        """
        from .assess import DEFAULT_ARL, assess
        from .rules import RULES

        with self._lock:
            wanted = (arl or DEFAULT_ARL, tuple(RULES if rules is None else rules))
            if self._assessed is None or self._assessed_for != wanted:
                self._assessed = assess(self.signals(), *wanted, self._restarts())
                self._assessed_for = wanted
            return self._assessed

    def _restarts(self) -> Restarts:
        """The steps at which the run is declared to have changed."""
        from .evidence import restarts_of

        starts = dict(self._execute("SELECT attempt, first_step FROM attempts"))
        return restarts_of(self.events(), starts)

    def events(self) -> list[dict[str, Any]]:
        """Events in the order they were written."""
        return [e for e in store.read_lines(self.path / store.EVENTS_FILE) if isinstance(e, dict)]

    def heartbeats(self) -> dict[int, dict[str, Any]]:
        """The last sign of life of each rank."""
        return store.read_heartbeats(self.path)

    # -- keeping up -------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take up what was sealed since the last look. True if any row or the status changed."""
        with self._lock:
            info = store.read_run(self.path)
            manifest = store.read_manifest(self.path)
            changed = info != self.info
            if info.get("id") != self.info.get("id"):
                self._forget()  # another run lies here now
            self.info = info
            self.damaged |= dict.fromkeys(manifest.bad_lines, "the line cannot be read")
            if manifest.parts != self._parts:
                self._adopt(manifest.parts)
                changed = True
            if self._owed is not None:
                self._guarded(self._recompute)
                changed = True
            return changed

    def _forget(self) -> None:
        self._parts, self._owed = [], None
        self.damaged.clear()
        self._checked.clear()
        for rows in _ROWS:
            self._execute(f"DELETE FROM {rows}")

    def _adopt(self, parts: list[store.Part]) -> None:
        """Take the parts as they are now, and note from which step on signals are owed."""
        known = {(p.table, p.file) for p in self._parts}
        seen = self._last_seen(self._parts)
        # A merged part holds rows that were counted before; only new rows need new signals.
        since = [
            p.first_step
            for p in parts
            if (p.table, p.file) not in known
            and p.last_step > seen.get((p.table, p.attempt, p.rank), -1)
        ]
        if since:
            self._owed = min(since) if self._owed is None else min(*since, self._owed)
        self._parts = parts
        self._assessed = None
        self._defined_from = None

    @staticmethod
    def _last_seen(parts: list[store.Part]) -> dict[tuple[str, int, int], int]:
        """Last step seen per (table, attempt, rank)."""
        seen: dict[tuple[str, int, int], int] = {}
        for p in parts:
            key = (p.table, p.attempt, p.rank)
            seen[key] = max(seen.get(key, -1), p.last_step)
        return seen

    def _recompute(self) -> None:
        """Signals of the steps that are owed, from the parts that hold such steps."""
        first_step = self._owed or 0
        self._define_tables(first_step)
        for rows, view in _ROWS.items():
            self._execute(f"DELETE FROM {rows} WHERE step >= ?", [first_step])
            self._execute(
                f"INSERT INTO {rows} BY NAME SELECT * FROM {view} WHERE step >= ?", [first_step]
            )
        self._owed = None

    # -- tables and views -------------------------------------------------------------------------

    def _define_tables(self, first_step: int = 0) -> None:
        """Point the tables at the sound parts that hold `first_step` or later steps.

        What a live run adds is held in memory: each view that reads a table would open its files
        anew. All of a run is too much for that.
        """
        if self._defined_from == first_step:
            return
        good = [p for p in self._parts if self._sound(p)]
        standing = self._define_attempts(good)
        wanted = [p for p in good if p.last_step >= first_step]
        held = first_step > 0 and sum(p.rows for p in wanted) <= HELD_ROWS
        for table in _SIGNAL_TABLES if held else TABLES:
            paths = [_quote(str(p.path(self.path))) for p in wanted if p.table == table]
            # The empty table has the columns that the parts were written without, too.
            parts = f"UNION ALL BY NAME FROM read_parquet([{', '.join(paths)}], union_by_name=true)"
            source = f"FROM empty_{table} {parts if paths else ''}"
            if held:
                self._execute(
                    f"CREATE OR REPLACE TABLE held_{table} AS FROM ({source}) "
                    f"WHERE step >= {first_step}"
                )
                source = f"FROM held_{table}"
            self._execute(f"CREATE OR REPLACE VIEW all_{table} AS {source}")
            self._execute(f"CREATE OR REPLACE VIEW {table} AS FROM all_{table} {standing}")
        self._defined_from = first_step

    def _define_attempts(self, parts: list[store.Part]) -> str:
        """`attempts`: first and last step of each start of the run, from the manifests alone. A
        step that was begun counts: its rows must not be mixed with those of the attempt before.

        Returns the clause that keeps the rows that stand: no later attempt began at their step or
        before it.
        """
        spans: dict[int, tuple[int, int]] = {}
        for p in (p for p in parts if p.table in _STEP_TABLES):
            first, last = spans.get(p.attempt, (p.first_step, p.last_step))
            spans[p.attempt] = (min(first, p.first_step), max(last, p.last_step))
        rows = ", ".join(f"({a}, {first}, {last})" for a, (first, last) in sorted(spans.items()))
        self._execute("DELETE FROM attempts")
        if rows:
            self._execute(f"INSERT INTO attempts VALUES {rows}")
        gone = [f"(attempt < {a} AND step >= {first})" for a, (first, _) in spans.items()]
        return f"WHERE NOT ({' OR '.join(gone)})" if len(gone) > 1 else ""

    def _define_views(self) -> None:
        """Everything that does not depend on which parts there are; once per connection."""
        self._execute("CREATE TABLE attempts (attempt INT, first_step INT, last_step INT)")
        self._define_tables()
        self._execute(view_sql("macros"))
        for name in _BEFORE_ROWS:
            self._execute(f"CREATE VIEW {name} AS {view_sql(name)}")
        for rows, view in _ROWS.items():
            self._execute(f"CREATE TABLE {rows} AS FROM {view} WHERE false")
        for name in _AFTER_ROWS:
            self._execute(f"CREATE VIEW {name} AS {view_sql(name)}")

    # -- damage -----------------------------------------------------------------------------------

    def _sound(self, part: store.Part) -> bool:
        key = (part.table, part.file)
        name = "/".join(key)
        if key not in self._checked and name not in self.damaged:
            if wrong := store.damage(self.path, part):
                self.damaged[name] = wrong
            self._checked.add(key)
        return name not in self.damaged

    def _guarded(self, action: Callable[[], _T]) -> _T:
        """Do something that reads parts; if one cannot be read, name it, leave it out, do it again.

        Parts that were merged away meanwhile are taken from the manifest anew.
        """
        while True:
            try:
                return action()
            except duckdb.Error:
                if not self._find_damage():
                    raise

    def _find_damage(self) -> bool:
        """Look for unreadable parts; True if there are new ones or the manifest has changed."""
        parts = store.read_manifest(self.path).parts
        moved, before = parts != self._parts, len(self.damaged)
        self._adopt(parts)
        for part in (p for p in parts if self._sound(p)):
            largest = ", ".join(f"max({name})" for name in TABLES[part.table].names)
            file = _quote(str(part.path(self.path)))
            try:
                self._execute(f"SELECT {largest} FROM read_parquet({file})")
            except duckdb.Error as error:
                self.damaged[f"{part.table}/{part.file}"] = str(error).split("\n")[0]
        return moved or len(self.damaged) > before

    # -- DuckDB -----------------------------------------------------------------------------------

    def _execute(self, sql: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql, parameters).fetchall()

    def _whole_frame(self, sql: str, parameters: Sequence[Any] | None) -> pd.DataFrame:
        """A query that may want any part of the run."""
        self._define_tables()
        return self._frame(sql, parameters)

    def _frame(self, sql: str, parameters: Sequence[Any] | None = None) -> pd.DataFrame:
        with self._lock:
            return self._db.execute(sql, parameters).df()


_READING = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}


def _connect(run: Path) -> duckdb.DuckDBPyConnection:
    """An in-memory database that can read the run's directory and nothing else."""
    db = duckdb.connect(":memory:")
    for table in TABLES:
        empty = arrow_schema(table).empty_table()
        db.register("empty", empty)
        db.execute(f"CREATE TABLE empty_{table} AS SELECT * FROM empty")
        db.unregister("empty")
    for setting in (
        "autoinstall_known_extensions=false",
        "autoload_known_extensions=false",
        f"allowed_directories=[{_quote(str(run))}]",
        "enable_external_access=false",
        "lock_configuration=true",
    ):
        db.execute(f"SET {setting}")
    return db


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
