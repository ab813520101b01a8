"""A run, open for reading: Parquet parts → DuckDB views → pandas.

`refresh()` reads the parts sealed since and computes the signals of the new steps only. Reading
never writes into the run directory. What cannot be read is listed in `Run.damaged` and left out.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .core.errors import LldscopeError, UsageError
from .core.schema import COMPONENT, SIGNALS, TABLES, VIEWS
from .query.sandbox import SECONDS, Answer, bounded, rows
from .storage import heartbeats, layout
from .storage.events import read_journals
from .storage.notes import about

if TYPE_CHECKING:
    import duckdb
    import pandas as pd

    from .diagnosis.assess import Assessment, Judge
    from .diagnosis.registry import Rule
    from .query.contents import RunBatch
    from .query.remote import RemoteCopy
    from .query.signal_cache import SignalCache

_T = TypeVar("_T")
_STACK = re.compile(r"\n+(?=Stack Trace|Traceback|This error signals)")  # in an error of DuckDB

MOST_COMPONENTS = 20  # of the reward
MOST_JUDGES = 2  # of different rules, whose state is kept from one look to the next
_COMPONENTS = f"""
SELECT name, step, avg(value) AS value FROM scalars
WHERE starts_with(name, '{COMPONENT}') AND isfinite(value) GROUP BY name, step ORDER BY name, step
"""


class Run:
    """One run, open for reading. Methods may be called from several threads."""

    def __init__(
        self, place: Path | RemoteCopy, cache: SignalCache | None = None,
        batch: RunBatch | None = None,
    ) -> None:
        from .query.contents import Contents  # DuckDB: the list of runs is made without

        self._remote = None if isinstance(place, Path) else place
        self.path = (place if isinstance(place, Path) else place.path).resolve()
        where = self.path if isinstance(place, Path) else place.url
        self.place, self._folder = str(where), where.name  # for people
        self._lock = threading.RLock()
        self._damaged_files: dict[str, str] = {}  # as of the last refresh
        self._events: list[dict[str, Any]] = []
        self._notes: list[dict[str, Any]] = []
        # Arguments → judge, number of cuts that it has seen, basis of its answer, and the answer;
        # in the order of last use.
        self._judges: dict[tuple[Any, ...], tuple[Judge, int, Any, Assessment | None]] = {}
        try:
            self._sync()
            self.info = layout.try_read_run(self.path, {}, self.place)
            self._contents = Contents(self.path, self.info, self._remote, cache, batch)
        except BaseException:
            self._release()
            raise
        self.refresh()

    @property
    def name(self) -> str:
        return str(self.info.get("name") or self._folder)

    def __repr__(self) -> str:
        return f"<Run {self.name!r}: {self.place}>"

    def _repr_html_(self) -> str:
        """What a notebook shows of the run: the first screen of its report."""
        from importlib.metadata import entry_points

        (card,) = entry_points(group="lldscope.card", name="card")
        return str(card.load()(self))

    @property
    def damaged(self) -> dict[str, str]:
        """Part, file or line that cannot be read, and is left out of all answers → why."""
        return self._damaged_files | self._contents.parts.damaged

    @property
    def has_signals(self) -> bool:
        """Whether the signals are computed; False while a batch has yet to compute them."""
        return self._contents.parts.dirty_from is None

    @property
    def unclear(self) -> dict[str, str]:
        """What is uncertain about which rows count → why."""
        with self._lock:
            return self._contents.starts().sentences()

    def close(self) -> None:
        with self._lock:
            self._contents.close()
            self._release()

    def _release(self) -> None:
        if self._remote is not None:
            self._remote.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- queries -----------------------------------------------------------------------------------

    def sql(
        self, query: str, parameters: Sequence[Any] | None = None, seconds: float = SECONDS
    ) -> pd.DataFrame:
        """Run one SELECT over the tables and views of the run. Read-only and bounded. Raises
        UsageError if the statement is not a query, names anything but tables of the run and pure
        functions, or exceeds `seconds` or the memory limit."""
        return self._ask(query, seconds, lambda c: c.execute(query, parameters).df())

    def rows(self, query: str, seconds: float = SECONDS) -> Answer:
        """The same as Python values, which distinguish NULL from NaN."""
        return self._ask(query, seconds, lambda c: rows(c, query))

    def _ask(
        self, query: str, seconds: float, fetch: Callable[[duckdb.DuckDBPyConnection], _T]
    ) -> _T:
        import duckdb

        from .query.statement import insist_on_select

        with self._lock:
            connection = self._contents.db.connection

            def answer() -> _T:
                self._contents.define()
                with bounded(connection, seconds):
                    return fetch(connection)

            try:
                insist_on_select(connection, query)
                return self._contents.without_damaged(answer)
            except duckdb.Error as error:
                # The author of a query needs no stack trace of DuckDB or Python.
                reason, *_ = _STACK.split(str(error))
                raise UsageError(reason) from None
            except RecursionError:
                raise UsageError("The answer is nested too deeply: unnest it.") from None
            except OverflowError:
                raise UsageError(
                    "The answer has a date, time or interval that Python cannot hold: cast it to "
                    "VARCHAR."
                ) from None

    def interrupt(self) -> None:
        """Stop a query that runs in another thread; that query raises an error."""
        self._contents.db.interrupt()

    def signals(self) -> pd.DataFrame:
        """One row per step; columns, units and meanings are those of `core.schema.SIGNALS`."""
        return self._frame("signals")

    def columns(self) -> dict[str, Any]:
        """The same signals as arrays by name, NaN for NULL: `columns()["reward"]`."""
        from .diagnosis.detectors import as_recorded

        with self._lock:
            columns = self._contents.db.columns()
            return {name: as_recorded(columns, name) for name in columns} | {
                "step": as_recorded(columns, "step").astype("int64")
            }

    def action_columns(self) -> dict[str, Any]:
        """The columns of `action_signals` that were measured, as arrays, without pandas."""
        with self._lock:
            table = self._contents.db.rows("action_signals")
            if table is None:
                return {}
            return {name: table[name].to_numpy() for name in table.column_names}

    def action_signals(self) -> pd.DataFrame:
        """One row per (step, action_index, correct); see `lldscope.core.schema.ACTION_SIGNALS`."""
        return self._frame("action_signals")

    def pieces(self, table: str, rows: int = 100_000) -> Any:
        """A table or view as a pyarrow.RecordBatchReader, for tables larger than memory. Read the
        reader to its end before calling another method."""
        if table not in {*TABLES, *VIEWS, *(f"all_{name}" for name in TABLES)}:
            raise UsageError(f"There is no table {table}.")
        with self._lock:
            self._contents.without_damaged(self._contents.define)
            return self._contents.db.connection.sql(f"FROM {table}").to_arrow_reader(rows)

    def phases(self) -> pd.DataFrame:
        """Causal phases as spans: phase, start_step, end_step."""
        from .diagnosis.phases import PhaseSpan

        return _frame_of(PhaseSpan, self.assess().spans())

    def alerts(self) -> pd.DataFrame:
        """Every alarm that ever fired; `step` is where it first fired with its worst severity."""
        from .diagnosis.rule import Alert

        return _frame_of(Alert, self.assess().alerts)

    def assess(self, arl: float | None = None, rules: Sequence[Rule] | None = None) -> Assessment:
        """Signals, phases, alarms and verdict of the run as of its last row; see `assess`.

        `arl` is the minimum average number of steps to a false decay alarm; by default it is
        derived from `planned_steps`, or DEFAULT_ARL. `rules` are the rules that raise alarms; by
        default the built-in ones.
        """
        from .diagnosis.assess import Judge, default_arl
        from .diagnosis.evidence import restarts_of
        from .diagnosis.registry import RULES

        with self._lock:
            n_steps, db = self.planned_steps, self._contents.db
            arguments = (arl or default_arl(n_steps), tuple(RULES if rules is None else rules))
            new = Judge(*arguments), len(db.cuts), None, None
            judge, n_cuts, before, answer = self._judges.pop(arguments, new)
            basis = self._contents.parts.version, n_steps, self._events
            if answer is None or basis != before:
                columns = self._contents.trained_columns()
                replaced = min(db.cuts[n_cuts:], default=None)
                if self._remote is None:  # all of its tables would have to be fetched
                    columns |= self.components()
                restarts = restarts_of(self._events, self._contents.starts().resumes)
                answer = judge.look(columns, restarts, n_steps, replaced)
            self._judges[arguments] = judge, len(db.cuts), basis, answer
            for unused in [*self._judges][:-MOST_JUDGES]:
                del self._judges[unused]
            return answer

    def components(self) -> dict[str, Any]:
        """The components of the reward by their name in `scalars`, aligned with the steps of
        `columns`."""
        if not any(part.table == "scalars" for part in self._contents.parts.trusted()):
            return {}
        table = self.sql(_COMPONENTS).pivot(index="step", columns="name", values="value")
        table = table.reindex(self._contents.db.columns()["step"])
        return {name: table[name].to_numpy() for name in [*table][:MOST_COMPONENTS]}

    def estimators(self) -> dict[str, str | None]:
        """Signal from another trainer's log → how its definition differs from lldscope's; None if
        it does not."""
        if not any(part.table == "scalars" for part in self._contents.parts.trusted()):
            return {}
        answer = self.rows("SELECT name, max(estimator) FROM scalars GROUP BY name")
        return {name: estimator for name, estimator in answer.rows if name in SIGNALS.names}

    @property
    def planned_steps(self) -> int | None:
        """The planned number of steps, if the trainer declared it (`Recorder.plan`)."""
        steps = self.info.get("planned_steps")
        return steps if type(steps) is int and steps > 0 else None

    @property
    def counted(self) -> str:
        """The unit of a step: "steps", or "rows" for a log without step numbers."""
        return (self.info.get("imported") or {}).get("counted") or "steps"

    def events(self) -> list[dict[str, Any]]:
        """Events in the order they were written, as of the last refresh."""
        return list(self._events)

    def notes(self) -> list[dict[str, Any]]:
        """People's notes on the run and its alarms, as of the last refresh; see `storage.notes`."""
        return list(self._notes)

    def heartbeats(self) -> heartbeats.Beats:
        """Rank → its last heartbeat, read now: a process may have ended since the refresh."""
        return heartbeats.read_heartbeats(self.path)

    # -- updates -------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Read the parts sealed since the last refresh. True if any row or the status changed."""
        import duckdb

        with self._lock:
            self._sync()
            before = self.info, self._events, self.damaged, self._notes
            damaged: dict[str, str] = {}
            # Heartbeats before manifests: they state how many lines manifests have.
            beats = heartbeats.read_heartbeats(self.path, damaged)
            manifest = self._contents.parts.read(beats)
            self._damaged_files = damaged = layout.missing_heartbeats(manifest, beats) | damaged
            info = layout.try_read_run(self.path, damaged, self.place)
            lines = read_journals(self.path, damaged)
            self._events, self._notes = lines[layout.EVENTS_FILE], lines[layout.NOTES_FILE]
            self.info = info | about(self._notes)
            if self.info.get("id") != before[0].get("id"):
                self._contents.reset(self.info)
                manifest = self._contents.parts.read()
            damaged |= manifest.damaged
            try:
                has_changed = self._contents.ingest(manifest, self.info)
            except duckdb.Error as error:
                raise LldscopeError(f"The rows of {self.place} cannot be read: {error}") from error
            return has_changed or before != (self.info, self._events, self.damaged, self._notes)

    def _sync(self) -> None:
        if self._remote is not None:
            self._remote.sync()

    def _frame(self, name: str) -> pd.DataFrame:
        with self._lock:
            return self._contents.db.connection.execute(f"FROM {name}").df()


def _frame_of(kind: type[Any], rows: Sequence[Any]) -> pd.DataFrame:
    """Data classes of one kind as rows."""
    import pandas as pd

    return pd.DataFrame([asdict(row) for row in rows], columns=[f.name for f in fields(kind)])
