"""What a run looks like on disk; every path, name and file format of a run directory is here.

    RUN/
      run.json                          what the run is, written whole by rank 0
      manifest/a1-r0.jsonl              the sealed parts of attempt 1, rank 0; one line a seal
      steps/a1-r0-000001.parquet …      sealed parts of a table; never changed after the rename
      heartbeat/r0.json                 sign of life of rank 0, replaced every few seconds
      events.jsonl  alerts.jsonl        one JSON object a line

A part is written under a name that ends in `.inprogress`, renamed, and then listed in the manifest;
one manifest line lists the parts of several tables, so a step becomes visible in all tables at
once. Readers take parts from the manifests alone: a file that no manifest lists does not count.
Each manifest has exactly one writer, and only its last line can be torn by a kill.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import files
from .errors import LldscopeError, NewerSchema, RunNotFound
from .schema import SCHEMA_VERSION, TABLES

RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
ALERTS_FILE = "alerts.jsonl"
MANIFEST_DIR = "manifest"
HEARTBEAT_DIR = "heartbeat"
IN_PROGRESS = ".inprogress"

_MANIFEST_NAME = re.compile(r"a(\d+)-r(\d+)\.jsonl")
_PART_NAME = re.compile(r"a(\d+)-r(\d+)-\d+\.parquet")
_TABLE_NAME = re.compile(r"[a-z_]{1,64}")
_HEARTBEAT_NAME = re.compile(r"r(\d{1,9})\.json")
_MOST_STEP, _MOST_COUNT = 2**31 - 1, 2**50  # what a manifest may claim
_UNPRINTABLE = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)


@dataclass(frozen=True)
class Part:
    """A sealed Parquet file: where it is and what it holds."""

    table: str
    file: str
    attempt: int
    rank: int
    rows: int
    size: int
    first_step: int
    last_step: int
    crc: int | None = None  # CRC-32 of the file; None in runs of versions that wrote none

    def path(self, run: Path) -> Path:
        return run / self.table / self.file

    def entry(self) -> dict[str, Any]:
        """The part as its manifest line tells it."""
        entry = {
            "file": self.file,
            "rows": self.rows,
            "bytes": self.size,
            "steps": [self.first_step, self.last_step],
        }
        return entry if self.crc is None else entry | {"crc": self.crc}


@dataclass
class Manifest:
    """The parts of a run that count now, and what is wrong with the manifests, by place."""

    parts: list[Part] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)


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
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def append_line(path: Path, value: Any) -> None:
    """Append one JSON line and its checksum with a single write."""
    line = files.with_checksum(to_json(value))
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, line)
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


def write_part(run: Path, table: str, stem: str, rows: pa.Table, *, fsync: bool = True) -> Part:
    """Write rows as a sealed part `<stem>.parquet`; it counts once `seal` has listed it."""
    import pyarrow.parquet as pq

    folder = run / table
    folder.mkdir(exist_ok=True)
    final = folder / f"{stem}.parquet"
    temporary = final.with_name(final.name + IN_PROGRESS)
    with open(temporary, "w+b") as sink:
        pq.write_table(rows, sink, compression="zstd", write_page_checksum=True)
        sink.flush()
        if fsync:
            os.fsync(sink.fileno())
        size = sink.tell()
        sink.seek(0)
        crc = files.checksum(sink)
    os.replace(temporary, final)
    steps = rows.column("step").to_numpy()
    attempt, rank = rows.column("attempt")[0].as_py(), rows.column("rank")[0].as_py()
    first, last = int(steps.min()), int(steps.max())
    return Part(table, final.name, attempt, rank, len(rows), size, first, last, crc)


def seal(manifest: Path, parts: list[Part], replaces: list[Part] | None = None) -> None:
    """List parts in a manifest with one write: from here on they count (and `replaces` do not)."""
    line: dict[str, Any] = {"time": time.time(), "parts": {p.table: p.entry() for p in parts}}
    if replaces:
        line["replaces"] = {
            p.table: [r.file for r in replaces if r.table == p.table] for p in parts
        }
    append_line(manifest, line)


def is_small_file(name: str) -> bool:
    """Whether a path in a run is one of the files that are read whole: all but the parts."""
    folder, _, file = name.rpartition("/")
    if not folder:
        return file in (RUN_FILE, EVENTS_FILE, ALERTS_FILE)
    pattern = {MANIFEST_DIR: _MANIFEST_NAME, HEARTBEAT_DIR: _HEARTBEAT_NAME}.get(folder)
    return pattern is not None and pattern.fullmatch(file) is not None


def manifest_path(run: Path, attempt: int, rank: int) -> Path:
    return run / MANIFEST_DIR / f"a{attempt}-r{rank}.jsonl"


def read_manifest(run: Path) -> Manifest:
    """All parts that count now, over all attempts and ranks, in the order they were sealed."""
    result = Manifest()
    counted = _counted_lines(run)  # before the manifests, which only grow
    for path in sorted((run / MANIFEST_DIR).glob("*.jsonl"), key=_manifest_order):
        if match := _MANIFEST_NAME.fullmatch(path.name):
            lines = _read_manifest_file(run, path, int(match[1]), int(match[2]), result)
            if lines < counted.get(path.name, 0):
                counted_here = counted[path.name]
                result.damaged[f"{MANIFEST_DIR}/{path.name}"] = (
                    f"{counted_here - lines} of the {counted_here} lines that were written are gone"
                )
            counted.pop(path.name, None)
    for name, lines in counted.items():
        if lines:
            result.damaged[f"{MANIFEST_DIR}/{name}"] = "the file is missing"
    return result


def count_lines(run: Path, rank: int) -> dict[str, int]:
    """Lines of each manifest of a rank, by file name; heartbeats say them, so that lines that
    get lost later are missed."""
    found = {}
    for path in (run / MANIFEST_DIR).glob(f"a*-r{rank}.jsonl"):
        with contextlib.suppress(OSError):
            found[path.name] = path.read_bytes().count(b"\n")
    return found


def _counted_lines(run: Path) -> dict[str, int]:
    """What the heartbeats say of the manifests: file name → lines at least."""
    counted: dict[str, int] = {}
    for beat in read_heartbeats(run).values():
        lines = beat.get("lines")
        for name, n in lines.items() if isinstance(lines, dict) else ():
            if _MANIFEST_NAME.fullmatch(name) and type(n) is int:
                counted[name] = n
    return counted


def _manifest_order(path: Path) -> tuple[int, ...]:
    match = _MANIFEST_NAME.fullmatch(path.name)
    return tuple(map(int, match.groups())) if match else ()


def _read_manifest_file(run: Path, path: Path, attempt: int, rank: int, result: Manifest) -> int:
    """Take up one manifest; returns the number of its complete lines, sound or not."""
    live: dict[tuple[str, str], Part] = {}
    lines, wrong = files.read_lines(path, run)
    result.damaged |= wrong
    for number, (entry, vouched) in enumerate(lines):
        try:
            added = _parts(entry, attempt, rank, vouched)
            replaced = [(t, f) for t, names in entry.get("replaces", {}).items() for f in names]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            place = f"{MANIFEST_DIR}/{path.name} entry {number + 1}"
            result.damaged[place] = "it lists no parts of this manifest's attempt and rank"
            continue
        for key in replaced:
            live.pop(key, None)
        live.update({(p.table, p.file): p for p in added})
    result.parts.extend(live.values())
    return len(lines) + len(wrong)


def _parts(entry: dict[str, Any], attempt: int, rank: int, vouched: bool) -> list[Part]:
    """The parts of a manifest line. Tables this version does not know are passed over, if a
    checksum says that they were meant."""
    parts = []
    for table, told in entry["parts"].items():
        if table not in TABLES and vouched and _TABLE_NAME.fullmatch(table):
            continue
        part = _part(table, told, attempt, rank)
        if part.crc is not None and not vouched:
            raise ValueError("a line that has lost its checksum")
        parts.append(part)
    return parts


def _part(table: str, entry: dict[str, Any], attempt: int, rank: int) -> Part:
    file, rows, size = entry["file"], entry["rows"], entry["bytes"]
    first, last = entry["steps"]
    crc = entry.get("crc")
    name = _PART_NAME.fullmatch(file)
    if table not in TABLES or name is None or (int(name[1]), int(name[2])) != (attempt, rank):
        raise ValueError(f"no part of this attempt and rank: {table}/{file}")
    numbers = (rows, size, first, last, 0 if crc is None else crc)
    if any(type(n) is not int for n in numbers) or not 0 <= first <= last <= _MOST_STEP:
        raise ValueError(f"no numbers of a part: {numbers}")
    if not (0 <= rows <= _MOST_COUNT and 0 <= size <= _MOST_COUNT):
        raise ValueError(f"no numbers of a part: {numbers}")
    return Part(table, file, attempt, rank, rows, size, first, last, crc)


# -- signs of life --------------------------------------------------------------------------------


def _process_space() -> str | None:
    """Names the machine boot and process namespace in which a pid means something; Linux only."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def write_heartbeat(run: Path, rank: int, *, closed: bool, **state: Any) -> None:
    """Replace a rank's heartbeat; the last one, of a closed recorder, names no process."""
    process = {} if closed else {"pid": os.getpid(), "space": _process_space()}
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
    if not isinstance(pid, int) or space is None or space != _process_space():
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
