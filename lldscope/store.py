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
(`lldscope.manifest`): a file that no manifest lists does not count. `lldscope.parts` writes both.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import files
from .errors import LldscopeError, NewerSchema, RunNotFound
from .manifest import (
    MANIFEST_DIR,
    Manifest,
    ManifestReader,
    Part,
    is_manifest,
    manifest_path,
)
from .schema import SCHEMA_VERSION

__all__ = ["MANIFEST_DIR", "Manifest", "Part", "manifest_path"]

RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
ALERTS_FILE = "alerts.jsonl"
HEARTBEAT_DIR = "heartbeat"
IN_PROGRESS = ".inprogress"

_HEARTBEAT_NAME = re.compile(r"r(\d{1,9})\.json")
_UNPRINTABLE = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)


# -- small files ----------------------------------------------------------------------------------


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that any parser reads: NaN and Inf become the strings "NaN", "Infinity", "-Infinity".

    What a terminal would obey (control and direction characters) is written as \\u escapes.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, indent=indent, default=_plain)
    return _UNPRINTABLE.sub(lambda c: f"\\u{ord(c[0]):04x}", text)


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # numpy scalar
        return _finite(value.item())
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def replace_file(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old one or the new one, never half of one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{IN_PROGRESS}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):  # on a full disk even this counts
            temporary.unlink(missing_ok=True)
        raise


def append_line(path: Path, value: Any) -> None:
    """Append one JSON line and its checksum with a single write, and make it durable.

    After a line that was cut short, by a kill or a full disk, the new one begins on its own line.
    Raises OSError if the disk did not take all of it; then nothing of it stays.
    """
    line = files.with_checksum(to_json(value))
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        written = os.write(handle, line)
        if written < len(line):
            if os.fstat(handle).st_size == size + written:  # nobody else has appended since
                os.ftruncate(handle, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        with contextlib.suppress(OSError):  # it is there; only a power cut could take it away
            os.fsync(handle)
    finally:
        os.close(handle)


def read_lines(path: Path) -> Iterator[Any]:
    """The JSON values of a .jsonl file; lines that cannot be read are left out, a missing file is
    empty."""
    for value, _ in files.read_lines(path, path.parent)[0]:
        yield value


# -- run.json -------------------------------------------------------------------------------------


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e12


def _is_text(value: Any) -> bool:
    return type(value) in (str, int, float)


def _are_attempts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(a, dict) and _is_time(a.get("started")) for a in value
    )


# Fields of run.json that are read, and what they must be to be believed.
_BELIEVED: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("id", "name", "group", "trainer", "correct_rule", "reason"), _is_text),
    **dict.fromkeys(("created", "ended"), _is_time),
    "status": lambda v: v in ("running", "finished", "failed", "stopped"),
    "world_size": lambda v: type(v) is int and 1 <= v < 2**31,
    "attempts": _are_attempts,
}


def read_run(run: Path, damaged: dict[str, str] | None = None) -> dict[str, Any]:
    """The content of run.json; a field that cannot be believed is None, and named in `damaged` if
    that is given.

    Raises RunNotFound if there is no run at the path, NewerSchema if it was written by a newer
    lldscope, LldscopeError if run.json cannot be understood.
    """
    if not run.exists():
        raise RunNotFound(f"There is no run at {run}: the path does not exist.")
    if not run.is_dir():
        raise RunNotFound(f"{run} is a file; a run is a directory with a {RUN_FILE} in it.")
    try:
        info = files.parse(files.read_bytes(run / RUN_FILE, run))
    except FileNotFoundError:
        raise RunNotFound(_no_run(run)) from None
    except (ValueError, OSError) as error:
        raise LldscopeError(f"{run / RUN_FILE} cannot be read: {files.words(error)}.") from None
    version = info.get("schema") if isinstance(info, dict) else None
    if type(version) is not int or version < 1:
        raise LldscopeError(f"{run / RUN_FILE} is not a run.json of lldscope: it has no `schema`.")
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{run} was written with schema {version}; this lldscope reads up to "
            f"{SCHEMA_VERSION}. Upgrade lldscope to open it."
        )
    odd = [k for k, fits in _BELIEVED.items() if info.get(k) is not None and not fits(info[k])]
    if odd and damaged is not None:
        damaged[RUN_FILE] = f"it has no sound {', '.join(odd)}"
    return info | dict.fromkeys(odd)


def _no_run(run: Path) -> str:
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
    return folder == HEARTBEAT_DIR and _HEARTBEAT_NAME.fullmatch(file) is not None


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


# -- signs of life --------------------------------------------------------------------------------


def process_space() -> str | None:
    """Names the machine boot and process namespace in which a pid means something; Linux only."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def write_heartbeat(run: Path, rank: int, *, closed: bool, **state: Any) -> None:
    """Replace a rank's heartbeat; the last one, of a closed recorder, names no process."""
    process = {} if closed else {"pid": os.getpid(), "space": process_space()}
    beat = {"time": time.time(), "closed": closed, **process, **state}
    replace_file(run / HEARTBEAT_DIR / f"r{rank}.json", to_json(beat))


def read_heartbeats(run: Path, damaged: dict[str, str] | None = None) -> dict[int, dict[str, Any]]:
    """The last heartbeat of every rank; one that cannot be read is left out, and named in
    `damaged` if that is given."""
    beats = {}
    for path in (run / HEARTBEAT_DIR).glob("r*.json"):
        if (match := _HEARTBEAT_NAME.fullmatch(path.name)) is None:
            continue
        try:
            beat = files.parse(files.read_bytes(path, run))
            if not isinstance(beat, dict) or not _is_time(beat.get("time")):
                raise ValueError("it is not a heartbeat")
            beats[int(match[1])] = beat
        except FileNotFoundError:  # gone this moment
            continue
        except (ValueError, OSError) as error:
            if damaged is not None:
                damaged[f"{HEARTBEAT_DIR}/{path.name}"] = files.words(error)
    return beats


def process_gone(beat: Mapping[str, Any]) -> bool:
    """True only if the heartbeat's process ran here and is known to be gone."""
    pid, space = beat.get("pid"), beat.get("space")
    if not isinstance(pid, int) or space is None or space != process_space():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended and nobody has asked how, as in a container without init."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux, or gone this moment
        return False
    return stat.rpartition(")")[2].split()[:1] == ["Z"]
