"""Start and end of an attempt: the run directory, the manifest of a recorder, and run.json.

Two processes that start the same run need no lock: creating a manifest is atomic. The first process
succeeds; the second is refused, or begins the next attempt if it resumes.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import RunExists, UsageError
from ..storage import heartbeats, json_files, layout
from ..storage.file_system import check_file_system
from ..storage.manifest import MANIFEST_DIR, manifest_names, manifest_path
from ..storage.part import Owner
from ..storage.url import Url

log = logging.getLogger("lldscope")

_INSTEAD = (
    "Record to the address of the store (s3://BUCKET/RUN): what is sealed waits in a local spool, "
    "from which it is sent (lldscope upload). Or record into a folder on a local disk."
)
Beats = Mapping[int, Mapping[str, Any]]  # rank → its last heartbeat


def start_attempt(path: Path, rank: int, resume: bool, attempt: int | None) -> Owner:
    """Create the directory, and the manifest of this process; return what it records as.

    Raises RunExists, LldscopeError, OSError.
    """
    if rank == 0 and (path / layout.RUN_FILE).exists():
        layout.read_run(path)  # raises for a run that this version must not write to
        if not resume:
            raise already_holds(path)
    check_file_system(path, _INSTEAD)
    for folder in (MANIFEST_DIR, heartbeats.HEARTBEAT_DIR):
        (path / folder).mkdir(exist_ok=True)

    def claim(candidate: Owner) -> bool:
        try:
            manifest_path(path, *candidate).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    beats = heartbeats.read_heartbeats(path)
    return next_owner(path, manifest_names(path), beats, rank, resume, attempt, claim)


def already_holds(place: Path | Url) -> RunExists:
    return RunExists(f"{place} already holds a run. Resume it, or choose another directory.")


def next_owner(
    place: Path | Url,
    owners: Collection[Owner],
    beats: Beats,
    rank: int,
    resume: bool,
    attempt: int | None,
    claim: Callable[[Owner], bool],
) -> Owner:
    """The owner as which a process records. Raises RunExists.

    A rank that resumes without a given attempt joins the last attempt of the other ranks, unless it
    already took part and they have ended. Otherwise it begins the next one. `owners` and `beats`
    are those of the run so far; `claim` creates the claim of an owner and returns whether it is
    new.
    """
    last = max((owner.attempt for owner in owners), default=1)
    is_behind = all(owner.attempt < last for owner in owners if owner.rank == rank)
    joins = attempt is not None or is_behind or _sisters_record(beats, rank, last)
    is_told, beat = attempt is not None, beats.get(rank, {})
    if attempt is None:
        attempt = (last if joins else last + 1) if resume else 1
    candidate = Owner(attempt, rank)
    while not claim(candidate):
        runs = heartbeats.is_of(beat, candidate) and heartbeats.process_runs(beat)
        if not resume or (is_told and runs):
            process = f" ({beat['pid']})" if isinstance(beat.get("pid"), int) else ""
            raise RunExists(
                f"Another process{process} has started to record {place} as rank {rank} of attempt "
                f"{candidate.attempt}. Choose another directory, give each process a rank of its "
                "own, or resume if that process has ended."
            )
        again = Owner(candidate.attempt, rank, candidate.start + 1)
        candidate = again if joins else Owner(candidate.attempt + 1, rank)
    return candidate


def _sisters_record(beats: Beats, rank: int, attempt: int) -> bool:
    """Whether other ranks still record an attempt. For ranks on another machine this is unknown
    (they may just have been killed), so rank 0, with which a whole run resumes, does not rely on
    it."""
    sisters = [beat for r, beat in beats.items() if r != rank and beat.get("attempt") == attempt]
    record = heartbeats.may_run if rank else heartbeats.process_runs
    return any(map(record, sisters))


def warn_of_live_writer(path: Path, owner: Owner) -> None:
    """Warn if an earlier process of the rank is alive: both are recorded, one is shown."""
    beat = heartbeats.read_heartbeats(path).get(owner.rank, {})
    if not owner.is_first and heartbeats.process_runs(beat):
        log.warning(
            "lldscope: process %s still records %s as rank %d, too. Rows are not mixed: of the "
            "steps that both record, only those of this process are shown. Stop one of them.",
            beat.get("pid"),
            path,
            owner.rank,
        )


def check_numbers(*, rank: int, world_size: int, attempt: int | None) -> None:
    """Raises UsageError for numbers that cannot be those of a process."""
    for name, value, least in (("rank", rank, 0), ("world_size", world_size, 1),
                               ("attempt", 1 if attempt is None else attempt, 1)):
        if not hasattr(value, "__index__") or not least <= value < 2**31:
            raise UsageError(f"{name} must be a whole number, {least} or more; it is {value!r}.")


def plain_end(status: Any, reason: Any, is_complete: bool = True) -> tuple[str, str | None]:
    """The end of a run as readers expect it: an unknown status becomes part of the reason, and so
    does data that could not be written."""
    reasons = [] if reason is None else [text_of(reason)]
    status = text_of(status)
    if status not in ("finished", "failed", "stopped"):
        reasons, status = [": ".join([status, *reasons])], "stopped"
    if not is_complete:
        reasons.append("unfinished: rows or events were not written")
        status = "stopped" if status == "finished" else status
    return status, "; ".join(reasons) or None


def text_of(value: Any) -> str:
    """A value as text, also one whose own conversion raises."""
    try:
        return str(value)
    except Exception:
        return f"a {type(value).__name__} without text"


def to_plain(**info: Any) -> dict[str, Any]:
    """The values as stored in run.json. Raises UsageError if a value cannot become JSON."""
    plain = {}
    for name, value in info.items():
        if name != "config" and not isinstance(value, str | int | float | None):
            raise UsageError(f"{name} must be a text; it is {type(value).__name__}.")
        try:
            plain[name] = json_files.jsonable(value)
        except Exception as error:
            raise UsageError(
                f"{name} cannot be written into {layout.RUN_FILE} "
                f"({type(error).__name__}: {error}). Give it as plain data: numbers, text, lists "
                "and dictionaries."
            ) from error
    return plain


def write_run_file(path: Path, owner: Owner, world_size: int, fields: dict[str, Any]) -> None:
    """Write run.json at the start of rank 0; fields that are not given stay as they were.

    Raises OSError, LldscopeError.
    """
    now = json_files.now()
    resumes = not owner.is_first and (path / layout.RUN_FILE).exists()
    old = layout.read_run(path) if resumes else {}
    info = layout.new_run(now) | old | {k: v for k, v in fields.items() if v is not None}
    entry = {
        "attempt": owner.attempt, "started": now, "world_size": world_size,
        "host": socket.gethostname(), "pid": os.getpid(),
    }
    others = [a for a in info.get("attempts") or [] if a.get("attempt") != owner.attempt]
    info |= {"world_size": world_size, "attempts": [*others, entry]}
    info |= {"status": "running", "reason": None, "ended": None}
    layout.write_run(path, info)


def finish_attempt(path: Path, attempt: int, status: str, reason: str | None) -> None:
    """Write into run.json how the attempt ended, and the run, unless a later attempt continues it.

    Raises OSError or LldscopeError.
    """
    info = layout.read_run(path)
    outcome = {"status": status, "reason": reason, "ended": json_files.now()}
    attempts = info.get("attempts") or []
    info["attempts"] = [a | outcome if a.get("attempt") == attempt else a for a in attempts]
    last = attempts[-1].get("attempt") if attempts else None
    if last is None or last == attempt:
        info |= outcome
    layout.write_run(path, info)
