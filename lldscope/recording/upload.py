"""Sends what a recorder has sealed in its spool to the object store of its run.

First the parts, then an entry of the log with the lines of the manifest that list them, the
heartbeat and what else has changed: a reader finds every part that an entry names. All of it is
sent again until the store has it.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from ..core.errors import LldscopeError
from ..storage import heartbeats, json_files, layout, logs
from ..storage.compaction import SILENT_SECONDS
from ..storage.manifest import ManifestFile, manifest_path
from ..storage.objects import ObjectStore
from ..storage.part import Part, part_name
from ..storage.url import Url
from .spool import CLOSED_FILE, ERROR_FILE, SPOOL_FILE, size_of

LOOK_SECONDS = 0.5
RETRY_SECONDS = 2.0  # at most, between two rounds that the store refuses
AWAY_SECONDS = 3600.0  # without an answer, after the recorder has ended
BATCH_BYTES = 64 << 20  # of parts that are read into memory at once
KEEP_BYTES = 1 << 30  # of parts that are sent and not merged yet
GRACE_SECONDS = 60.0  # objects that were replaced stay this long for readers that are using them


class Sender:
    """Sends the spool of one recorder, in a folder `path`; gone when all of it is on the store.

    Entries of the log are written here before they are sent, so that a name has one content for
    good. Raises LldscopeError if the store has another run by now.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            state = json_files.parse((path / SPOOL_FILE).read_bytes())
            self._owner = state["attempt"], state["rank"]
            self._store, self._token = ObjectStore(Url(state["address"])), state["token"]
        except (OSError, ValueError, KeyError, TypeError):
            raise LldscopeError(f"{path / SPOOL_FILE} cannot be read.") from None
        self._is_claimed = False  # as far as is known
        (path / logs.LOG_DIR).mkdir(exist_ok=True)
        files = (path / logs.LOG_DIR).iterdir()
        self._names = logs.covering(n for f in files if (n := logs.log_name(f.name)))
        self._unsent = self._names.copy()  # by this process; the store may have them
        self._logged = logs.join(map(self._entry, self._names))
        self._lengths = Counter({f: len(text.encode()) for f, text in self._logged.items()})
        self._manifest = manifest_path(path, *self._owner).relative_to(path).as_posix()
        sealed = ManifestFile(path, *self._owner)
        for line in self._logged.get(self._manifest, "").encode().splitlines():
            sealed.replay(line)
        self._sent = {*sealed.active}  # (table, file): parts are sent before what lists them
        self._commits = ManifestFile(path, *self._owner)
        self._stale: list[tuple[float, str]] = []  # since when, object
        self._missing: set[Path] = set()  # parts that were not in the spool

    def follow(self) -> None:
        """Send what is sealed until everything of the recorder is on the store."""
        pause, error, last_answer = LOOK_SECONDS, "", time.monotonic()
        while self.path.exists():
            before, error = error, ""
            try:
                self.round()
                pause, last_answer = LOOK_SECONDS, time.monotonic()
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
        """Send what waits now; True if that was the last. Raises LldscopeError if the store refuses
        it, OSError if the spool cannot be read."""
        self._check_claim()
        has_ended = self._has_ended()
        new, parts = self._look()
        self._send_parts(parts)
        if new:
            self._append(new)
        self._store.put({n.path: (self.path / n.path).read_bytes() for n in self._unsent})
        self._unsent.clear()
        self._store.delete(self._take_stale())
        if not has_ended or any(self._look()):  # or something has come in meanwhile
            self._make_room()
            return False
        self._store.delete(self._leftovers())
        shutil.rmtree(self.path, ignore_errors=True)
        return True

    def _check_claim(self) -> None:
        claim = logs.claim_path(*self._owner)
        if not self._is_claimed:
            content = self._store.read([claim]).get(claim, b"{}")
            if json_files.parse(content).get("token") != self._token:
                raise LldscopeError(f"{self._store.url} is another run by now.")
            self._is_claimed = True

    def _has_ended(self) -> bool:
        """Whether nothing more will come from the recorder, as far as can be known."""
        if (self.path / CLOSED_FILE).exists():
            return True
        beat = heartbeats.read_heartbeats(self.path).get(self._owner[1], {})
        if beat.get("space") == heartbeats.pid_namespace() is not None:
            return heartbeats.process_exited(beat)
        return time.time() - beat.get("time", 0.0) > SILENT_SECONDS

    def _entry(self, name: logs.LogName) -> logs.Entry:
        return logs.parse((self.path / name.path).read_bytes())

    def _look(self) -> tuple[logs.Entry, list[Part]]:
        """What has changed since the last entry, and the parts to send before it. What speaks of a
        file is read before that file."""
        new: logs.Entry = {}
        for file in (heartbeats.file_of(self._owner[1]), layout.RUN_FILE):
            with suppress(FileNotFoundError):
                content = (self.path / file).read_text(encoding="utf-8")
                if content != self._logged.get(file):
                    new[file] = content
        self._commits.read()
        for file in (self._manifest, layout.EVENTS_FILE, layout.ALERTS_FILE):
            with suppress(FileNotFoundError), open(self.path / file, "rb") as lines:
                start = lines.seek(self._lengths[file])
                size = self._commits.offset - start if file == self._manifest else -1
                content = lines.read(size).decode(errors="replace")
                if content := content[: content.rfind("\n") + 1]:  # the last may be incomplete
                    new[file] = content
        parts = [p for key, p in self._commits.active.items() if key not in self._sent]
        return new, parts

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

    def _append(self, new: logs.Entry) -> None:
        last = self._names[-1].last if self._names else 0
        name = logs.name_of(*self._owner, last + 1)
        spanned = [n for n in self._names if n.first >= name.first]
        entry = logs.join([*map(self._entry, spanned), new])
        json_files.replace_file(self.path / name.path, json_files.to_json(entry))
        self._names = logs.covering([*self._names, name])
        self._unsent = [n for n in self._unsent if n not in spanned] + [name]
        for old in spanned:
            (self.path / old.path).unlink()
            self._stale.append((time.monotonic(), old.path))
        self._lengths.update({f: len(text.encode()) for f, text in new.items()})
        self._logged |= new

    def _take_stale(self) -> list[str]:
        """The objects that no reader uses any more, once."""
        now = time.monotonic()
        removals = self._commits.replaced.keys() & self._sent
        self._sent -= removals
        self._stale += [(now, f"{table}/{file}") for table, file in removals]
        old = [name for since, name in self._stale if since <= now - GRACE_SECONDS]
        self._stale = [(since, name) for since, name in self._stale if since > now - GRACE_SECONDS]
        return old

    def _leftovers(self) -> list[str]:
        """The objects of this recorder on the store that count no more."""
        names = filter(None, map(logs.log_name, self._store.listing(logs.LOG_DIR)))
        old = [n.path for n in names if n.owner == self._owner and n not in self._names]
        active = self._commits.active
        for table in {table for table, _ in (*active, *self._commits.replaced)}:
            for file in self._store.listing(table):
                part = part_name(file)
                if part is not None and part.owner == self._owner and (table, file) not in active:
                    old.append(f"{table}/{file}")
        return old

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
