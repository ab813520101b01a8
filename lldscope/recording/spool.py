"""A run that is recorded to an object store: claimed there, written here, sent by another process.

    SPOOL/                                LLDSCOPE_SPOOL, or ~/.local/state/lldscope/spool
      3f2a…/                              what this machine records of one run
        a1-r0-5be1c07d/                   a run directory with the rows of one recorder
          spool.json                      where they belong, and whose they are
          closed                          the recorder has written everything
          refused                         what the store refuses now
        a1-r0-5be1c07d.lock               some process sends that spool

A recorder writes a run directory of its own, as it does anywhere, and knows nothing of the store
after its start. `upload` sends what is sealed, in a process that is no child of the training's
interpreter: its network code never holds up a training thread, and goes on when the training is
killed. After the machine was switched off, the next recorder of the run there, or `lldscope
upload`, sends the rest.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

from ..core.errors import LldscopeError
from ..storage import heartbeats, json_files, layout
from ..storage.file_system import check_file_system
from ..storage.manifest import MANIFEST_DIR, manifest_path, owner_of
from ..storage.objects import ObjectStore
from ..storage.part import Owner
from ..storage.url import Url
from .attempt import already_holds, next_owner

log = logging.getLogger("lldscope")

SPOOL_FILE, CLOSED_FILE, ERROR_FILE = "spool.json", "closed", "refused"
_ELSEWHERE = "Set LLDSCOPE_SPOOL to a folder on a local disk."
LOOK_SECONDS = 5.0  # between two looks whether the process that sends is alive


def spool_root() -> Path:
    """The folder in which recorders of this machine keep unsent data."""
    if place := os.environ.get("LLDSCOPE_SPOOL"):
        return Path(place)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "lldscope" / "spool"


def run_folder(url: Url) -> Path:
    return spool_root() / hashlib.sha256(str(url).encode()).hexdigest()[:16]


def claim_file(owner: Owner) -> str:
    """The object that claims an owner for a process; readers ignore it."""
    return f"{MANIFEST_DIR}/{owner}.claim"


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"The spool {path} cannot be written ({error.strerror}). {_ELSEWHERE}"
        raise LldscopeError(why) from error


class Spool:
    """The spool of one recorder, `owner`, which is claimed on the store.

    `path` is the run directory that it writes, `url` the run's place on the store. Raises
    RunExists, or LldscopeError if the store or the spool cannot be written.
    """

    def __init__(self, url: Url, rank: int, resume: bool, attempt: int | None) -> None:
        self.url, self._token = url, uuid.uuid4().hex
        store = ObjectStore(url)
        stems = {PurePath(file).stem for file in store.listing(MANIFEST_DIR)}
        owners = {owner for stem in stems if (owner := owner_of(f"{stem}.jsonl"))}
        has_run = any(owner.rank == 0 for owner in owners)
        if rank == 0 and not resume and (has_run or store.read([layout.RUN_FILE])):
            raise already_holds(url)
        with _plain_errors(run_folder(url)):  # before anything is claimed
            check_file_system(run_folder(url), _ELSEWHERE)
        claim = json_files.to_json({"token": self._token, "time": time.time()}).encode()
        names = store.listing(heartbeats.HEARTBEAT_DIR) if owners else ()
        beats = store.read(f"{heartbeats.HEARTBEAT_DIR}/{name}" for name in names)
        self.owner = next_owner(
            url, owners, heartbeats.parse(beats), rank, resume, attempt,
            lambda owner: owner not in owners and store.create(claim_file(owner), claim),
        )
        self.path = run_folder(url) / f"{self.owner}-{self._token[:8]}"
        self._beat = heartbeats.file_of(rank)
        # The state of the previous recorder: only rank 0 writes run.json.
        files = {} if rank or self.owner.is_first else store.read([layout.RUN_FILE])
        if self._beat in beats and not self.owner.is_first:
            files[self._beat] = beats[self._beat]
        with _plain_errors(self.path):
            for folder in (heartbeats.HEARTBEAT_DIR, MANIFEST_DIR):
                (self.path / folder).mkdir(parents=True, mode=0o700)
            self.path.chmod(0o700)
            manifest_path(self.path, *self.owner).touch()
            for file, content in files.items():
                (self.path / file).write_bytes(content)

    def open(self) -> None:
        """Begin to send what is sealed, and what other recorders of the run have left here. Raises
        OSError, or LldscopeError if the store refuses the run."""
        state = {
            "address": self.url.address, "token": self._token,
            "owner": str(self.owner),
        }
        json_files.replace_file(self.path / SPOOL_FILE, json_files.to_json(state))
        files = (file for file in (layout.RUN_FILE, self._beat) if (self.path / file).exists())
        ObjectStore(self.url).put({file: (self.path / file).read_bytes() for file in files})
        for file in self.path.parent.glob(f"*/{SPOOL_FILE}"):
            _keep_sending(file.parent)

    def keep_sending(self, warn: Callable[..., None]) -> None:
        """Start the process that sends, unless one runs. `warn` logs what the store refuses, once
        for each message."""
        _keep_sending(self.path)
        with suppress(OSError):
            if error := (self.path / ERROR_FILE).read_text(encoding="utf-8"):
                message = "%s Training goes on; sealed parts wait in %s."
                warn(f"store: {error}", message, error, self.path)

    def close(self, seconds: float) -> bool:
        """Mark the spool as complete, and wait until all of it is on the store."""
        with suppress(OSError):
            (self.path / CLOSED_FILE).touch()
        until = time.monotonic() + seconds
        last_look = -math.inf
        while self.path.exists() and time.monotonic() < until:
            if time.monotonic() - last_look > LOOK_SECONDS:
                last_look = time.monotonic()
                _keep_sending(self.path)
            time.sleep(0.05)
        return not self.path.exists()


@contextmanager
def sending(path: Path) -> Iterator[bool]:
    """Whether this process may send a spool. Meanwhile no other process sends it."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield False
        return
    try:
        free = False
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        yield free
    finally:
        os.close(handle)
        if not path.exists():
            lock.unlink(missing_ok=True)


def _keep_sending(path: Path) -> None:
    """Start `lldscope upload --follow`, which outlives this process, unless one sends the spool."""
    with sending(path) as free:
        pass
    if not free:
        return
    home = str(Path(__file__).parents[2])  # where this lldscope is imported from
    places = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        with open(path.with_name("sending.log"), "ab") as output:
            subprocess.Popen(
                [sys.executable, "-m", "lldscope", "upload", "--follow", str(path)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, "PYTHONPATH": places},
            )
    except OSError as error:
        log.error("lldscope: no process could be started to send %s: %s", path, error)
