"""The recorder: rows in, sealed Parquet parts out, at negligible cost to the training thread.

A call copies its columns into a bounded queue and returns; one background thread turns them into
Arrow tables, writes parts, merges small parts in tiers and keeps the heartbeat. After a good start
nothing here raises into training: what cannot be recorded is dropped, counted and named, in the
log, in the heartbeat and in `Recorder.dropped`.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import queue
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from . import store
from .errors import LldscopeError, RunExists
from .schema import SCHEMA_VERSION, TABLES, arrow_schema

log = logging.getLogger("lldscope")

SEAL_SECONDS = 1.0  # a finished step is readable after at most about this long
SEAL_ROWS = 20_000  # … or as soon as this many rows wait
OPEN_STEP_SECONDS = 30.0  # rows of a step that does not end are sealed after this long
HEARTBEAT_SECONDS = 5.0
FLUSH_SECONDS = 10  # what `flush` waits for the disk
CLOSE_SECONDS = 120  # what `close` waits for a disk that does not answer
QUEUE_CALLS = 4096  # calls that may wait; beyond it rows are dropped rather than training held up
MAX_WAITING_ROWS = 2_000_000  # rows kept in memory while the disk refuses them
MERGE_FAN_IN = 16  # this many parts of a tier become one part of the next
MERGE_MAX_ROWS = 5_000_000  # larger parts are left alone
GRACE_SECONDS = 60.0  # merged parts stay this long for readers that have them in hand


class NullRecorder:
    """Records nothing: the recorder's methods without its effects, so that loops need no ifs."""

    dropped: Mapping[str, int] = {}

    def step(self, **columns: Any) -> None: ...
    def updates(self, **columns: Any) -> None: ...
    def responses(self, **columns: Any) -> None: ...
    def actions(self, **columns: Any) -> None: ...
    def tokens(self, **columns: Any) -> None: ...
    def evals(self, **columns: Any) -> None: ...
    def probes(self, **columns: Any) -> None: ...
    def event(self, kind: str, step: int | None = None, **details: Any) -> None: ...
    def flush(self) -> None: ...
    def alert(self, **alert: Any) -> None: ...
    def close(self, status: str = "finished", reason: str | None = None) -> None: ...

    def __enter__(self) -> NullRecorder:
        return self

    def __exit__(self, *exception: object) -> None: ...


