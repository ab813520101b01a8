"""The layout of a run directory, its run.json, and its manifests together with its heartbeats.

    RUN/
      run.json                          what the run is, written as a whole by rank 0
      manifest/a1-r0.jsonl              the parts of attempt 1, rank 0; one line per commit
      steps/a1-r0-000001.parquet …      sealed parts of a table; never changed after the rename
      heartbeat/r0.json                 heartbeat of rank 0, replaced every few seconds
      events.jsonl  alerts.jsonl        one JSON object per line
      notes.jsonl                       what people said of the run; see `notes`
      quarantine/…                      damaged parts that `lldscope doctor --repair` moved away

The number in a part's name is that of its seal, counted per recorder; a rank that came back alone
in attempt 1 has files of its own, `a1-r1-s2…` (`part.Owner`). A merged part is named after the
first and the last seal it holds (`a1-r0-000001-000016`), with `-k120` if the rows before step 120
were removed on purpose. Readers take the parts from the manifests alone: a file that no manifest
lists does not count.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ..core import secrets
from ..core.errors import LldscopeError, NewerSchema, RunNotFound
from ..core.schema import SCHEMA_VERSION
from . import json_files
from .heartbeats import HEARTBEAT_DIR, HEARTBEAT_NAME, Beats, file_of, read_heartbeats
from .integrity import MISSING
from .manifest import (
    MANIFEST_DIR,
    Manifest,
    ManifestReader,
    manifest_file,
    manifest_names,
    owner_of,
)
from .part import Owner

RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
ALERTS_FILE = "alerts.jsonl"
NOTES_FILE = "notes.jsonl"
STREAM_DIRS = {"events": EVENTS_FILE, "alerts": ALERTS_FILE}  # on a store, a file per recorder


def stream_file(file: str, manifest: str) -> str:
    """The object on a store that holds a recorder's events or alerts. Two recorders cannot append
    to one object."""
    return f"{Path(file).stem}/{Path(manifest).name}"


def is_small_file(name: str) -> bool:
    """Whether a path in a run is one of the files that are read as a whole: all but the parts."""
    folder, _, file = name.rpartition("/")
    if not folder:
        return file in (RUN_FILE, EVENTS_FILE, ALERTS_FILE, NOTES_FILE)
    if folder in (MANIFEST_DIR, *STREAM_DIRS):
        return owner_of(file) is not None
    return folder == HEARTBEAT_DIR and HEARTBEAT_NAME.fullmatch(file) is not None


def _are_attempts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(a, dict) and json_files.is_time(a.get("started"))
        and isinstance(a.get("attempt"), int | None) for a in value
    )


def _is_import(value: Any) -> bool:
    kinds = {"counted": str | None, "notes": list | None}
    return isinstance(value, dict) and all(isinstance(value.get(k), kinds[k]) for k in kinds)


# Validators of the fields of run.json that are read.
_NAMES = ("id", "name", "group", "correct_rule")  # a number is a name, too
_IS_VALID: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_NAMES, lambda v: type(v) in (str, int, float)),
    **dict.fromkeys(("trainer", "reason", "note"), lambda v: type(v) is str),
    "tags": lambda v: isinstance(v, list) and all(isinstance(tag, str) for tag in v),
    "imported": _is_import,
    **dict.fromkeys(("created", "ended"), json_files.is_time),
    "status": lambda v: v in ("running", "finished", "failed", "stopped"),
    "world_size": lambda v: type(v) is int and 1 <= v < 2**31,
    "attempts": _are_attempts,
}


def read_run(
    run: Path, damaged: dict[str, str] | None = None, place: str | None = None
) -> dict[str, Any]:
    """The content of run.json. Invalid fields become None, and are added to `damaged`.

    `place` is the location shown in messages if the run is read from a copy. Raises RunNotFound if
    there is no run at the path, NewerSchema if a newer lldscope wrote it, LldscopeError if run.json
    cannot be read.
    """
    place = place or str(run)
    if not run.exists():
        raise RunNotFound(f"There is no run at {place}: the path does not exist.")
    if not run.is_dir():
        raise RunNotFound(
            f"{place} is a file; a run is a directory with a {RUN_FILE} in it. For a "
            f"log: lldscope diagnose {place}"
        )
    try:
        info = json_files.parse(json_files.read_bytes(run / RUN_FILE, run))
    except FileNotFoundError:
        raise RunNotFound(_why_no_run(run)) from None
    except (ValueError, OSError) as error:
        why = json_files.reason(error)
        raise LldscopeError(f"{place}/{RUN_FILE} cannot be read: {why}.") from None
    version = info.get("schema") if isinstance(info, dict) else None
    if type(version) is not int or version < 1:
        raise LldscopeError(
            f"{place}/{RUN_FILE} is not a run.json of lldscope: it has no `schema`."
        )
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{place} was written with schema {version}; this lldscope reads up to "
            f"{SCHEMA_VERSION}. Upgrade lldscope to open it."
        )
    invalid = [k for k, ok in _IS_VALID.items() if info.get(k) is not None and not ok(info[k])]
    if invalid and damaged is not None:
        damaged[RUN_FILE] = f"its {', '.join(invalid)} cannot be read"
    return info | dict.fromkeys(invalid)


def try_read_run(run: Path, damaged: dict[str, str], place: str) -> dict[str, Any]:
    """The content of run.json. If run.json is lost and there are manifests, the result is empty
    and the loss is added to `damaged`. Without manifests it raises as `read_run` does."""
    try:
        return read_run(run, damaged, place)
    except NewerSchema:
        raise
    except LldscopeError as error:
        if not manifest_names(run):
            raise
        why = "it is missing" if isinstance(error, RunNotFound) else str(error).removesuffix(".")
        damaged[RUN_FILE] = (
            f"{why}: configuration, status and the rule for correct are not known. "
            "`lldscope doctor --repair` writes a new one"
        )
        return {}


def new_run(now: float, **fields: Any) -> dict[str, Any]:
    """The content of a new run.json, created at a Unix time; fields that are not given are None."""
    identity = {"schema": SCHEMA_VERSION, "id": uuid.uuid4().hex}
    others = ("name", "group", "trainer", "config", "correct_rule", "world_size", "attempts")
    state = ("status", "reason", "ended")
    return {**identity, "created": now, **dict.fromkeys(others + state), **fields}


def write_run(run: Path, info: dict[str, Any]) -> None:
    """Replace run.json, which only its user can read if it holds a credential. Raises OSError."""
    mode = 0o600 if secrets.holds(info.get("config")) else 0o666
    json_files.replace_file(run / RUN_FILE, json_files.to_json(info, indent=1), mode)


def _why_no_run(run: Path) -> str:
    if manifest_names(run):
        return f"{run} has lost its {RUN_FILE}. `lldscope doctor --repair` writes a new one."
    runs = sorted(p.parent.name for p in run.glob(f"*/{RUN_FILE}"))
    if runs:
        return f"{run} is a folder of runs, not a run. Name one of: {', '.join(runs[:8])}."
    if not any(run.iterdir()):
        return f"{run} is empty: nothing has been recorded there."
    return (
        f"{run} holds no {RUN_FILE}: it is not a run that lldscope recorded. If it holds logs: "
        f"lldscope diagnose {run}"
    )


def read_manifest(
    run: Path, reader: ManifestReader | None = None, beats: Beats | None = None
) -> Manifest:
    """The parts that count now, over all attempts and ranks, in the order they were committed.

    With a `reader`, only lines appended since its last use are read. `beats` are heartbeats that
    were read before.
    """
    # Read before the manifests, which only grow.
    reported = reported_lines(read_heartbeats(run) if beats is None else beats)
    result = (reader or ManifestReader(run)).read()
    for owner, lines in reported.items():
        name = manifest_file(*owner)
        actual = result.owners.get(owner)
        if actual is None and lines:
            result.damaged[name] = MISSING
        elif actual is not None and actual < lines:
            why = f"{lines - actual} of the {lines} lines that were written are missing"
            result.damaged[name] = why
    return result


def missing_heartbeats(manifest: Manifest, ranks: Collection[int]) -> dict[str, str]:
    """Missing heartbeat → the words for that. `ranks` are those with a heartbeat. Every other rank
    that has sealed something has lost its own: a recorder writes its heartbeat first."""
    sealed = {owner.rank for owner, lines in manifest.owners.items() if lines}
    return {file_of(rank): MISSING for rank in sealed - {*ranks}}


def reported_lines(beats: Beats) -> dict[Owner, int]:
    """Recorder → the number of lines that its manifest has at least, according to heartbeats."""
    reported: dict[Owner, int] = {}
    for beat in beats.values():
        lines = beat.get("lines")
        for name, n in lines.items() if isinstance(lines, dict) else ():
            if (owner := owner_of(name)) and type(n) is int:
                reported[owner] = n
    return reported
