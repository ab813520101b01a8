"""The recorder: rows in, sealed Parquet parts out, at negligible cost to the training thread.

A call copies its columns, enqueues them for the writer's thread (`writer`) and returns. Once the
recorder has started, nothing here raises into training: what cannot be recorded is dropped, and
counted by reason in the log, in the heartbeat and in `Recorder.dropped`.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self

import numpy as np

from ..core.errors import LldscopeError
from ..storage import json_files, layout
from ..storage.events import is_count, is_event
from ..storage.url import Url, place_of
from .attempt import (
    check_numbers,
    finish_attempt,
    plain_end,
    start_attempt,
    text_of,
    to_plain,
    warn_of_live_writer,
    write_run_file,
)
from .buffers import copy_columns, whole
from .writer import Writer

if TYPE_CHECKING:
    from .spool import Spool

log = logging.getLogger("lldscope")

FLUSH_SECONDS = 10  # how long `flush` waits for the disk
CLOSE_SECONDS = 120  # how long `close` waits for the disk


P = ParamSpec("P")


def never_raises(call: Callable[P, None]) -> Callable[P, None]:
    """Wrap a recorder's method: exceptions are counted, not raised."""

    @wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except Exception as error:
            recorder: Any = args[0]
            recorder._lost(f"{call.__name__.strip('_')}: {type(error).__name__}")

    return guarded


class NullRecorder:
    """A recorder that records nothing, so that a loop needs no `if`.

    Columns are numpy arrays (masked entries become NULL), lists (None becomes NULL) or scalars
    (repeated). Their names are those of `lldscope.core.schema`; `attempt` and `rank` are filled in.
    """

    dropped: Mapping[str, int] = {}

    def step(self, **columns: Any) -> None:
        """One row of `steps`. Call it last in a step: it marks the step complete."""
        columns.setdefault("time", json_files.now())
        self._rows("steps", columns)

    def updates(self, **columns: Any) -> None:
        self._rows("updates", columns)

    def responses(self, **columns: Any) -> None:
        self._rows("responses", columns)

    def actions(self, **columns: Any) -> None:
        self._rows("actions", columns)

    def tokens(self, **columns: Any) -> None:
        self._rows("tokens", columns)

    def retention(self, **columns: Any) -> None:
        """Correct responses of earlier steps, scored again (`recording.retention`)."""
        self._rows("retention", columns)

    def evals(self, **columns: Any) -> None:
        self._rows("evals", columns)

    def eval_questions(self, **columns: Any) -> None:
        self._rows("eval_questions", columns)

    def probes(self, **columns: Any) -> None:
        self._rows("probes", columns)

    def scalars(self, **columns: Any) -> None:
        """Means computed elsewhere, for example in a trainer's own log."""
        self._rows("scalars", columns)

    def event(self, kind: str, step: int | None = None, **details: Any) -> None:
        """A change or mark in the run: checkpoint, resume, lr change, intervention."""
        self._line(layout.EVENTS_FILE, {"kind": kind, "step": step, **details})

    def alert(self, **alert: Any) -> None:
        """An alarm that was raised during the run."""
        self._line(layout.ALERTS_FILE, alert)

    def _rows(self, table: str, columns: dict[str, Any]) -> None: ...
    def _line(self, file: str, value: dict[str, Any]) -> None: ...
    def flush(self) -> None: ...
    def close(self, status: str = "finished", reason: str | None = None) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None: ...

    def plan(self, steps: int) -> None: ...


