"""Start and end of an attempt: the run directory, the attempt's manifest, and run.json.

Two processes that start the same run need no lock: creating the manifest of an attempt is atomic.
The first process succeeds; the second is refused, or becomes the next attempt if it resumes.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.errors import RunExists, UsageError
from ..storage import heartbeats, json_files, layout
from ..storage.manifest import MANIFEST_DIR, manifest_path
from ..storage.url import Url

log = logging.getLogger("lldscope")


def start_attempt(path: Path, rank: int, resume: bool, attempt: int | None) -> int:
    """Create the directory, and this rank's manifest of a new attempt; return the attempt.

    Raises RunExists, LldscopeError, OSError.
    """
    if rank == 0 and (path / layout.RUN_FILE).exists():
        layout.read_run(path)  # raises for a run that this version must not write to
        if not resume:
            raise already_holds(path)
    for folder in (path, path / MANIFEST_DIR, path / heartbeats.HEARTBEAT_DIR):
        folder.mkdir(parents=True, exist_ok=True)

    def claim(candidate: int) -> bool:
        try:
            manifest_path(path, candidate, rank).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    return next_attempt(path, lambda: _who(path, rank), rank, resume, attempt, claim)


def already_holds(place: Path | Url) -> RunExists:
    return RunExists(f"{place} already holds a run. Resume it, or choose another directory.")


def next_attempt(
    place: Path | Url,
    who: Callable[[], str],
    rank: int,
    resume: bool,
    attempt: int | None,
    claim: Callable[[int], bool],
) -> int:
    """The first attempt that this process could claim as a rank. Raises RunExists.

    `claim` creates what says that an attempt is taken, and returns whether it was not there before;
    `who` names the process that has it.
    """
    candidate = attempt or 1
    while not claim(candidate):
        if attempt is not None:
            raise RunExists(
                f"Attempt {attempt} of {place} is already recorded by a rank {rank}. Give each "
                "process a rank of its own."
            )
        if not resume:
            raise RunExists(
                f"{who()} has started to record {place} as rank {rank}. Choose "
                "another directory, give each process a rank of its own, or resume if that "
                "process has ended."
            )
        candidate += 1
    return candidate


def _who(path: Path, rank: int) -> str:
    """The process that records as a rank, as its heartbeat names it."""
    pid = heartbeats.read_heartbeats(path).get(rank, {}).get("pid")
    return f"Another process ({pid})" if isinstance(pid, int) else "Another process"


def warn_of_live_writer(path: Path, attempt: int, rank: int) -> None:
    """Warn if the process of an earlier attempt is alive: both are recorded, one is shown."""
    beat = heartbeats.read_heartbeats(path).get(rank, {})
    local = beat.get("space") is not None and beat.get("space") == heartbeats.pid_namespace()
    if attempt > 1 and local and not beat.get("closed") and not heartbeats.process_exited(beat):
        log.warning(
            "lldscope: process %s still records %s as an earlier attempt. Rows are not mixed, but "
            "from the first step of attempt %d on only this attempt is shown. Stop one of them.",
            beat.get("pid"),
            path,
            attempt,
        )


def check_numbers(*, rank: int, world_size: int, attempt: int | None) -> None:
    """Raises UsageError for numbers that no reader would take for those of a process."""
    for name, value, least in (("rank", rank, 0), ("world_size", world_size, 1),
                               ("attempt", 1 if attempt is None else attempt, 1)):
        if not hasattr(value, "__index__") or not least <= value < 2**31:
            raise UsageError(f"{name} must be a whole number, {least} or more; it is {value!r}.")


def plain_end(status: Any, reason: Any, is_complete: bool = True) -> tuple[str, str | None]:
    """How a run ended, as a reader takes it: another status than those there are becomes part of
    the reason, and so does it if the recorder could not write everything."""
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
    """The values as run.json will hold them; raises UsageError if one cannot become JSON."""
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


def write_run_file(path: Path, attempt: int, world_size: int, fields: dict[str, Any]) -> None:
    """Write run.json of a new attempt; fields that are not given stay as they were.

    Raises OSError, LldscopeError.
    """
    now = json_files.now()
    old = layout.read_run(path) if attempt > 1 and (path / layout.RUN_FILE).exists() else {}
    info = layout.new_run(now) | old | {k: v for k, v in fields.items() if v is not None}
    entry = {"attempt": attempt, "started": now, "host": socket.gethostname(), "pid": os.getpid()}
    attempts = [*(info.get("attempts") or []), entry]
    info |= {"world_size": world_size, "attempts": attempts}
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
