"""Open runs for reading: Parquet parts → DuckDB views → pandas.

A `Run` holds an in-memory DuckDB connection whose views read the run's sealed parts. `refresh()`
takes up what was sealed since, and computes the signals of the new steps only. Reading never
writes into the run directory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from . import store
from .errors import LldscopeError, RunNotFound, UsageError
from .schema import SIGNALS, TABLES, arrow_schema

if TYPE_CHECKING:
    import pandas as pd

    from .assess import Assessment

# Views in the order in which they build on each other; `signal_rows` is a table, filled in between.
_BEFORE_ROWS = (
    "group_totals",
    "response_likelihood",
    "step_likelihood",
    "step_totals",
    "update_totals",
    "step_conduct",
    "step_groups",
    "step_actions",
    "step_first_actions",
    "step_signals",
)
_AFTER_ROWS = ("signals", "action_signals")


@cache
def view_sql(name: str) -> str:
    """The SELECT behind a view."""
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
        self._parts: list[store.Part] | None = None
        self._checked: set[tuple[str, str]] = set()
        self._assessed: Assessment | None = None
        self._db = _connect(self.path)
        self.refresh()

    @property
    def name(self) -> str:
        return str(self.info.get("name") or self.path.name)

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
            return self._frame(query, parameters)
        except duckdb.Error as error:
            raise UsageError(str(error)) from None

    def signals(self) -> pd.DataFrame:
        """One row per step; columns, units and meanings are those of `lldscope.schema.SIGNALS`."""
        return self._frame("SELECT * FROM signals")[list(SIGNALS.names)]

    def action_signals(self) -> pd.DataFrame:
        """One row per (step, action_index, correct); see `lldscope.schema.ACTION_SIGNALS`."""
        return self._frame("SELECT * FROM action_signals")

    def phases(self) -> pd.DataFrame:
        """Causal phases as spans: phase, start_step, end_step."""
        return self.assess().phase_spans()

    def alerts(self) -> pd.DataFrame:
        """Every alarm that ever fired; `step` is where it first did."""
        return self.assess().alert_frame()

    def assess(self, arl: float | None = None) -> Assessment:
        """Signals, phases, alarms and verdict of the run as of its last row; see `assess`."""
        from .assess import DEFAULT_ARL, assess

        with self._lock:
            wanted = arl or DEFAULT_ARL
            if self._assessed is None or self._assessed.arl != wanted:
                self._assessed = assess(self.signals(), arl=wanted)
            return self._assessed

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
            self.info = info
            self.damaged |= dict.fromkeys(manifest.bad_lines, "the line cannot be read")
            if manifest.parts == self._parts:
                return changed
            self._take_up(manifest.parts)
            return True

    def _take_up(self, parts: list[store.Part]) -> None:
        known = {(p.table, p.file) for p in self._parts or ()}
        fresh = [p for p in parts if (p.table, p.file) not in known]
        known_rows = self._covered(self._parts or [])
        # A merged part holds rows that were counted before; only new rows need new signals.
        since = [p.first_step for p in fresh if not self._within(p, known_rows)]
        self._parts = parts
        self._assessed = None
        self._define_tables(parts)
        if since:
            self._recompute(min(since))

    @staticmethod
    def _covered(parts: list[store.Part]) -> dict[tuple[str, int, int], tuple[int, int]]:
        """Rows and last step seen per (table, attempt, rank)."""
        seen: dict[tuple[str, int, int], tuple[int, int]] = {}
        for p in parts:
            rows, last = seen.get((p.table, p.attempt, p.rank), (0, -1))
            seen[p.table, p.attempt, p.rank] = (rows + p.rows, max(last, p.last_step))
        return seen

    @staticmethod
    def _within(part: store.Part, seen: dict[tuple[str, int, int], tuple[int, int]]) -> bool:
        _, last = seen.get((part.table, part.attempt, part.rank), (0, -1))
        return part.last_step <= last

    def _recompute(self, first_step: int) -> None:
        """Signals of `first_step` and later; damaged parts are named and left out."""
        for _ in range(len(self._parts or ()) + 1):
            try:
                self._execute("DELETE FROM signal_rows WHERE step >= ?", [first_step])
                self._execute(
                    "INSERT INTO signal_rows BY NAME SELECT * FROM step_signals WHERE step >= ?",
                    [first_step],
                )
                return
            except duckdb.Error:
                if not self._quarantine():
                    raise

    # -- tables and views -------------------------------------------------------------------------

    def _define_tables(self, parts: list[store.Part]) -> None:
        good = [p for p in parts if self._sound(p)]
        self._define_attempts(good)
        for table in TABLES:
            files = [str(p.path(self.path)) for p in good if p.table == table]
            source = (
                f"SELECT * FROM read_parquet([{', '.join(map(_quote, files))}], union_by_name=true)"
                if files
                else f"SELECT * FROM empty_{table}"
            )
            self._execute(f"CREATE OR REPLACE VIEW all_{table} AS {source}")
            self._execute(
                f"CREATE OR REPLACE VIEW {table} AS SELECT * FROM all_{table} t "
                "WHERE NOT EXISTS (FROM attempts a WHERE a.attempt > t.attempt "
                "AND a.first_step <= t.step)"
                if self._several_attempts
                else f"CREATE OR REPLACE VIEW {table} AS SELECT * FROM all_{table}"
            )
        self._define_views()

    def _define_attempts(self, parts: list[store.Part]) -> None:
        """`attempts`: first and last step of each start of the run, from the manifests alone."""
        spans: dict[int, tuple[int, int]] = {}
        for p in (p for p in parts if p.table == "steps"):
            first, last = spans.get(p.attempt, (p.first_step, p.last_step))
            spans[p.attempt] = (min(first, p.first_step), max(last, p.last_step))
        rows = ", ".join(f"({a}, {first}, {last})" for a, (first, last) in sorted(spans.items()))
        self._execute(
            "CREATE OR REPLACE TABLE attempts (attempt INT, first_step INT, last_step INT)"
        )
        if rows:
            self._execute(f"INSERT INTO attempts VALUES {rows}")
        self._several_attempts = len(spans) > 1

    def _define_views(self) -> None:
        for name in _BEFORE_ROWS:
            self._execute(f"CREATE OR REPLACE VIEW {name} AS {view_sql(name)}")
        self._execute(
            "CREATE TABLE IF NOT EXISTS signal_rows AS SELECT * FROM step_signals WHERE false"
        )
        for name in _AFTER_ROWS:
            self._execute(f"CREATE OR REPLACE VIEW {name} AS {view_sql(name)}")

    # -- damage -----------------------------------------------------------------------------------

    def _sound(self, part: store.Part) -> bool:
        key = (part.table, part.file)
        name = "/".join(key)
        if key not in self._checked and name not in self.damaged:
            if wrong := store.damage(self.path, part):
                self.damaged[name] = wrong
            self._checked.add(key)
        return name not in self.damaged

    def _quarantine(self) -> bool:
        """After a failed query: name the parts that cannot be read; True if there are new ones."""
        manifest = store.read_manifest(self.path)  # parts may have been merged away meanwhile
        moved = manifest.parts != self._parts
        self._parts = manifest.parts
        before = len(self.damaged)
        for part in (p for p in manifest.parts if self._sound(p)):
            try:
                self._execute(
                    f"SELECT count(*), {', '.join(f'max({c})' for c in TABLES[part.table].names)} "
                    f"FROM read_parquet({_quote(str(part.path(self.path)))})"
                )
            except duckdb.Error as error:
                self.damaged[f"{part.table}/{part.file}"] = str(error).split("\n")[0]
        self._define_tables(manifest.parts)
        return moved or len(self.damaged) > before

    # -- DuckDB -----------------------------------------------------------------------------------

    def _execute(self, sql: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql, parameters).fetchall()

    def _frame(self, sql: str, parameters: Sequence[Any] | None = None) -> pd.DataFrame:
        with self._lock:
            try:
                return self._db.execute(sql, parameters).df()
            except duckdb.IOException:
                if not self._quarantine():
                    raise
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


def age_of(run: Run, now: float | None = None) -> float | None:
    """Seconds since the run's last step ended; None before its first."""
    rows = run._execute("SELECT max(time) FROM signal_rows")
    last = rows[0][0] if rows else None
    return None if last is None else (now or time.time()) - last


__all__ = ["LldscopeError", "Run", "age_of", "find_runs", "open_run", "view_sql"]
