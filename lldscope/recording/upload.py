"""Sends what a recorder has sealed in its spool to the object store of its run.

The run lies there as it does in a directory. Objects are sent in such an order that a reader finds
every one that another names: parts, events and alerts, the manifest that lists the parts, and last
run.json and the heartbeat. What the store has is compared with the spool from time to time, and at
the end, because a request that failed may still be carried out later.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.errors import LldscopeError
from ..storage import heartbeats, json_files, layout
from ..storage.compaction import SILENT_SECONDS
from ..storage.manifest import ManifestFile, manifest_path
from ..storage.objects import ObjectStore
from ..storage.part import Part
from ..storage.url import Url
from .spool import CLOSED_FILE, ERROR_FILE, SPOOL_FILE, claim_file, size_of

LOOK_SECONDS = 0.5
RETRY_SECONDS = 2.0  # at most, between two rounds that the store refuses
COMPARE_SECONDS = 30.0  # between two looks at what the store has
AWAY_SECONDS = 3600.0  # without an answer, after the recorder has ended
RATE = 1 << 20  # bytes a second of small files: a long manifest is sent less often
BATCH_BYTES = 64 << 20  # of parts that are read into memory at once
KEEP_BYTES = 1 << 30  # of parts that are sent and not merged yet
GRACE_SECONDS = 60.0  # parts that were replaced stay this long for readers that are using them


class Sender:
    """Sends the spool of one recorder, in a folder `path`; gone when all of it is on the store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            state = json_files.parse((path / SPOOL_FILE).read_bytes())
            self._owner = state["attempt"], state["rank"]
            self._store, self._token = ObjectStore(Url(state["address"])), state["token"]
        except (OSError, ValueError, KeyError, TypeError):
            raise LldscopeError(f"{path / SPOOL_FILE} cannot be read.") from None
        self._manifest = str(manifest_path(Path(), *self._owner))
        self._beat = heartbeats.file_of(self._owner[1])
        self._commits = ManifestFile(path, *self._owner)
        self._contents: dict[str, bytes] = {}  # small file → what the store has
        self._is_known = False  # whether the run on the store is that of this recorder
        self._sent: set[tuple[str, str]] = set()  # (table, file)
        self._stale: list[tuple[float, str]] = []  # since when, object
        self._missing: set[Path] = set()  # parts that were not in the spool
        self._compared = 0.0

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

    def finish(self) -> bool:
        """Send what there is; True if the recorder has ended and all of it is on the store."""
        return any(self.round() for _ in range(3))  # the last one compares

    def round(self) -> bool:
        """Send what waits now; True if that was the last. Raises LldscopeError if the store refuses
        it, OSError if the spool cannot be read."""
        if not self._is_known:
            self._read_store()
        has_ended = self._has_ended()
        if has_ended or time.monotonic() - self._compared > COMPARE_SECONDS:
            self._compare()
        new = self._look()
        parts = [part for key, part in self._commits.active.items() if key not in self._sent]
        self._send_parts(parts)
        last = {self._beat, layout.RUN_FILE}
        for group in (new.keys() - {self._manifest} - last, {self._manifest}, last):
            objects = {name: new[name] for name in group & new.keys()}
            self._store.put(objects)
            self._contents |= objects
        is_last = has_ended and not new and not parts
        self._remove_stale(0.0 if is_last else GRACE_SECONDS)
        if is_last:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self._make_room()
        return is_last

    def _read_store(self) -> None:
        """Take as sent what the store's manifest lists: parts are sent before it. Raises
        LldscopeError if the run there is not that of this recorder."""
        claim = claim_file(*self._owner)
        content = self._store.read([claim, self._manifest])
        if json_files.parse(content.get(claim, b"{}")).get("token") != self._token:
            raise LldscopeError(f"{self._store.url} is another run by now.")
        stored = ManifestFile(self.path, *self._owner)
        for line in content.get(self._manifest, b"").splitlines():
            stored.replay(line)
        self._sent = {*stored.active, *stored.replaced}
        self._is_known = True

    def _has_ended(self) -> bool:
        """Whether nothing more will come from the recorder, as far as can be known."""
        if (self.path / CLOSED_FILE).exists():
            return True
        beat = heartbeats.read_heartbeats(self.path).get(self._owner[1], {})
        if beat.get("space") == heartbeats.pid_namespace() is not None:
            return heartbeats.process_exited(beat)
        return time.time() - beat.get("time", 0.0) > SILENT_SECONDS

    def _compare(self) -> None:
        """Forget what the store has not, or has in another state: it is sent again. Files of lines
        only grow, so that their size says which state it is."""
        states = self._store.read(name for name in self._contents if name.endswith(".json"))
        sizes: dict[str, Any] = {}
        for folder in {name.rpartition("/")[0] for name in self._contents.keys() - states.keys()}:
            for file, info in self._store.listing(folder).items():
                sizes[f"{folder}/{file}"] = info.get("size")
        self._contents = {
            name: content for name, content in self._contents.items()
            if states.get(name) == content or sizes.get(name) == len(content)
        }
        self._compared = time.monotonic()

    def _look(self) -> dict[str, bytes]:
        """The small files that have changed, by their names on the store. What speaks of a file is
        read before that file; of the manifest, the lines that were read as commits."""
        new = {}
        for name, file in {
            self._beat: self._beat,
            layout.RUN_FILE: layout.RUN_FILE,
            self._manifest: self._manifest,
            layout.stream_file(layout.EVENTS_FILE, self._manifest): layout.EVENTS_FILE,
            layout.stream_file(layout.ALERTS_FILE, self._manifest): layout.ALERTS_FILE,
        }.items():
            if file == self._manifest:
                self._commits.read()
            with suppress(FileNotFoundError):
                content = (self.path / file).read_bytes()
                if file == self._manifest:
                    content = content[: self._commits.offset]
                elif file.endswith(".jsonl"):  # the last line may be incomplete
                    content = content[: content.rfind(b"\n") + 1]
                if content and content != self._contents.get(name):
                    new[name] = content
        return new

    def _send_parts(self, parts: list[Part]) -> None:
        """Raises FileNotFoundError for a part that is not there, once: the recorder has merged it
        since the manifest was read, and the next round looks anew. Otherwise it is lost."""
        batch: dict[str, bytes] = {}
        for part in parts:
            path = part.path(self.path)
            try:
                batch[f"{part.table}/{part.file}"] = path.read_bytes()
            except FileNotFoundError:
                if path not in self._missing:
                    self._missing.add(path)
                    raise
            if sum(map(len, batch.values())) >= BATCH_BYTES:
                self._store.put(batch)
                batch = {}
        self._store.put(batch)
        self._sent |= {(p.table, p.file) for p in parts}

    def _remove_stale(self, grace: float) -> None:
        """Delete parts on the store that were replaced `grace` seconds ago."""
        now = time.monotonic()
        removals = self._commits.replaced.keys() & self._sent
        self._sent -= removals
        self._stale += [(now, f"{table}/{file}") for table, file in removals]
        self._store.delete([name for since, name in self._stale if since <= now - grace])
        self._stale = [(since, name) for since, name in self._stale if since > now - grace]

    def _make_room(self) -> None:
        """Remove parts that are sent, the oldest first, beyond KEEP_BYTES; they are not merged any
        more."""
        excess = size_of(self.path) - KEEP_BYTES
        for key, part in self._commits.active.items():
            if excess <= 0:
                return
            if key in self._sent and part.path(self.path).exists():
                part.path(self.path).unlink(missing_ok=True)
                excess -= part.size
