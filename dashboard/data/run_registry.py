"""The runs under a root, held open: a bounded number, one refresh of each at a time.

Pages ask for a `Snapshot`: everything they show, as of one moment. Its version changes exactly when
the run has new rows, so a page can tell that there is nothing to redraw.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb

from lldscope.core.errors import LldscopeError, RunNotFound
from lldscope.figures.view import subject_of
from lldscope.monitor.health import check
from lldscope.monitor.run_index import fingerprint
from lldscope.query.remote import find_remote
from lldscope.query.signal_cache import SignalCache
from lldscope.runs import Run, find_runs, open_run
from lldscope.storage.layout import read_manifest
from lldscope.storage.url import Url

from .metrics import columns_of
from .snapshot import Snapshot, SnapshotCache, aged

FRESH_SECONDS = 1.5  # snapshots taken within this time share one refresh
WAIT_SECONDS = 1.0  # for another thread's refresh, before its previous snapshot is used
LISTING = 5.0  # times as long as it took the list of the runs under a folder is kept
REMOTE_SECONDS = 10.0  # the runs under a remote root are listed this often
MOST_OPEN = 24
MOST_READ = 4  # runs that are read for the first time at once


@dataclass
class _Place:
    """One open run. While one refresh holds the lock, others get the previous snapshot."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    run: Run | None = None
    snapshot: Snapshot | None = None
    at: float = 0.0
    etag: str | None = None  # its files when the snapshot was cached
    opening: Future[Snapshot] | None = None


class Reading(LldscopeError):
    """The run is still being read; ask again later."""