class Recorder(NullRecorder):
    """Records one process of a run into a run directory.

    path          the run directory; made if it does not exist
    name, group   what people call the run, and the runs it belongs with
    trainer       trainer and version, for the record
    config        the resolved configuration, any JSON-like value
    correct_rule  in words, when a response counts as correct
    rank, world_size   this process among those that record the run
    resume        go on with the run in `path` as a new attempt; without it an existing run is
                  refused
    attempt       the attempt this process belongs to: rank 0 counts its own (None), the others
                  take rank 0's `Recorder.attempt`, which counting could not tell them where a run
                  goes on with more ranks than before

    Raises RunExists or LldscopeError at the start only. Use it as a context manager, or call
    `close()`; a run whose process ends without either is closed as `stopped`.

    Columns are numpy arrays (masked entries become NULL), lists (None becomes NULL) or scalars
    (repeated). Their names are those of `lldscope.schema`; `attempt` and `rank` are filled in.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        group: str | None = None,
        trainer: str | None = None,
        config: Any = None,
        correct_rule: str | None = None,
        rank: int = 0,
        world_size: int = 1,
        resume: bool = False,
        attempt: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.rank = rank
        self.dropped: Counter[str] = Counter()
        self.attempt = _claim(self.path, rank, resume, attempt)
        if rank == 0:
            self._info = _describe(
                self.path, self.attempt, name, group, trainer, config, correct_rule, world_size
            )
            store.replace_file(self.path / store.RUN_FILE, store.to_json(self._info, indent=1))
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(QUEUE_CALLS)
        self._closed = False
        _warm_up()
        self._writer = _Writer(self.path, self.attempt, rank, self._queue, self.dropped)
        self._writer.start()
        atexit.register(self.close, "stopped", "the process ended without closing the recorder")

    # -- one method per table ---------------------------------------------------------------------

    def step(self, **columns: Any) -> None:
        """One row of `steps`. Call it last in a step: it marks the step complete."""
        columns.setdefault("time", time.time())
        self._rows("steps", columns)

    def updates(self, **columns: Any) -> None:
        self._rows("updates", columns)

    def responses(self, **columns: Any) -> None:
        self._rows("responses", columns)

    def actions(self, **columns: Any) -> None:
        self._rows("actions", columns)

    def tokens(self, **columns: Any) -> None:
        self._rows("tokens", columns)

    def evals(self, **columns: Any) -> None:
        self._rows("evals", columns)

    def probes(self, **columns: Any) -> None:
        self._rows("probes", columns)

    def event(self, kind: str, step: int | None = None, **details: Any) -> None:
        """Something a reader of the run must know: checkpoint, resume, lr change, intervention."""
        self._line(store.EVENTS_FILE, {"kind": kind, "step": step, **details})

    def alert(self, **alert: Any) -> None:
        """An alarm that was raised while the run was live."""
        self._line(store.ALERTS_FILE, alert)

    # -- life -------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until the rows of all complete steps are sealed, or a while if the disk refuses
        them. For the moment before a checkpoint: a run that goes on from it must find them."""
        done = threading.Event()
        self._put(("flush", done))
        if not self._closed and not done.wait(FLUSH_SECONDS):
            log.warning("lldscope: rows were not on disk after %d s", FLUSH_SECONDS)

    def close(self, status: str = "finished", reason: str | None = None) -> None:
        """Seal everything and say how the run ended: finished, failed or stopped. Idempotent."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._queue.put(("close", None))
        self._writer.join(CLOSE_SECONDS)
        if self._writer.is_alive():
            log.error("lldscope: the disk did not take the last rows within %d s", CLOSE_SECONDS)
        if self.rank == 0:
            self._info |= {"status": status, "reason": reason, "ended": time.time()}
            try:
                text = store.to_json(self._info, indent=1)
                store.replace_file(self.path / store.RUN_FILE, text)
            except OSError as error:
                log.error("lldscope: run.json could not be completed: %s", error)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *raised: object) -> None:
        exception = raised[1]
        if exception is None:
            self.close()
        elif isinstance(exception, KeyboardInterrupt):
            self.close("stopped", "interrupted")
        else:
            self.close("failed", f"{type(exception).__name__}: {exception}")

    # -- inside -----------------------------------------------------------------------------------

    def _rows(self, table: str, columns: dict[str, Any]) -> None:
        self._put((table, {name: _own(value) for name, value in columns.items()}))

    def _line(self, file: str, value: dict[str, Any]) -> None:
        stamp = {"time": time.time(), "attempt": self.attempt, "rank": self.rank}
        self._put((file, stamp | value))

    def _put(self, call: tuple[str, Any]) -> None:
        if self._closed:
            self.dropped[f"{call[0]}: call after close"] += 1
            return
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            self.dropped[f"{call[0]}: call while the writer was behind"] += 1


def _own(value: Any) -> Any:
    """A copy of what the caller may change after the call."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return list(value) if isinstance(value, list | tuple) else value


def _claim(path: Path, rank: int, resume: bool, attempt: int | None) -> int:
    """Make the directory, and this rank's manifest of a new attempt; return the attempt."""
    existing = (path / store.RUN_FILE).exists()
    if existing and rank == 0:
        store.read_run(path)  # refuses what this version must not write to
        if not resume:
            raise RunExists(f"{path} already holds a run. Resume it, or choose another directory.")
    try:
        for folder in (path, path / store.MANIFEST_DIR, path / store.HEARTBEAT_DIR):
            folder.mkdir(parents=True, exist_ok=True)
        if attempt is None:
            attempt = 1
            while store.manifest_path(path, attempt, rank).exists():
                attempt += 1
        store.manifest_path(path, attempt, rank).touch(exist_ok=False)
    except OSError as error:
        raise LldscopeError(
            f"The run directory {path} cannot be written ({error.strerror})."
        ) from error
    return attempt


def _describe(
    path: Path,
    attempt: int,
    name: str | None,
    group: str | None,
    trainer: str | None,
    config: Any,
    correct_rule: str | None,
    world_size: int,
) -> dict[str, Any]:
    """The content of run.json; what an earlier attempt said stays unless this one says it anew."""
    now = time.time()
    old = store.read_run(path) if attempt > 1 and (path / store.RUN_FILE).exists() else {}
    given = {
        "name": name,
        "group": group,
        "trainer": trainer,
        "config": config,
        "correct_rule": correct_rule,
    }
    fresh = {
        "schema": SCHEMA_VERSION,
        "id": uuid.uuid4().hex,
        "name": path.name,
        "created": now,
        **dict.fromkeys(("group", "trainer", "config", "correct_rule")),
        **old,
        **{key: value for key, value in given.items() if value is not None},
    }
    attempts = [*fresh.get("attempts", []), {"attempt": attempt, "started": now}]
    return fresh | {
        "world_size": world_size,
        "attempts": attempts,
        "status": "running",
        "reason": None,
        "ended": None,
    }


