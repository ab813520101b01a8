"""Sends what recorders have sealed in their spools to the object store of their run.

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
from .spool import CLOSED_FILE, ERROR_FILE, SPOOL_FILE, sending, size_of

LOOK_SECONDS = 0.5
RETRY_SECONDS = 2.0  # at most, between two rounds that the store refuses
LINGER_SECONDS = 10.0  # for the next recorder, after the last one
AWAY_SECONDS = 3600.0  # without an answer, after the last recorder has ended
BATCH_BYTES = 64 << 20  # of parts that are read into memory at once
KEEP_BYTES = 1 << 30  # of parts that are sent and not merged yet, per recorder
GRACE_SECONDS = 60.0  # objects that were replaced stay this long for readers that are using them


class SpooledRun:
    """One recorder's spool, and its log: what is on its way to the store.

    Entries are written here before they are sent, so that a name has one content for good.
    """

    def __init__(self, path: Path, owner: tuple[int, int]) -> None:
        self.path, self.owner = path, owner
        (path / logs.LOG_DIR).mkdir(exist_ok=True)
        files = (path / logs.LOG_DIR).iterdir()
        self._names = logs.covering(n for f in files if (n := logs.log_name(f.name)))
        self._unsent = self._names.copy()  # by this process; the store may have them
        self._logged = logs.join(map(self._entry, self._names))
        self._lengths = Counter({f: len(text.encode()) for f, text in self._logged.items()})
        self._manifest = manifest_path(path, *owner).relative_to(path).as_posix()
        sealed = ManifestFile(path, *owner)
        for line in self._logged.get(self._manifest, "").encode().splitlines():
            sealed.replay(line)
        self._sent = {*sealed.active}  # (table, file): parts are sent before what lists them
        self._commits = ManifestFile(path, *owner)
        self._stale: list[tuple[float, str]] = []  # since when, object

    def _entry(self, name: logs.LogName) -> logs.Entry:
        return logs.parse((self.path / name.path).read_bytes())

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come from the recorder, as far as can be known."""
        if (self.path / CLOSED_FILE).exists():
            return True
        beat = heartbeats.read_heartbeats(self.path).get(self.owner[1], {})
        if beat.get("space") == heartbeats.pid_namespace() is not None:
            return heartbeats.process_exited(beat)
        return time.time() - beat.get("time", 0.0) > SILENT_SECONDS

    def look(self) -> tuple[logs.Entry, list[Part]]:
        """What has changed since the last entry, and the parts to send before it. What speaks of a
        file is read before that file."""
        new: logs.Entry = {}
        for file in (heartbeats.file_of(self.owner[1]), layout.RUN_FILE):
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

    def append(self, new: logs.Entry, parts: list[Part]) -> dict[str, bytes]:
        """The parts are on the store: write an entry; returns the objects to send."""
        self._sent |= {(p.table, p.file) for p in parts}
        if new:
            last = self._names[-1].last if self._names else 0
            name = logs.name_of(*self.owner, last + 1)
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
        return {name.path: (self.path / name.path).read_bytes() for name in self._unsent}

    def done(self) -> list[str]:
        """The objects are on the store; returns those that no reader uses any more, once."""
        now = time.monotonic()
        self._unsent.clear()
        removals = self._commits.replaced.keys() & self._sent
        self._sent -= removals
        self._stale += [(now, f"{table}/{file}") for table, file in removals]
        old = [name for since, name in self._stale if since <= now - GRACE_SECONDS]
        self._stale = [(since, name) for since, name in self._stale if since > now - GRACE_SECONDS]
        self._make_room()
        return old

    def leftovers(self, store: ObjectStore) -> list[str]:
        """The objects of this recorder on the store that count no more."""
        names = filter(None, map(logs.log_name, store.listing(logs.LOG_DIR)))
        old = [n.path for n in names if n.owner == self.owner and n not in self._names]
        active = self._commits.active
        for table in {table for table, _ in (*active, *self._commits.replaced)}:
            for file in store.listing(table):
                part = part_name(file)
                if part is not None and part.owner == self.owner and (table, file) not in active:
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
            pause, error = LOOK_SECONDS, None
            last_use = last_answer = time.monotonic()
            while self._spools or time.monotonic() - last_use < LINGER_SECONDS:
                before, error = error, None
                try:
                    self.round()
                    pause, last_answer = LOOK_SECONDS, time.monotonic()
                except (LldscopeError, OSError) as failure:
                    error = str(failure)
                    pause = min(2 * pause, RETRY_SECONDS)
                if error != before:
                    with suppress(OSError):
                        json_files.replace_file(self.folder / ERROR_FILE, error or "")
                if self._spools:
                    last_use = time.monotonic()
                if time.monotonic() - last_answer > AWAY_SECONDS and all(
                    spool.has_ended for spool in self._spools.values()
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
        ended = [spool for spool in self._spools.values() if spool.has_ended]
        looks = [(spool, *spool.look()) for spool in self._spools.values()]
        unread = self._send_parts([(s, part) for s, _, parts in looks for part in parts])
        looks = [look for look in looks if look[0] not in unread]
        objects: dict[str, bytes] = {}
        for spool, new, parts in looks:
            objects |= spool.append(new, parts)
        self._store.put(objects)
        self._store.delete([name for spool, *_ in looks for name in spool.done()])
        for spool in ended:
            if not any(spool.look()):  # and nothing has come in meanwhile
                self._store.delete(spool.leftovers(self._store))
                del self._spools[spool.path]
                shutil.rmtree(spool.path, ignore_errors=True)

    def _adopt(self) -> None:
        """Look for new spools; each must be of the run that is at its address now. One that
        somebody has removed is forgotten."""
        self._spools = {path: s for path, s in self._spools.items() if path.exists()}
        for file in self.folder.glob(f"*/{SPOOL_FILE}"):
            path = file.parent
            if path in self._spools or path in self.refused:
                continue
            try:
                spool = json_files.parse(file.read_bytes())
                owner, url = (spool["attempt"], spool["rank"]), Url(spool["address"])
                token = spool["token"]
            except (OSError, ValueError, KeyError, TypeError):
                self.refused[path] = f"{SPOOL_FILE} cannot be read"
                continue
            store = self._store = self._store or ObjectStore(url)
            claim = logs.claim_path(*owner)
            content = store.read([claim]).get(claim, b"{}")
            if json_files.parse(content).get("token") == token:
                self._spools[path] = SpooledRun(path, owner)
            else:
                self.refused[path] = f"{url} is another run by now"

    def _send_parts(self, parts: list[tuple[SpooledRun, Part]]) -> set[SpooledRun]:
        """Send parts; returns the spools of which a part could not be read. It has been merged
        away since the manifest was read; one that is still missing in the next round is lost."""
        assert self._store is not None
        unread = set()
        batch: dict[str, bytes] = {}
        for spool, part in parts:
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
