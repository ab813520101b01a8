"""A run, open for reading: Parquet parts → DuckDB views → pandas.

`refresh()` takes up what was sealed since, and computes the signals of the new steps only. Reading
never writes into the run directory. Whatever cannot be read is named in `Run.damaged` and left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from .core.errors import LldscopeError, UsageError
from .core.schema import SIGNALS, TABLES, VIEWS
from .query.contents import Contents
from .query.sandbox import SECONDS, Answer, bounded, frame, insist_on_select, rows
from .storage import files, heartbeats, layout

if TYPE_CHECKING:
    import pandas as pd

    from .alarms.assess import Assessment
    from .alarms.registry import Rule
    from .query.remote import RemoteCopy
    from .query.signal_cache import SignalCache
    from .signals.evidence import Restarts

_T = TypeVar("_T")


class Run:
    """One run, open for reading. Methods may be called from several threads."""

    def __init__(self, place: Path | RemoteCopy, kept: SignalCache | None = None) -> None:
        self._mirror = None if isinstance(place, Path) else place
        self.path = (place if isinstance(place, Path) else place.path).resolve()
        where = self.path if isinstance(place, Path) else place.url
        self.place, self._folder = str(where), where.name  # for people
        self._lock = threading.RLock()
        self._bad_files: dict[str, str] = {}  # as of the last look
        self._bad_beats: dict[str, str] = {}
        self._events: list[dict[str, Any]] = []
        self._assessed: Assessment | None = None
        self._assessed_for: tuple[float, tuple[Rule, ...], int] | None = None
        try:
            self._sync()
            self.info = self._look()
            self._contents = Contents(self.path, self.info.get("id"), self._mirror, kept)
        except BaseException:
            self._let_go()
            raise
        self.refresh()

    @property
    def name(self) -> str:
        return str(self.info.get("name") or self._folder)

    @property
    def damaged(self) -> dict[str, str]:
        """What cannot be read or believed, part or file or line → why. It is left out of every
        answer."""
        return self._bad_files | self._bad_beats | self._contents.parts.damaged

    def close(self) -> None:
        """Let go of the database; the run cannot be asked afterwards."""
        with self._lock:
            self._contents.close()
            self._let_go()

    def _let_go(self) -> None:
        if self._mirror is not None:
            self._mirror.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- asking -----------------------------------------------------------------------------------

    def sql(
        self, query: str, parameters: Sequence[Any] | None = None, seconds: float = SECONDS
    ) -> pd.DataFrame:
        """Run one SELECT over the tables and views of the run.

        Read-only and bounded: a statement that is not a query, that reaches outside the run
        directory, that takes longer than `seconds` or too much memory raises UsageError.
        """
        return self._asked(query, seconds, lambda c: frame(c, query, parameters))

    def rows(self, query: str, seconds: float = SECONDS) -> Answer:
        """The same as Python values: in a DataFrame NULL and NaN of a number are one."""
        return self._asked(query, seconds, lambda c: rows(c, query))

    def _asked(
        self, query: str, seconds: float, take: Callable[[duckdb.DuckDBPyConnection], _T]
    ) -> _T:
        with self._lock:
            connection = self._contents.db.connection
            insist_on_select(connection, query)

            def answer() -> _T:
                self._contents.define(tuple(TABLES))
                with bounded(connection, seconds):
                    return take(connection)

            try:
                return self._contents.guarded(answer)
            except duckdb.Error as error:
                raise UsageError(str(error)) from None

    def interrupt(self) -> None:
        """Stop what another thread has asked of the run; that thread then gets an error."""
        self._contents.db.connection.interrupt()

    def signals(self) -> pd.DataFrame:
        """One row per step; columns, units and meanings are those of `core.schema.SIGNALS`."""
        with self._lock:
            return self._contents.db.rows("signal_rows").select(SIGNALS.names).to_pandas()

    def action_signals(self) -> pd.DataFrame:
        """One row per (step, action_index, correct); see `lldscope.core.schema.ACTION_SIGNALS`."""
        return self._frame("SELECT * FROM action_signals")

    def probe_signals(self) -> pd.DataFrame:
        """One row per (step, probe); see `lldscope.core.schema.PROBE_SIGNALS`."""
        return self._frame("SELECT * FROM probe_signals")

    def pieces(self, table: str, rows: int = 100_000) -> Any:
        """A table or view as a pyarrow.RecordBatchReader, for what does not fit into memory. The
        run must not be asked anything else until it is read to its end."""
        if table not in {*TABLES, *VIEWS, *(f"all_{name}" for name in TABLES)}:
            raise UsageError(f"There is no table {table}.")
        with self._lock:
            self._contents.guarded(lambda: self._contents.define(tuple(TABLES)))
            return self._contents.db.connection.sql(f"FROM {table}").to_arrow_reader(rows)

    def phases(self) -> pd.DataFrame:
        """Causal phases as spans: phase, start_step, end_step."""
        return self.assess().phase_spans()

    def alerts(self) -> pd.DataFrame:
        """Every alarm that ever fired; `step` is where it first did."""
        return self.assess().alert_frame()

    def plot(self, signals: Sequence[str] | None = None) -> Any:
        """Charts of the dashboard, or those of some signals, as one Plotly figure for notebooks."""
        missing = "plot() needs Plotly: pip install 'lldscope[dash]'."
        plots = entry_points(group="lldscope.plot", name="plot")
        if not plots:
            raise LldscopeError(missing)
        try:
            return next(iter(plots)).load()(self, signals)
        except ModuleNotFoundError as error:
            if error.name not in ("plotly", "lldscope_dashboard"):
                raise
            raise LldscopeError(missing) from None

    def assess(self, arl: float | None = None, rules: Sequence[Rule] | None = None) -> Assessment:
        """Signals, phases, alarms and verdict of the run as of its last row; see `assess`.

        `rules` are those that raise alarms; by default the built-in ones.
        """
        from .alarms.assess import DEFAULT_ARL, assess
        from .alarms.registry import RULES

        with self._lock:
            asked = (arl or DEFAULT_ARL, tuple(RULES if rules is None else rules))
            wanted = (*asked, self._contents.parts.version)
            if self._assessed is None or self._assessed_for != wanted:
                self._assessed = assess(self.signals(), *asked, self._restarts())
                self._assessed_for = wanted
            return self._assessed

    def _restarts(self) -> Restarts:
        """The steps at which the run is declared to have changed."""
        from .signals.evidence import restarts_of

        return restarts_of(self.events(), self._contents.starts())

    def events(self) -> list[dict[str, Any]]:
        """Events in the order they were written, as of the last look."""
        return list(self._events)

    def heartbeats(self) -> dict[int, dict[str, Any]]:
        """The last sign of life of each rank."""
        damaged: dict[str, str] = {}
        beats = heartbeats.read_heartbeats(self.path, damaged)
        self._bad_beats = damaged
        return beats

    # -- keeping up -------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take up what was sealed since the last look. True if any row or the status changed."""
        with self._lock:
            self._sync()
            before = self.info, self._events, self.damaged
            self.info = self._look()
            if self.info.get("id") != before[0].get("id"):
                self._contents.forget(self.info.get("id"))
            if self._events != before[1]:
                self._assessed = None  # they say where the run was changed
            self.heartbeats()
            manifest = self._contents.parts.read()
            self._bad_files |= manifest.damaged
            try:
                changed = self._contents.take_up(manifest)
            except duckdb.Error as error:
                raise LldscopeError(f"The rows of {self.place} cannot be read: {error}") from error
            return changed or before != (self.info, self._events, self.damaged)

    def _sync(self) -> None:
        if self._mirror is not None:
            self._mirror.sync()

    def _look(self) -> dict[str, Any]:
        """run.json and the events, whatever state they are in."""
        self._bad_files = {}
        info = layout.read_run_if_sound(self.path, self._bad_files, self.place)
        lines, wrong = files.read_lines(self.path / layout.EVENTS_FILE, self.path)
        self._bad_files |= wrong
        self._events = [e for e, _ in lines if _is_event(e)]
        if odd := len(lines) - len(self._events):
            self._bad_files[layout.EVENTS_FILE] = f"{odd} lines are no events"
        return info

    def _frame(self, sql: str) -> pd.DataFrame:
        with self._lock:
            return self._contents.db.frame(sql)


def _is_event(value: Any) -> bool:
    """Whether a line of events.jsonl can be shown: an object of a kind, whose step and attempt, if
    any, are such."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("kind"), str)
        and all(
            n is None or (type(n) is int and 0 <= n < 2**31)
            for n in (value.get("step"), value.get("attempt"))
        )
    )
