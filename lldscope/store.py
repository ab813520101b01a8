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

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from .errors import LldscopeError, NewerSchema, RunNotFound
from .schema import SCHEMA_VERSION, TABLES

RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
ALERTS_FILE = "alerts.jsonl"
MANIFEST_DIR = "manifest"
HEARTBEAT_DIR = "heartbeat"
IN_PROGRESS = ".inprogress"

_MANIFEST_NAME = re.compile(r"a(\d+)-r(\d+)\.jsonl")
_PART_NAME = re.compile(r"a\d+-r\d+-\d+\.parquet")
_MAGIC = b"PAR1"


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

    def path(self, run: Path) -> Path:
        return run / self.table / self.file

    def entry(self) -> dict[str, Any]:
        """The part as its manifest line tells it."""
        return {
            "file": self.file,
            "rows": self.rows,
            "bytes": self.size,
            "steps": [self.first_step, self.last_step],
        }


@dataclass
class Manifest:
    """The parts of a run that count now, and the manifest lines that could not be read."""

    parts: list[Part] = field(default_factory=list)
    bad_lines: list[str] = field(default_factory=list)


# -- small files ----------------------------------------------------------------------------------


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that any parser reads: NaN and Inf become the strings "NaN", "Infinity", "-Infinity"."""
    return json.dumps(_finite(value), ensure_ascii=False, indent=indent, default=_plain)


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
    """Append one JSON line with a single write."""
    line = (to_json(value) + "\n").encode()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


def read_lines(path: Path) -> Iterator[Any]:
    """The JSON values of a .jsonl file; a torn last line is left out, a missing file is empty."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    for line in text.split("\n"):
        try:
            yield json.loads(line)
        except ValueError:
            continue


# -- run.json -------------------------------------------------------------------------------------


def read_run(run: Path) -> dict[str, Any]:
    """The content of run.json.

    Raises RunNotFound if there is no run at the path, NewerSchema if it was written by a newer
    lldscope, LldscopeError if run.json cannot be understood.
    """
    if not run.exists():
        raise RunNotFound(f"There is no run at {run}: the path does not exist.")
    if not run.is_dir():
        raise RunNotFound(f"{run} is a file; a run is a directory with a {RUN_FILE} in it.")
    try:
        info = json.loads((run / RUN_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunNotFound(_no_run(run)) from None
    except (ValueError, OSError) as error:
        raise LldscopeError(f"{run / RUN_FILE} cannot be read ({error}).") from None
    version = info.get("schema") if isinstance(info, dict) else None
    if not isinstance(version, int):
        raise LldscopeError(f"{run / RUN_FILE} is not a run.json of lldscope: it has no `schema`.")
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{run} was written with schema {version}; this lldscope reads up to "
            f"{SCHEMA_VERSION}. Upgrade lldscope to open it."
        )
    return info


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
    with open(temporary, "wb") as sink:
        pq.write_table(rows, sink, compression="zstd", write_page_checksum=True)
        sink.flush()
        if fsync:
            os.fsync(sink.fileno())
        size = sink.tell()
    os.replace(temporary, final)
    steps = rows.column("step").to_numpy()
    attempt, rank = rows.column("attempt")[0].as_py(), rows.column("rank")[0].as_py()
    return Part(
        table, final.name, attempt, rank, len(rows), size, int(steps.min()), int(steps.max())
    )


def seal(manifest: Path, parts: list[Part], replaces: list[Part] | None = None) -> None:
    """List parts in a manifest with one write: from here on they count (and `replaces` do not)."""
    line: dict[str, Any] = {"time": time.time(), "parts": {p.table: p.entry() for p in parts}}
    if replaces:
        line["replaces"] = {
            p.table: [r.file for r in replaces if r.table == p.table] for p in parts
        }
    append_line(manifest, line)


def manifest_path(run: Path, attempt: int, rank: int) -> Path:
    return run / MANIFEST_DIR / f"a{attempt}-r{rank}.jsonl"


def read_manifest(run: Path) -> Manifest:
    """All parts that count now, over all attempts and ranks, in the order they were sealed."""
    result = Manifest()
    for path in sorted((run / MANIFEST_DIR).glob("*.jsonl"), key=_manifest_order):
        if match := _MANIFEST_NAME.fullmatch(path.name):
            _read_manifest_file(path, int(match[1]), int(match[2]), result)
    return result


def _manifest_order(path: Path) -> tuple[int, ...]:
    match = _MANIFEST_NAME.fullmatch(path.name)
    return tuple(map(int, match.groups())) if match else ()


def _read_manifest_file(path: Path, attempt: int, rank: int, result: Manifest) -> None:
    live: dict[tuple[str, str], Part] = {}
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            entry = json.loads(line)
            added = [_part(table, p, attempt, rank) for table, p in entry["parts"].items()]
            replaced = [(t, f) for t, files in entry.get("replaces", {}).items() for f in files]
        except (ValueError, KeyError, TypeError, AttributeError):
            if number < len(lines):  # the very last line may be torn by a kill; that is no damage
                result.bad_lines.append(f"{MANIFEST_DIR}/{path.name} line {number}")
            continue
        for key in replaced:
            live.pop(key, None)
        live.update({(p.table, p.file): p for p in added})
    result.parts.extend(live.values())


def _part(table: str, entry: dict[str, Any], attempt: int, rank: int) -> Part:
    file = entry["file"]
    if table not in TABLES or not _PART_NAME.fullmatch(file):
        raise ValueError(f"no part of a run: {table}/{file}")
    first, last = entry["steps"]
    rows, size = int(entry["rows"]), int(entry["bytes"])
    return Part(table, file, attempt, rank, rows, size, int(first), int(last))


def damage(run: Path, part: Part) -> str | None:
    """What is visibly wrong with a part's file, in words; None if nothing is.

    A look at size and magic bytes only; a reader that fails on the content names the part itself.
    """
    try:
        with open(part.path(run), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size != part.size:
                return f"{size} bytes instead of {part.size}"
            file.seek(-len(_MAGIC), os.SEEK_END)
            return None if file.read() == _MAGIC else "it does not end as a Parquet file"
    except FileNotFoundError:
        return "the file is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


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


def read_heartbeats(run: Path) -> dict[int, dict[str, Any]]:
    """The last heartbeat of every rank; a heartbeat that cannot be read is left out."""
    beats = {}
    for path in (run / HEARTBEAT_DIR).glob("r*.json"):
        try:
            beats[int(path.stem[1:])] = json.loads(path.read_text())
        except (ValueError, OSError):
            continue
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
