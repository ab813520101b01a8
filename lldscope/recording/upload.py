"""Sends what a recorder has sealed in its spool to the object store of its run.

The run has the same files there as in a directory. An object is sent before the objects that name
it: first parts, events and alerts, then the manifest that lists the parts, and last run.json and
the heartbeat. All small files are sent again from time to time, and at the end, because the store
may still carry out a request that failed.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

from ..core.errors import LldscopeError
from ..core.schema import TABLES
from ..storage import heartbeats, json_files, layout
from ..storage.compaction import SILENT_SECONDS
from ..storage.manifest import ManifestFile, manifest_file
from ..storage.objects import ObjectStore
from ..storage.part import Owner
from ..storage.url import Url
from .spool import CLOSED_FILE, ERROR_FILE, SPOOL_FILE, claim_file

LOOK_SECONDS = 0.5
RETRY_SECONDS = 2.0  # at most, between two rounds that the store refuses
AGAIN_SECONDS = 30.0  # after which small files are sent again, though they are the same
AWAY_SECONDS = 3600.0  # without an answer, after the recorder has ended
RATE = 1 << 20  # bytes a second of small files: a long manifest is sent less often
BATCH_BYTES = 64 << 20  # of parts that are read into memory at once


class Sender:
    """Sends the spool of one recorder, in a folder `path`; gone when all of it is on the store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            state = json_files.parse((path / SPOOL_FILE).read_bytes())
            self._owner = Owner.parse(state["owner"])
            self._store, self._token = ObjectStore(Url(state["address"])), state["token"]
        except (OSError, ValueError, KeyError, TypeError):
            raise LldscopeError(f"{path / SPOOL_FILE} cannot be read.") from None
        self._manifest = manifest_file(*self._owner)
        self._beat = heartbeats.file_of(self._owner.rank)
        self._contents: dict[str, bytes] = {}  # small file → its last sent content
        self._sent: set[str] | None = None  # parts on the store; None until it was asked
        self._all_sent = 0.0  # when all small files were sent

    def follow(self) -> None:
        """Send what is sealed until everything of the recorder is on the store."""
        pause, error, last_answer = LOOK_SECONDS, "", time.monotonic()
        while self.path.exists():
            before, error = error, ""
            try:
                n_bytes = sum(map(len, self._contents.values()))
                self.round()
                pause, last_answer = max(LOOK_SECONDS, n_bytes / RATE), time.monotonic()
            except (LldscopeError, OSError) as failure:
                error = str(failure)
                pause = min(2 * pause, RETRY_SECONDS)
            if error != before:
                with suppress(OSError):
                    json_files.replace_file(self.path / ERROR_FILE, error)
            if time.monotonic() - last_answer > AWAY_SECONDS and self._has_ended():
                return  # what waits is for the next recorder here, or `lldscope upload`
            time.sleep(pause)

    def round(self) -> bool:
        """Send waiting data; True if the recorder has ended and everything is on the store. Raises
        LldscopeError if the store refuses it, OSError if the spool cannot be read."""
        if self._sent is None:
            self._sent = self._read_store()
        has_ended = self._has_ended()
        if has_ended or time.monotonic() - self._all_sent > AGAIN_SECONDS:
            self._contents.clear()
            self._all_sent = time.monotonic()
        before = self._parts()  # a manifest lists parts that are there before or after it is read
        new = self._look()
        parts = self._parts()
        try:
            self._send_parts(sorted((before | parts) - self._sent))
        except FileNotFoundError:  # merged meanwhile: the next round looks anew
            return False
        self._sent |= before | parts
        last = {self._beat, layout.RUN_FILE}
        for group in (new.keys() - {self._manifest} - last, {self._manifest}, last):
            objects = {name: new[name] for name in group & new.keys()}
            self._store.put(objects)
            self._contents |= objects
        if has_ended:  # live, a reader may be using parts that were replaced
            self._store.delete(self._sent - parts)
            shutil.rmtree(self.path, ignore_errors=True)
        return has_ended

    def _parts(self) -> set[str]:
        """The parts in the spool, by their names on the store."""
        return {
            f"{table}/{path.name}"
            for table in TABLES for path in (self.path / table).glob("*.parquet")
        }

    def _read_store(self) -> set[str]:
        """The parts that the recorder's manifest on the store lists: they were sent before the
        manifest. Raises LldscopeError if the run there is not that of this recorder."""
        claim = claim_file(self._owner)
        content = self._store.read([claim, self._manifest])
        if json_files.parse(content.get(claim, b"{}")).get("token") != self._token:
            raise LldscopeError(f"{self._store.url} is another run by now.")
        stored = ManifestFile(self.path, *self._owner)
        for line in content.get(self._manifest, b"").splitlines():
            stored.replay(line)
        return {f"{table}/{file}" for table, file in (*stored.active, *stored.replaced)}

    def _has_ended(self) -> bool:
        """Whether the recorder has ended, as far as can be known."""
        if (self.path / CLOSED_FILE).exists():
            return True
        beat = heartbeats.read_heartbeats(self.path).get(self._owner.rank, {})
        if beat.get("space") == heartbeats.pid_namespace() is not None:
            return heartbeats.process_exited(beat)
        return time.time() - beat.get("time", 0.0) > SILENT_SECONDS

    def _look(self) -> dict[str, bytes]:
        """The small files that have changed, by their names on the store. A file that mentions
        another is read before the other."""
        new = {}
        for name, file in {
            self._beat: self._beat,
            layout.RUN_FILE: layout.RUN_FILE,
            self._manifest: self._manifest,
            layout.stream_file(layout.EVENTS_FILE, self._manifest): layout.EVENTS_FILE,
            layout.stream_file(layout.ALERTS_FILE, self._manifest): layout.ALERTS_FILE,
        }.items():
            with suppress(FileNotFoundError):
                content = (self.path / file).read_bytes()
                if file.endswith(".jsonl"):  # the last line may be incomplete
                    content = content[: content.rfind(b"\n") + 1]
                if content and content != self._contents.get(name):
                    new[name] = content
        return new

    def _send_parts(self, names: list[str]) -> None:
        batch: dict[str, bytes] = {}
        for name in names:
            batch[name] = (self.path / name).read_bytes()
            if sum(map(len, batch.values())) >= BATCH_BYTES:
                self._store.put(batch)
                batch = {}
        self._store.put(batch)
