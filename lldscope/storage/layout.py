"""What a run looks like on disk; every path, name and file format of a run directory is here.

    RUN/
      run.json                          what the run is, written whole by rank 0
      manifest/a1-r0.jsonl              the sealed parts of attempt 1, rank 0; one line a seal
      steps/a1-r0-000001.parquet …      sealed parts of a table; never changed after the rename
      heartbeat/r0.json                 sign of life of rank 0, replaced every few seconds
      events.jsonl  alerts.jsonl        one JSON object a line
      quarantine/…                      damaged parts that `lldscope doctor --repair` moved away

The number in a part's name is that of the seal that wrote it, counted per attempt and rank; merged
parts are called by the first and the last seal they hold (`a1-r0-000001-000016`), with `-k120` if
the rows before step 120 were removed on purpose. Readers take parts from the manifests alone
(`manifest`): a file that no manifest lists does not count. `part_file` writes both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..core.errors import LldscopeError, NewerSchema, RunNotFound
from ..core.schema import SCHEMA_VERSION
from . import files
from .heartbeats import (
    HEARTBEAT_DIR,
    is_heartbeat,
    read_heartbeats,
)
from .manifest import (
    MANIFEST_DIR,
    Manifest,
    ManifestReader,
    is_manifest,
    manifest_names,
)

RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
ALERTS_FILE = "alerts.jsonl"


# -- lines ----------------------------------------------------------------------------------------


def read_lines(path: Path) -> Iterator[Any]:
    """The JSON values of a .jsonl file; lines that cannot be read are left out, a missing file is
    empty."""
    for value, _ in files.read_lines(path, path.parent)[0]:
        yield value


# -- run.json -------------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return type(value) in (str, int, float)


def _are_attempts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(a, dict) and files.is_time(a.get("started")) for a in value
    )


# Fields of run.json that are read, and what they must be to be believed.
_BELIEVED: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("id", "name", "group", "trainer", "correct_rule", "reason"), _is_text),
    **dict.fromkeys(("created", "ended"), files.is_time),
    "status": lambda v: v in ("running", "finished", "failed", "stopped"),
    "world_size": lambda v: type(v) is int and 1 <= v < 2**31,
    "attempts": _are_attempts,
}


def read_run(
    run: Path, damaged: dict[str, str] | None = None, place: str | None = None
) -> dict[str, Any]:
    """The content of run.json; a field that cannot be believed is None, and named in `damaged` if
    that is given. `place` is where people know the run to lie, if it is read from a copy.

    Raises RunNotFound if there is no run at the path, NewerSchema if it was written by a newer
    lldscope, LldscopeError if run.json cannot be understood.
    """
    place = place or str(run)
    if not run.exists():
        raise RunNotFound(f"There is no run at {place}: the path does not exist.")
    if not run.is_dir():
        raise RunNotFound(f"{place} is a file; a run is a directory with a {RUN_FILE} in it.")
    try:
        info = files.parse(files.read_bytes(run / RUN_FILE, run))
    except FileNotFoundError:
        raise RunNotFound(_no_run(run)) from None
    except (ValueError, OSError) as error:
        raise LldscopeError(f"{place}/{RUN_FILE} cannot be read: {files.words(error)}.") from None
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
    odd = [k for k, fits in _BELIEVED.items() if info.get(k) is not None and not fits(info[k])]
    if odd and damaged is not None:
        damaged[RUN_FILE] = f"it has no sound {', '.join(odd)}"
    return info | dict.fromkeys(odd)


def read_run_if_sound(run: Path, damaged: dict[str, str], place: str) -> dict[str, Any]:
    """The content of run.json for readers: nothing, and a word in `damaged`, where it is lost and
    manifests say that a run is there all the same. Raises as `read_run` does."""
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


def _no_run(run: Path) -> str:
    if manifest_names(run):
        return f"{run} has lost its {RUN_FILE}. `lldscope doctor --repair` writes a new one."
    runs = sorted(p.parent.name for p in run.glob(f"*/{RUN_FILE}"))
    if runs:
        return f"{run} is a folder of runs, not a run. Name one of: {', '.join(runs[:8])}."
    if not any(run.iterdir()):
        return f"{run} is empty: nothing has been recorded there."
    return f"{run} holds no {RUN_FILE}: it is not a run that lldscope recorded."


# -- parts and manifests --------------------------------------------------------------------------


def is_small_file(name: str) -> bool:
    """Whether a path in a run is one of the files that are read whole: all but the parts."""
    folder, _, file = name.rpartition("/")
    if not folder:
        return file in (RUN_FILE, EVENTS_FILE, ALERTS_FILE)
    if folder == MANIFEST_DIR:
        return is_manifest(file)
    return folder == HEARTBEAT_DIR and is_heartbeat(file)


def read_manifest(run: Path, reader: ManifestReader | None = None) -> Manifest:
    """All parts that count now, over all attempts and ranks, in the order they were sealed.

    A `reader` that is kept reads only what was added since it was last used.
    """
    counted = counted_lines(run)  # before the manifests, which only grow
    result = (reader or ManifestReader(run)).read()
    for name, lines in counted.items():
        found = result.lines.get(name)
        if found is None and lines:
            result.damaged[f"{MANIFEST_DIR}/{name}"] = "the file is missing"
        elif found is not None and found < lines:
            result.damaged[f"{MANIFEST_DIR}/{name}"] = (
                f"{lines - found} of the {lines} lines that were written are gone"
            )
    return result


def counted_lines(run: Path) -> dict[str, int]:
    """What the heartbeats say of the manifests: file name → lines at least."""
    counted: dict[str, int] = {}
    for beat in read_heartbeats(run).values():
        lines = beat.get("lines")
        for name, n in lines.items() if isinstance(lines, dict) else ():
            if is_manifest(name) and type(n) is int:
                counted[name] = n
    return counted
