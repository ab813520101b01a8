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

_T = TypeVar("_T")

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
            with self._lock:
                return self._guarded(lambda: self._frame(query, parameters))
        except duckdb.Error as error:
            raise UsageError(str(error)) from None

    def signals(self) -> pd.DataFrame:
        """One row per step; columns, units and meanings are those of `lldscope.schema.SIGNALS`."""
        return self._frame("SELECT * FROM signals")[list(SIGNALS.names)]

    def action_signals(self) -> pd.DataFrame:
        """One row per (step, action_index, correct); see `lldscope.schema.ACTION_SIGNALS`."""
        with self._lock:
            return self._guarded(lambda: self._frame("SELECT * FROM action_signals"))

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
        seen = self._last_seen(self._parts or [])
        # A merged part holds rows that were counted before; only new rows need new signals.
        since = [
            p.first_step
            for p in parts
            if (p.table, p.file) not in known
            and p.last_step > seen.get((p.table, p.attempt, p.rank), -1)
        ]
        self._parts = parts
        self._assessed = None
        self._guarded(self._define_tables)
        if since:
            self._guarded(lambda: self._recompute(min(since)))

    @staticmethod
    def _last_seen(parts: list[store.Part]) -> dict[tuple[str, int, int], int]:
        """Last step seen per (table, attempt, rank)."""
        seen: dict[tuple[str, int, int], int] = {}
        for p in parts:
            key = (p.table, p.attempt, p.rank)
            seen[key] = max(seen.get(key, -1), p.last_step)
        return seen

    def _recompute(self, first_step: int) -> None:
        """Signals of `first_step` and later steps, anew."""
        self._execute("DELETE FROM signal_rows WHERE step >= ?", [first_step])
        self._execute(
            "INSERT INTO signal_rows BY NAME SELECT * FROM step_signals WHERE step >= ?",
            [first_step],
        )

    # -- tables and views -------------------------------------------------------------------------

    def _define_tables(self) -> None:
        good = [p for p in self._parts or () if self._sound(p)]
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
                self._define_tables()

    def _find_damage(self) -> bool:
        """Look for unreadable parts; True if there are new ones or the manifest has changed."""
        parts = store.read_manifest(self.path).parts
        moved, before = parts != self._parts, len(self.damaged)
        self._parts = parts
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
