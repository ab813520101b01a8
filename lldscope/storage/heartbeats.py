"""Heartbeats: which process records as a rank, and when it was last alive."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from . import json_files
from .part import Owner

HEARTBEAT_DIR = "heartbeat"
HEARTBEAT_LOST = 30.0  # seconds without a heartbeat until its process counts as lost

HEARTBEAT_NAME = re.compile(r"r(\d{1,9})\.json")


@cache
def pid_namespace() -> str | None:
    """The machine boot and process namespace in which a pid is valid; Linux only."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


Beats = Mapping[int, Mapping[str, Any]]  # rank → its last heartbeat


def file_of(rank: int) -> str:
    return f"{HEARTBEAT_DIR}/r{rank}.json"


def write_heartbeat(run: Path, rank: int, *, closed: bool, **state: Any) -> None:
    """Replace a rank's heartbeat; that of a closed recorder names no process."""
    process = {} if closed else {"pid": os.getpid(), "space": pid_namespace()}
    beat = {"time": json_files.now(), "closed": closed, **process, **state}
    json_files.replace_file(run / file_of(rank), json_files.to_json(beat))


def read_heartbeats(run: Path, damaged: dict[str, str] | None = None) -> dict[int, dict[str, Any]]:
    """Rank → its last heartbeat. An unreadable heartbeat is left out, and added to `damaged`."""
    beats = {}
    for path in sorted((run / HEARTBEAT_DIR).glob("r*.json")):
        if (match := HEARTBEAT_NAME.fullmatch(path.name)) is None:
            continue
        try:
            beats[int(match[1])] = _parse(json_files.read_bytes(path, run))
        except FileNotFoundError:  # removed since the directory was listed
            continue
        except (ValueError, OSError) as error:
            if damaged is not None:
                damaged[f"{HEARTBEAT_DIR}/{path.name}"] = json_files.reason(error)
    return beats


def parse(files: Mapping[str, bytes]) -> dict[int, dict[str, Any]]:
    """Rank → heartbeat, from the contents of the files. Unreadable heartbeats are left out."""
    beats = {}
    for name, content in files.items():
        if match := HEARTBEAT_NAME.fullmatch(PurePath(name).name):
            with suppress(ValueError):
                beats[int(match[1])] = _parse(content)
    return beats


def _parse(content: bytes) -> dict[str, Any]:
    beat = json_files.parse(content)
    if not isinstance(beat, dict) or not json_files.is_time(beat.get("time")):
        raise ValueError("it is not a heartbeat")
    return beat


def is_of(beat: Mapping[str, Any], owner: Owner) -> bool:
    """Whether this recorder wrote the heartbeat. A heartbeat that names no attempt counts as its
    own."""
    mine = owner.attempt, owner.start
    return (beat.get("attempt", owner.attempt), beat.get("start", 1)) == mine


def process_runs(beat: Mapping[str, Any]) -> bool:
    """True only if the heartbeat's process is known to run on this machine."""
    here = beat.get("space") == pid_namespace() is not None
    return here and not process_exited(beat)


def may_run(beat: Mapping[str, Any]) -> bool:
    """Whether the heartbeat's process was alive a moment ago and is not known to have ended."""
    is_fresh = json_files.now() - float(beat["time"]) < HEARTBEAT_LOST
    return is_fresh and not beat.get("closed") and not process_exited(beat)


def process_exited(beat: Mapping[str, Any]) -> bool:
    """True only if the heartbeat's process ran on this machine and is known to have exited."""
    pid, namespace = beat.get("pid"), beat.get("space")
    if not isinstance(pid, int) or namespace is None or namespace != pid_namespace():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # a foreign process; a number that no process can have
        return False
    return _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended and was not waited for, as in a container without init."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux, or it has just ended
        return False
    return stat.rpartition(")")[2].split()[:1] == ["Z"]