class RunRegistry:
    """Snapshots of the runs under a root, by name: the path relative to the root.

    `patience`: seconds to wait for a run that is opened, None until it is; what takes longer goes
    on in the background and raises Reading. `cache`: where signals of
    long runs and snapshots of runs that have ended are cached from one start to the next.
    """

    def __init__(
        self, root: Path | Url, patience: float | None = None, cache: Path | None = None
    ) -> None:
        self.root = root.resolve()
        self._patience = patience
        self._signals = None if cache is None else SignalCache(cache / "signals")
        self._snapshots = None if cache is None else SnapshotCache(cache / "snapshots")
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._lock = threading.Lock()
        self._readers = ThreadPoolExecutor(MOST_READ, "lldscope-reader")
        self._names: dict[str, Any] = {}
        self._states: dict[Any, str] = {}  # of remote runs
        self._named_at = -math.inf
        self._names_hold = 0.0

    def names(self) -> dict[str, Any]:
        """Name → directory of every run under the root now. A page can ask for no other."""
        start = time.monotonic()
        if start - self._named_at < self._names_hold:
            return self._names
        if not self.root.is_dir():
            paths: Iterable[Any] = ()
        elif isinstance(self.root, Url):
            paths = self._states = find_remote(self.root)
        else:
            paths = find_runs(self.root)
        self._names, self._named_at = {self._name(p): p for p in paths}, time.monotonic()
        took = self._named_at - start
        self._names_hold = REMOTE_SECONDS if isinstance(self.root, Url) else LISTING * took
        return self._names

    def state(self, path: Path | Url) -> str:
        """A text that changes when the run does; of a remote run, as of the last list of names."""
        return fingerprint(path) if isinstance(path, Path) else self._states.get(path, "")

    def _name(self, path: Any) -> str:
        """The name of a run. Bytes of its folders that are not UTF-8 become numbers."""
        name = path.name if path == self.root else path.relative_to(self.root).as_posix()
        return str(name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")

    def snapshot(self, name: str) -> Snapshot:
        """A snapshot of the run as it is now. Raises LldscopeError with a sentence for the
        reader."""
        path = self.names().get(name)
        if path is None:
            with self._lock:
                if name in self._places:
                    self._places[name].run = None  # another may come in its place
            raise RunNotFound(f"There is no run “{name}” under {self.root}.")
        place = self._place(name)
        if place.snapshot is None and self._patience is not None:
            return self._open(name, place, path, self._patience)
        return self._now(name, place, path)

    def holds(self, name: str) -> bool:
        """Whether the run is open, or is being opened."""
        return name in self._places

    def run(self, name: str) -> Run:
        """The run behind a snapshot, for the queries of one page. Raises as `snapshot` does."""
        self.snapshot(name)
        place = self._place(name)
        with place.lock:
            run = place.run
            if run is None:  # its snapshot was cached; now its rows are wanted
                run = place.run = open_run(self.names()[name], self.root, self._signals)
            return run

    def _open(self, name: str, place: _Place, path: Any, patience: float) -> Snapshot:
        """The first snapshot of a run; a long run may have to be read through for it."""
        with self._lock:
            if place.opening is None:
                place.opening = self._readers.submit(self._now, name, place, path)
                place.at = time.monotonic()
            opening = place.opening
        try:
            return opening.result(patience)
        except TimeoutError:
            seconds = time.monotonic() - place.at
            raise Reading(
                f"Loading {rows_of(path)} for the first time ({seconds:.0f} s so far). This page "
                "refreshes when it is done; the next time it opens at once."
            ) from None
        finally:
            if opening.done():
                place.opening = None

    def _now(self, name: str, place: _Place, path: Any) -> Snapshot:
        if not place.lock.acquire(timeout=-1 if place.snapshot is None else WAIT_SECONDS):
            assert place.snapshot is not None
            return place.snapshot
        try:
            if place.snapshot is None or time.monotonic() - place.at > FRESH_SECONDS:
                place.snapshot = self._renew(name, place, path)
                place.at = time.monotonic()
            return place.snapshot
        except (duckdb.Error, OSError) as error:
            raise LldscopeError(f"The run cannot be read now: {error}") from error
        finally:
            place.lock.release()

    def _renew(self, name: str, place: _Place, path: Any) -> Snapshot:
        """Read new rows, or open the run anew if another run is now at its path."""
        before, etag = place.snapshot, ""
        if self._snapshots is not None and isinstance(path, Path):
            # Before the rows, so that later changes are not missed.
            etag = fingerprint(path, every=True)
            if before is not None and before.state.over and etag and place.etag == etag:
                return aged(before)
            if place.run is None:
                cached = self._snapshots.load(name, path, etag, partial(self.run, name))
                if cached is not None:
                    place.etag = etag
                    return aged(cached)
            elif before is not None and before.state.over and place.etag is not None:
                place.run = None  # nothing may change any more, and something has
        run = place.run
        new_rows = run is None or run.refresh()
        if run is None or before is None or run.info.get("id") != before.info.get("id"):
            run, new_rows = open_run(path, self.root, self._signals), True
            place.run = run
        state = check(run)
        if before is not None and not new_rows:
            snapshot = replace(before, info=run.info, state=state)
        else:
            subject = subject_of(name, run, state)
            tables = sorted({part.table for part in read_manifest(run.path).parts if part.rows})
            snapshot = Snapshot(
                uuid.uuid4().hex, run.info, state, subject, tuple(tables), columns_of(run),
                partial(self.run, name),
            )
        if self._snapshots is not None and etag and state.over and place.etag != etag:
            self._snapshots.store(path, etag, snapshot)
            place.etag = etag
        return snapshot

    def _place(self, name: str) -> _Place:
        with self._lock:
            place = self._places.setdefault(name, _Place())
            self._places.move_to_end(name)
            while len(self._places) > MOST_OPEN:
                self._places.popitem(last=False)
            return place


def rows_of(path: Any) -> str:
    """The number of rows of a run, as text, from its manifests alone."""
    with suppress(LldscopeError, OSError):
        if isinstance(path, Path):
            return f"{sum(p.rows for p in read_manifest(path).parts):,} rows"
    return "the rows of a remote run"
