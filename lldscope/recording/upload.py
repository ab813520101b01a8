"""Sends what recorders have sealed in their spools to the object store of their run.

First that there is a run, then the parts, events and alerts, then the lines of the manifest that
list the parts, then heartbeats: a reader finds what it is told of. All of it is sent again until
the store has it.
"""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import suppress
from pathlib import Path

from ..core.errors import LldscopeError
from ..storage import json_files, logs
from ..storage.objects import ObjectStore
from ..storage.url import Url
from .sent import Due, SpooledRun
from .spool import SENDING_FILE, SPOOL_FILE, read_spool, sending

log = logging.getLogger("lldscope")

LOOK_SECONDS = 0.5
RETRY_SECONDS = 2.0  # at most, between two rounds that the store refuses
LINGER_SECONDS = 10.0  # for the next recorder, after the last one
AWAY_SECONDS = 3600.0  # without an answer, after the last recorder has ended
BATCH_BYTES = 64 << 20  # of parts that are read into memory at once
KEEP_BYTES = 1 << 30  # of parts that are sent and not merged yet, per recorder


class Uploader:
    """Sends the spools in the folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store: ObjectStore | None = None
        self._spools: dict[Path, SpooledRun] = {}
        self._missing: set[Path] = set()  # parts that were not in their spool
        self.refused: dict[Path, str] = {}  # spool → why it is not sent

    def follow(self) -> None:
        """Send what is sealed until no recorder is left. Nothing, if another process does."""
        with sending(self.folder) as free:
            if not free:
                return
            pause, told = LOOK_SECONDS, None
            used = answered = time.monotonic()
            while self._spools or time.monotonic() - used < LINGER_SECONDS:
                error = None
                try:
                    self.round()
                    pause, answered = LOOK_SECONDS, time.monotonic()
                except (LldscopeError, OSError) as failure:
                    error = str(failure)
                    pause = min(2 * pause, RETRY_SECONDS)
                if error != told:
                    told = error
                    self._say(error)
                if self._spools:
                    used = time.monotonic()
                if time.monotonic() - answered > AWAY_SECONDS and all(
                    spool.has_ended() for spool in self._spools.values()
                ):
                    return  # what waits is for the next recorder here, or `lldscope upload`
                time.sleep(pause)

    def finish(self) -> bool:
        """Send everything there is now, once; True if nothing of recorders that have ended is left.
        Raises LldscopeError if the store refuses."""
        for _ in range(3):  # a part may be merged while it is read
            self.round()
            if not self._spools:
                break
        return not self.refused and not self._spools

    def round(self) -> None:
        """Send what waits now. Raises LldscopeError if the store refuses it."""
        self._adopt()
        if self._store is None:
            return
        waiting = {spool: spool.look() for spool in self._spools.values()}
        unread = self._send_parts(waiting)
        waiting = {spool: due for spool, due in waiting.items() if spool not in unread}
        for what in ("opening", "streams", "manifest", "states"):
            objects = {n.path: c for due in waiting.values() for n, c in getattr(due, what).items()}
            self._store.put(objects)
        stale = []
        for spool, due in waiting.items():
            spool.done(due)
            stale += spool.take_stale()
            spool.make_room(KEEP_BYTES)
        self._store.delete(stale)
        for spool, due in waiting.items():
            if due.last and not due.opening:
                self._end(spool)
        if any(due.opening for due in waiting.values()):
            self.round()

    def _adopt(self) -> None:
        """Look for new spools; each must be of the run that is at its address now. One that
        somebody has removed is forgotten."""
        self._spools = {path: s for path, s in self._spools.items() if path.exists()}
        new = {p.parent: p for p in self.folder.glob(f"*/{SPOOL_FILE}")
               if p.parent not in self._spools and p.parent not in self.refused}  # fmt: skip
        if not new:
            return
        told = {path: read_spool(file) for path, file in new.items()}
        for path in [p for p, said in told.items() if said is None]:
            self.refused[path] = f"{SPOOL_FILE} cannot be read"
            del told[path]
        for path, said in told.items():
            assert said is not None
            if self._store is None:
                self._store = ObjectStore(Url(said["address"]))
            claim = f"{logs.LOG_DIR}/{logs.claim_file(said['attempt'], said['rank'])}"
            content = self._store.read([claim]).get(claim, b"{}")
            if json_files.parse(content).get("token") != said["token"]:
                self.refused[path] = f"{self._store.url} is another run by now"
                continue
            listed = self._store.names(logs.LOG_DIR)
            names = [name for file in listed if (name := logs.log_name(file))]
            self._spools[path] = SpooledRun(path, said["attempt"], said["rank"], names)

    def _send_parts(self, waiting: dict[SpooledRun, Due]) -> set[SpooledRun]:
        """Send parts; returns the spools of which a part could not be read. It has been merged
        away since the manifest was read; one that is still missing in the next round is lost."""
        assert self._store is not None
        unread = set()
        batch: dict[str, bytes] = {}
        for spool, part in ((s, p) for s, due in waiting.items() for p in due.parts):
            path = part.path(spool.path)
            try:
                batch[f"{part.table}/{part.file}"] = path.read_bytes()
            except FileNotFoundError:
                if path not in self._missing:
                    unread.add(spool)
                self._missing.add(path)
            if sum(map(len, batch.values())) >= BATCH_BYTES:
                self._store.put(batch)
                batch = {}
        self._store.put(batch)
        return unread

    def _end(self, spool: SpooledRun) -> None:
        """Remove the spool of a recorder that has ended, if nothing came in meanwhile."""
        assert self._store is not None
        if not spool.look().empty:
            return
        folders = {folder: self._store.names(folder) for folder in (*spool.tables, logs.LOG_DIR)}
        self._store.delete(spool.leftovers(folders))
        del self._spools[spool.path]
        shutil.rmtree(spool.path, ignore_errors=True)

    def _say(self, error: str | None) -> None:
        said = {"time": time.time(), "error": error}
        with suppress(OSError):
            json_files.replace_file(self.folder / SENDING_FILE, json_files.to_json(said))