class _Writer(threading.Thread):
    """The background thread: queue → Arrow tables → sealed parts → merged parts."""

    def __init__(
        self,
        run: Path,
        attempt: int,
        rank: int,
        calls: queue.Queue[tuple[str, Any]],
        dropped: Counter[str],
    ) -> None:
        super().__init__(name="lldscope-recorder", daemon=True)
        self.run_path, self.attempt, self.rank = run, attempt, rank
        self.manifest = store.manifest_path(run, attempt, rank)
        self.calls, self.dropped = calls, dropped
        self.warned: set[str] = set()
        self.open: dict[str, list[pa.Table]] = defaultdict(list)  # rows of the step under way
        self.ready: dict[str, list[pa.Table]] = defaultdict(list)  # rows of complete steps
        self.last_step: int | None = None
        self.last_seal = time.monotonic()
        self.last_beat = 0.0
        self.closed = False
        self.parts_written = 0
        self.tiers: dict[str, list[list[store.Part]]] = defaultdict(lambda: [[]])
        self.stale: list[tuple[float, Path]] = []

    def run(self) -> None:
        while True:
            try:
                kind, value = self.calls.get(timeout=SEAL_SECONDS / 4)
            except queue.Empty:
                kind, value = "", None
            try:
                if kind == "close":
                    self._finish()
                elif kind == "flush":
                    self._seal()
                    value.set()
                elif kind:
                    self._take(kind, value)
                self._tick()
            except Exception as error:  # nothing may end this thread but close
                self._drop(f"{kind or 'writer'}: {type(error).__name__}: {error}")
            if kind == "close":
                return

    def _take(self, kind: str, value: Any) -> None:
        if kind not in TABLES:
            store.append_line(self.run_path / kind, value)
            return
        rows = self._to_arrow(kind, value)
        if rows is None:
            return
        self.open[kind].append(rows)
        if kind == "steps":
            self.last_step = rows.column("step")[-1].as_py()
            self._step_complete()

    def _step_complete(self) -> None:
        for table, rows in self.open.items():
            self.ready[table] += rows
        self.open.clear()

    def _tick(self) -> None:
        now = time.monotonic()
        age = now - self.last_seal
        if age >= OPEN_STEP_SECONDS:  # a very long step, or rows outside of steps
            self._step_complete()
        rows = sum(len(t) for tables in self.ready.values() for t in tables)
        if rows and (age >= SEAL_SECONDS or rows >= SEAL_ROWS):
            self.last_seal = now
            self._seal()
        if now - self.last_beat >= HEARTBEAT_SECONDS:
            self.last_beat = now
            self._beat()

    def _finish(self) -> None:
        self._step_complete()
        self._seal()
        self._lose_ready()  # what the disk still refuses
        for table in list(self.tiers):
            self._merge(table, [p for tier in reversed(self.tiers[table]) for p in tier])
        for _, path in self.stale:
            path.unlink(missing_ok=True)
        self.closed = True
        self.last_beat = 0.0  # the tick that follows writes the last heartbeat

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            store.write_heartbeat(
                self.run_path,
                self.rank,
                closed=self.closed,
                step=self.last_step,
                dropped=dict(self.dropped),
                lines=store.count_lines(self.run_path, self.rank),
            )

    # -- rows -------------------------------------------------------------------------------------

    def _to_arrow(self, table: str, columns: dict[str, Any]) -> pa.Table | None:
        """Columns of one call as a table of the declared schema; what does not fit is dropped."""
        schema = arrow_schema(table)
        lengths = {len(v) for v in columns.values() if isinstance(v, np.ndarray | list)}
        if len(lengths) > 1:
            self._drop(f"{table}: columns of different lengths {sorted(lengths)}", max(lengths))
            return None
        n = lengths.pop() if lengths else 1
        if n == 0:
            return None
        columns |= {"attempt": self.attempt, "rank": self.rank}
        for name in columns.keys() - set(schema.names):
            self._drop(f"{table}.{name}: not a column of the schema", n)
        arrays = [self._array(table, f, columns.get(f.name), n) for f in schema]
        if any(not f.nullable and a.null_count for f, a in zip(schema, arrays, strict=True)):
            required = [f.name for f in schema if not f.nullable]
            self._drop(f"{table}: a required column is missing ({', '.join(required)})", n)
            return None
        return pa.Table.from_arrays(arrays, schema=schema)

    def _array(self, table: str, field: pa.Field, value: Any, n: int) -> pa.Array:
        if value is None:
            return pa.nulls(n, field.type)
        try:
            if isinstance(value, np.ma.MaskedArray):
                return pa.array(value.data, mask=np.ma.getmaskarray(value)).cast(field.type)
            if isinstance(value, np.ndarray | list):
                return pa.array(value).cast(field.type)
            return pa.repeat(pa.scalar(value).cast(field.type), n)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            self._drop(f"{table}.{field.name}: values that are not {field.type}", n)
            return pa.nulls(n, field.type)

    def _drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] += count
        if reason not in self.warned:
            self.warned.add(reason)
            log.warning(
                "lldscope dropped %d × %s (counted from here on, not repeated)", count, reason
            )

    # -- parts ------------------------------------------------------------------------------------

    def _seal(self) -> None:
        """Write what is ready as parts and list them in one manifest line; keep it on failure."""
        tables = {name: pa.concat_tables(rows) for name, rows in self.ready.items() if rows}
        if not tables:
            return
        try:
            parts = [self._write(name, rows) for name, rows in tables.items()]
            store.seal(self.manifest, parts)
        except OSError as error:
            self._hold(tables, error)
            return
        self.ready.clear()
        for part in parts:
            self.tiers[part.table][0].append(part)
            self._merge_full_tiers(part.table)
        self._clean()

    def _hold(self, tables: dict[str, pa.Table], error: OSError) -> None:
        self._drop(f"parts: not written at once ({error.strerror}), kept in memory for later")
        if sum(len(t) for t in tables.values()) > MAX_WAITING_ROWS:
            self._lose_ready()

    def _lose_ready(self) -> None:
        for name, tables in self.ready.items():
            if lost := sum(len(t) for t in tables):
                self._drop(f"{name}: rows lost because the disk refuses them", lost)
        self.ready.clear()

    def _write(self, table: str, rows: pa.Table) -> store.Part:
        self.parts_written += 1
        stem = f"a{self.attempt}-r{self.rank}-{self.parts_written:06d}"
        return store.write_part(self.run_path, table, stem, rows.combine_chunks())

    def _merge_full_tiers(self, table: str) -> None:
        tiers = self.tiers[table]
        for level, parts in enumerate(tiers):
            if len(parts) < MERGE_FAN_IN:
                return
            merged = self._merge(table, parts)
            if merged is None:
                return
            tiers[level] = []
            if level + 1 == len(tiers):
                tiers.append([])
            tiers[level + 1].append(merged)

    def _merge(self, table: str, parts: list[store.Part]) -> store.Part | None:
        """One part in place of many, published before the many are let go."""
        import pyarrow.parquet as pq

        if len(parts) < 2 or sum(p.rows for p in parts) > MERGE_MAX_ROWS:
            return None
        try:
            rows = pa.concat_tables([pq.read_table(p.path(self.run_path)) for p in parts])
            merged = self._write(table, rows)
            store.seal(self.manifest, [merged], replaces=parts)
        except (OSError, pa.ArrowException) as error:
            self._drop(f"{table}: parts that could not be merged ({error})")
            return None
        due = time.monotonic() + GRACE_SECONDS
        self.stale += [(due, p.path(self.run_path)) for p in parts]
        return merged

    def _clean(self) -> None:
        now = time.monotonic()
        for _, path in (s for s in self.stale if s[0] <= now):
            path.unlink(missing_ok=True)
        self.stale = [s for s in self.stale if s[0] > now]


def _warm_up() -> None:
    """Load what the first part would load (pyarrow takes up pandas), before training is under way.

    Not in the writer's thread: a process that ends at once could no longer import there.
    """
    import pyarrow.parquet as pq

    rows = pa.table({"a": pa.array(np.zeros(1))})
    pq.write_table(rows, io.BytesIO(), compression="zstd")
    rows.column("a").to_numpy()
