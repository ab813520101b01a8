"""Open runs for reading: Parquet parts → DuckDB views → pandas.

`refresh()` takes up what was sealed since, and computes the signals of the new steps only. Reading
never writes into the run directory. Whatever cannot be read is named in `Run.damaged` and left out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from . import files, store
from .damage import MISSING, damage
from .database import SIGNAL_TABLES, Database
from .errors import LldscopeError, RunNotFound, UsageError
from .manifest import ManifestReader, manifest_names
from .sandbox import SECONDS, bounded, frame, insist_on_select
from .schema import SIGNALS, TABLES, VIEWS
from .stretches import stretches

if TYPE_CHECKING:
    import pandas as pd

    from .assess import Assessment
    from .evidence import Restarts
    from .kept import Kept
    from .remote import Mirror, Url
    from .rules import Rule

_T = TypeVar("_T")

KEEP_ROWS = 250_000  # new rows, at least, whose signals are worth keeping


def open_run(
    path: str | Path | Url, root: Path | Url | None = None, kept: Kept | None = None
) -> Run:
    """Open a run: a directory, or an address that fsspec knows, such as `s3://bucket/run`.

    With a `root` the run must lie under it: a link that leads elsewhere is refused. `kept` is where
    signals of long runs are kept from one opening to the next.
    Raises RunNotFound, NewerSchema or LldscopeError with the reason.
    """
    from .remote import Mirror, Url, is_address

    if isinstance(path, str) and is_address(path):
        path = Url(path)
    if isinstance(path, Url):
        return Run(Mirror(path), kept)
    path = Path(path)
    if isinstance(root, Path) and not path.resolve().is_relative_to(root.resolve()):
        raise LldscopeError(f"{path} is a link to a place outside of {root}. Name that place.")
    named = os.fsencode(path.absolute())
    try:
        named.decode("utf-8")
    except UnicodeDecodeError:
        readable = named.decode("utf-8", "replace")
        raise LldscopeError(f"The name of {readable} is not UTF-8: rename the folder.") from None
    return Run(path, kept)


def find_runs(root: str | Path | Url) -> list[Any]:
    """Run directories under a root, by name, at most two levels down; the root itself if it is one.

    Raises RunNotFound if the root does not exist. Runs of a remote root are `remote.Url`s.
    """
    from .remote import Url, find_remote, is_address

    if isinstance(root, str) and is_address(root):
        root = Url(root)
    if isinstance(root, Url):
        return find_remote(root)
    root = Path(root)
    if not root.is_dir():
        raise RunNotFound(f"There is no folder {root}.")
    if (root / store.RUN_FILE).is_file() or manifest_names(root):
        return [root]
    found = {p.parent for depth in ("*", "*/*") for p in root.glob(f"{depth}/{store.RUN_FILE}")}
    lost = {p.parent for depth in ("*", "*/*") for p in root.glob(f"{depth}/{store.MANIFEST_DIR}")}
    return sorted(found | {run for run in lost - found if manifest_names(run)})


class Run:
    """One run, open for reading. Methods may be called from several threads."""

    def __init__(self, place: Path | Mirror, kept: Kept | None = None) -> None:
        self._kept, self._unkept = kept, 0  # rows whose signals are not kept yet
        self._mirror = None if isinstance(place, Path) else place
        self.path = (place if isinstance(place, Path) else place.path).resolve()
        self.place = str(self.path if isinstance(place, Path) else place.url)  # for people
        self._lock = threading.RLock()
        self._manifests = ManifestReader(self.path)
        self._parts: list[store.Part] = []
        # the stretch of steps that the tables show, and which tables
        self._defined: tuple[tuple[int, int] | None, tuple[str, ...]] | None = None
        self._owed: int | None = None  # the first step whose signals are not computed yet
        self._checked: set[tuple[str, str]] = set()
        self._bad_parts: dict[str, str] = {}  # left out of every query
        self._bad_files: dict[str, str] = {}  # as of the last look
        self._bad_beats: dict[str, str] = {}
        self._assessed: Assessment | None = None
        self._assessed_for: tuple[float, tuple[Rule, ...]] | None = None
        self._events: list[dict[str, Any]] = []
        try:
            self._sync()
            self.info = self._look()
            self._db = Database(self.path)
            if kept is not None:
                self._parts = kept.take(self.info.get("id"), self._db)
        except BaseException:
            self._let_go()
            raise
        self.refresh()

    @property
    def name(self) -> str:
        return str(self.info.get("name") or self.path.name)

    @property
    def damaged(self) -> dict[str, str]:
        """What cannot be read or believed, part or file or line → why. It is left out of every
        answer."""
        return self._bad_files | self._bad_beats | self._bad_parts

    def close(self) -> None:
        """Let go of the database; the run cannot be asked afterwards."""
        with self._lock:
            self._db.connection.close()
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
        with self._lock:
            connection = self._db.connection
            insist_on_select(connection, query)

            def answer() -> pd.DataFrame:
                self._define_tables(tuple(TABLES))
                with bounded(connection, seconds):
                    return frame(connection, query, parameters)

            try:
                return self._guarded(answer)
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

    def pieces(self, table: str, rows: int = 100_000) -> Any:
        """A table or view as a pyarrow.RecordBatchReader, for what does not fit into memory. The
        run must not be asked anything else until it is read to its end."""
        if table not in {*TABLES, *VIEWS, *(f"all_{name}" for name in TABLES)}:
            raise UsageError(f"There is no table {table}.")
        with self._lock:
            self._guarded(lambda: self._define_tables(tuple(TABLES)))
            return self._db.connection.sql(f"FROM {table}").to_arrow_reader(rows)

    def phases(self) -> pd.DataFrame:
        """Causal phases as spans: phase, start_step, end_step."""
        return self.assess().phase_spans()

    def alerts(self) -> pd.DataFrame:
        """Every alarm that ever fired; `step` is where it first did."""
        return self.assess().alert_frame()

    def plot(self, signals: Sequence[str] | None = None) -> Any:
        """Charts of the dashboard, or those of some signals, as one Plotly figure for notebooks."""
        try:  # by name, because the analyzer does not depend on the dashboard
            notebook = import_module("lldscope_dashboard.notebook")
            return notebook.plot(self, signals)
        except ModuleNotFoundError as error:
            if error.name not in ("plotly", "lldscope_dashboard"):
                raise
            raise LldscopeError("plot() needs Plotly: pip install 'lldscope[dash]'.") from None

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

        starts = dict(self._db.execute("SELECT attempt, first_step FROM attempts"))
        return restarts_of(self.events(), starts)

    def events(self) -> list[dict[str, Any]]:
        """Events in the order they were written, as of the last look."""
        return list(self._events)

    def heartbeats(self) -> dict[int, dict[str, Any]]:
        """The last sign of life of each rank."""
        damaged: dict[str, str] = {}
        beats = store.read_heartbeats(self.path, damaged)
        self._bad_beats = damaged
        return beats

    # -- keeping up -------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take up what was sealed since the last look. True if any row or the status changed."""
        with self._lock:
            self._sync()
            before = self.info, self._events, self.damaged
            run_id = self.info.get("id")
            self.info = self._look()
            if run_id != self.info.get("id"):
                self._forget()  # another run lies here now
            self.heartbeats()
            manifest = store.read_manifest(self.path, self._manifests)
            self._bad_files |= manifest.damaged
            self._look_again()
            moved = self._take(manifest)
            if self._events != before[1]:
                self._assessed = None  # they say where the run was changed
            owed = self._catch_up()
            while self._take_merged():
                moved, owed = True, self._catch_up() or owed
            return moved or owed or before != (self.info, self._events, self.damaged)

    def _catch_up(self) -> bool:
        """Compute the signals that are owed and look at parts not seen before; True if any were."""
        owed = self._owed is not None
        if owed:
            try:
                self._guarded(self._recompute)
            except duckdb.Error as error:
                raise LldscopeError(f"The rows of {self.place} cannot be read: {error}") from error
        for part in self._parts:
            if self._is_here(part):
                self._sound(part)
        return owed

    def _take_merged(self) -> bool:
        """Where listed parts were not there, a writer may have merged them since: take the parts
        anew; True if they have changed."""
        listed = (f"{p.table}/{p.file}" for p in self._parts)
        gone = any(name in self._bad_parts and not (self.path / name).exists() for name in listed)
        return gone and self._take(store.read_manifest(self.path, self._manifests))

    def _sync(self) -> None:
        if self._mirror is not None:
            self._mirror.sync()

    def _look(self) -> dict[str, Any]:
        """run.json and the events, whatever state they are in."""
        self._bad_files = {}
        info = store.look_at_run(self.path, self._bad_files)
        lines, wrong = files.read_lines(self.path / store.EVENTS_FILE, self.path)
        self._bad_files |= wrong
        self._events = [e for e, _ in lines if _is_event(e)]
        if odd := len(lines) - len(self._events):
            self._bad_files[store.EVENTS_FILE] = f"{odd} lines are no events"
        return info

    def _look_again(self) -> None:
        """A part that was missing may have come: a copy of a live run is not made in order."""
        names = {name for name, why in self._bad_parts.items() if why == MISSING}
        missing = [p for p in self._parts if f"{p.table}/{p.file}" in names]
        if missing and self._mirror is not None:
            self._mirror.bring(missing)
        for part in missing:
            if part.path(self.path).exists():
                del self._bad_parts[f"{part.table}/{part.file}"]
                self._checked.discard((part.table, part.file))
                self._owe(part.first_step)

    def _forget(self) -> None:
        self._manifests = ManifestReader(self.path)
        self._parts, self._owed = [], None
        self._bad_parts.clear()
        self._checked.clear()
        self._db.forget_signals()

    def _owe(self, step: int) -> None:
        self._owed = step if self._owed is None else min(step, self._owed)
        self._assessed = None
        self._defined = None

    def _take(self, manifest: store.Manifest) -> bool:
        """Take the parts as they are now, and note from which step on signals are owed; True if
        they have changed."""
        parts = manifest.parts
        if parts == self._parts:
            return False
        known = {(p.table, p.file) for p in self._parts}
        listed = {(p.table, p.file) for p in parts}
        for table, file in known - listed:
            self._bad_parts.pop(f"{table}/{file}", None)
        # A merged part holds rows that were counted before; only new rows need new signals.
        for p in parts:
            if (p.table, p.file) not in known and not _made_of(p, self._parts):
                self._owe(p.first_step)
        # Rows that are listed no more, and were not merged into a part that is, are gone.
        merged = [p for p in parts if (p.table, p.file) not in known]
        for p in self._parts:
            if (p.table, p.file) not in listed and not any(
                p.table == q.table and q.name.covers(p.name) for q in merged
            ):
                self._owe(p.first_step)
        self._parts = parts
        self._assessed = None
        self._defined = None
        return True

    def _recompute(self) -> None:
        """Signals of the steps that are owed, from the parts that hold such steps."""
        first_step = self._owed or 0
        self._db.forget_signals(first_step)
        # A part that is not what its manifest says may claim any number of rows and steps.
        for stretch in stretches(self._believed(), first_step):
            self._define_tables(SIGNAL_TABLES, stretch)
            self._db.compute_signals(stretch[0])
            self._db.let_go()
            self._defined = None
        self._owed = None
        self._unkept += sum(p.rows for p in self._parts if p.last_step >= first_step)
        if self._kept is not None and self._unkept >= KEEP_ROWS and not self._bad_parts:
            self._kept.keep(self.info.get("id"), self._parts, self._db)
            self._unkept = 0

    def _define_tables(
        self, tables: tuple[str, ...], stretch: tuple[int, int] | None = None
    ) -> None:
        if self._defined == (stretch, tables):
            return
        if self._mirror is not None:
            first, last = stretch or (-(2**31), 2**31)
            here = (p for p in self._parts if p.last_step >= first and p.first_step <= last)
            self._mirror.bring([p for p in here if p.table in tables])
        self._db.define_tables(self._believed(), tables, stretch)
        self._defined = (stretch, tables)

    # -- damage -----------------------------------------------------------------------------------

    def _believed(self) -> list[store.Part]:
        """The sound parts, and those not brought yet: attempts begin and end where the manifests
        say, whether a part is here or not."""
        return [p for p in self._parts if not self._is_here(p) or self._sound(p)]

    def _is_here(self, part: store.Part) -> bool:
        return self._mirror is None or self._mirror.tried(part)

    def _sound(self, part: store.Part) -> bool:
        key = (part.table, part.file)
        name = "/".join(key)
        if key not in self._checked and name not in self._bad_parts:
            if wrong := damage(self.path, part):
                self._bad_parts[name] = wrong
            self._checked.add(key)
        return name not in self._bad_parts

    def _guarded(self, action: Callable[[], _T]) -> _T:
        """Do something that reads parts; if one cannot be read, name it, leave it out, do it again.

        Parts that were merged away meanwhile are taken from the manifest anew.
        """
        while True:
            try:
                return action()
            except (duckdb.OutOfMemoryException, duckdb.InterruptException):
                raise
            except duckdb.Error:
                if not self._find_damage():
                    raise

    def _find_damage(self) -> bool:
        """Look for unreadable parts; True if there are new ones or the manifest has changed."""
        before = set(self._bad_parts)
        moved = self._take(store.read_manifest(self.path, self._manifests))
        while True:
            for part in (p for p in self._parts if self._is_here(p) and self._sound(p)):
                if wrong := self._db.read_through(part):
                    self._bad_parts[f"{part.table}/{part.file}"] = wrong
            self._defined = None
            if not self._take_merged():
                return moved or not set(self._bad_parts) <= before
            moved = True

    def _frame(self, sql: str) -> pd.DataFrame:
        with self._lock:
            return self._db.frame(sql)


def _is_event(value: Any) -> bool:
    """Whether a line of events.jsonl can be shown: an object whose step, if any, is a step."""
    if not isinstance(value, dict):
        return False
    step = value.get("step")
    return step is None or (type(step) is int and 0 <= step < 2**31)


def _made_of(part: store.Part, known: list[store.Part]) -> bool:
    """Whether a part was merged from known ones: from the first to the last seal that it spans."""
    name = part.name
    held = [p.name for p in known if p.table == part.table and name.covers(p.name)]
    first, last = min((n.first for n in held), default=0), max((n.last for n in held), default=0)
    return (first, last) == (name.first, name.last)