class Recorder(NullRecorder):
    """Records one process of a run into a run directory.

    path          the run directory, created if it does not exist; or an address on an object store,
                  such as `s3://bucket/run` (docs/store.md)
    name, group   display name of the run, and of the group of runs it belongs to
    trainer       name and version of the trainer
    config        the resolved configuration, any JSON-like value
    correct_rule  one sentence: when a response counts as correct
    rank, world_size   this process among those that record the run
    resume        continue the run in `path` as a new attempt; without it an existing run is refused
    attempt       the attempt this process belongs to: None for rank 0, which counts its own; rank
                  0's `Recorder.attempt` for the others, because a rank that is new in a resumed run
                  cannot count

    `place` is where the run is opened; `path` the directory that is written.

    Only the constructor raises: RunExists or LldscopeError. Use it as a context manager, or call
    `close()`; a run whose process ends without either is closed as `stopped`.
    """

    def __init__(
        self,
        path: str | Path | Url,
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
        self.rank = rank
        self.dropped: Counter[str] = Counter()
        # Both raise before anything is created.
        check_numbers(rank=rank, world_size=world_size, attempt=attempt)
        info = {} if rank else to_plain(
            name=name, group=group, trainer=trainer, config=config, correct_rule=correct_rule
        )
        self.place = place_of(path)
        self._spool: Spool | None = None
        if isinstance(self.place, Url):
            from .spool import Spool  # and with it asyncio

            self._spool = Spool(self.place, self.rank, resume, attempt)
            self.path = self._spool.path
        else:
            self.path = self.place
        try:
            started = self._spool and self._spool.owner
            owner = started or start_attempt(self.path, self.rank, resume, attempt)
            self.attempt = owner.attempt
            self.path = self.path.absolute()  # the program may change its working directory
            warn_of_live_writer(self.path, owner)
            if self.rank == 0:
                write_run_file(self.path, owner, world_size, info)
        except OSError as error:
            raise LldscopeError(
                f"The run directory {self.path} cannot be written ({error.strerror})."
            ) from error
        # From here on this process, and none that it forks, may call.
        self._closed, self._forks = False, _forks
        _warm_up()
        self._writer = Writer(self.path, owner, self.dropped, self._spool)
        self._writer.beat()
        if self._spool:
            self._spool.open()
        self._writer.start()
        atexit.register(self.close, "stopped", "the process ended without closing the recorder")

    @never_raises
    def plan(self, steps: int) -> None:
        """Set the planned number of steps: the bound on false decay alarms then holds per run
        (docs/research/decay-alarm.md). Rank 0 writes it into run.json; the last plan counts."""
        if self.rank == 0 and not self._cannot_write():
            if not is_count(n_steps := whole(steps)):
                self._lost("plan: no number of steps")
                return
            layout.write_run(self.path, layout.read_run(self.path) | {"planned_steps": n_steps})

    @never_raises
    def flush(self) -> None:
        """Wait until evaluations and the rows of all complete steps are sealed, at most
        FLUSH_SECONDS. Call it before a checkpoint: a run that resumes from it needs them."""
        if self._cannot_write():
            if not self._closed:
                self._refuse("flush")
        elif not self._writer.flush().wait(FLUSH_SECONDS):
            log.warning("lldscope: rows were not on disk after %d s", FLUSH_SECONDS)

    @never_raises
    def close(self, status: str = "finished", reason: str | None = None) -> None:
        """Seal everything and record how the run ended: finished, failed or stopped. Idempotent."""
        if self._cannot_write():
            return  # the end of a forked child is not the end of the run
        self._closed = True
        atexit.unregister(self.close)
        if not self._writer.end(CLOSE_SECONDS):
            log.error("lldscope: the last rows were not on disk after %d s", CLOSE_SECONDS)
        status, reason = plain_end(status, reason, self._writer.wrote_everything)
        if self.rank == 0:
            try:
                finish_attempt(self.path, self.attempt, status, reason)
            except (OSError, LldscopeError) as error:
                log.error("lldscope: run.json could not be completed: %s", error)
        if self._spool and not self._spool.close(CLOSE_SECONDS):
            log.error(
                "lldscope: %s has not accepted all of the run after %d s. The rest is in %s; send "
                "it with: lldscope upload", self.place, CLOSE_SECONDS, self.path,
            )

    def __exit__(self, *exc_info: object) -> None:
        exception = exc_info[1]
        code = exception.code if isinstance(exception, SystemExit) else exception
        if code is None or (isinstance(code, int) and code == 0):
            self.close()
        elif isinstance(exception, KeyboardInterrupt):
            self.close("stopped", "interrupted")
        elif isinstance(code, int) and 128 < code <= 192:  # the exit code after a signal
            self.close("stopped", f"signal {code - 128}")
        else:
            self.close("failed", f"{type(exception).__name__}: {text_of(exception)}")

    @never_raises
    def _rows(self, table: str, columns: dict[str, Any]) -> None:
        copy, size = copy_columns(columns)
        if self._cannot_write() or not self._writer.calls.put(table, copy, size):
            self._refuse(table)

    @never_raises
    def _line(self, file: str, value: dict[str, Any]) -> None:
        stamp = {"attempt": self.attempt, "rank": self.rank}
        try:
            line = json_files.jsonable({"time": json_files.now()} | value | stamp)
        except Exception as error:  # e.g. a dictionary that contains itself
            self._lost(f"{file}: a line that cannot become JSON ({type(error).__name__})")
            return
        if file == layout.EVENTS_FILE:
            line["step"] = whole(line["step"])
            if not is_event(line):  # a reader would call it damage
                self._lost(f"{file}: an event without a kind, or a step that is not a count")
                return
        text = json_files.to_json(line)
        if self._cannot_write() or not self._writer.calls.put(file, text, len(text)):
            self._refuse(file)

    def _cannot_write(self) -> bool:
        return self._closed or self._forks != _forks  # os.getpid() takes a microsecond

    def _refuse(self, kind: str) -> None:
        why = "call after close" if self._closed else "call while the writer was behind"
        if self._forks != _forks:
            why = "call in a forked child: only the process that opened the recorder records"
        self._lost(f"{kind}: {why}")

    def _lost(self, reason: str) -> None:
        self._writer.losses.drop(reason)


class FailOpen:
    """`with fail_open("a step"): …` around everything that an adapter does inside a training: an
    error is counted, drops its rows, and is logged once per kind, in the log and in the run, where
    `lldscope check` finds it.

    `source` names the trainer in the recorder's `dropped`; `seconds` is the time spent inside.
    """

    def __init__(self, recorder: Any, source: str) -> None:
        self._recorder, self._source = recorder, source
        self._started: float | None = None
        self._taken = 0.0
        self._logged: set[str] = set()
        self.seconds = 0.0

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        outermost = self._started is None
        start = self._started = self._started or time.perf_counter()
        try:
            yield
        except Exception as error:
            self.failed(what, error)
        finally:
            if outermost:
                self.seconds += time.perf_counter() - start
                self._started = None

    def failed(self, what: str, error: Exception) -> None:
        """`what` could not be recorded."""
        why = f"{type(error).__name__}: {error}"
        self._recorder.dropped[f"{self._source}: {what}: {why}"] += 1
        if self._say(what, why, is_error=True):
            log.error(
                "lldscope: %s is not recorded; training goes on. This is logged once.", what,
                exc_info=error,
            )

    def missing(self, what: str, why: str) -> None:
        """`what` is not recorded because the trainer does not provide it; this is not an error."""
        if self._say(what, why, is_error=False):
            log.warning("lldscope: not recorded: %s: %s.", what, why)

    def _say(self, what: str, why: str, is_error: bool) -> bool:
        if what in self._logged:
            return False
        self._logged.add(what)
        self._recorder.event("not_recorded", what=what, why=why, failed=is_error)
        return True

    def take(self) -> float:
        """Seconds spent inside since the last call, up to now."""
        now = self.seconds
        if self._started is not None:
            now += time.perf_counter() - self._started
        seconds, self._taken = now - self._taken, now
        return seconds


def _count_fork() -> None:
    global _forks
    _forks += 1


_forks = 0  # between this process and the one that imported this module
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def _warm_up() -> None:
    """Import what the first part needs (pyarrow imports pandas) before training starts.

    Not in the writer's thread: there, a process that ends at once could not import any more.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pa.table({"a": pa.array(np.zeros(1))})
    pq.write_table(rows, io.BytesIO(), compression="zstd")
    rows.column("a").to_numpy()
