"""Lines and JSON objects of files of any size and in any state, in bounded memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from ..core.errors import SeveralRuns, UsageError
from ..storage.json_files import parse
from .source import Findings

PACKED = {".gz": "gzip", ".zst": "zstd"}
_BLOCK = 1 << 20
_HEAD = 1 << 16  # bytes of a file that its format is recognized by
MAX_DOCUMENT = 64 << 20  # bytes of a JSON document or notebook, and …
MAX_CONTAINERS = 1_000_000  # … its lists and objects
MAX_LINE = 16 << 20  # bytes; a rollout with its token ids has some hundred KB
MAX_TEXT_LINE = 1 << 20  # of what a trainer prints
_CELL = re.compile(r"<t[hd][^>]{0,200}>(.*?)</t[hd]>", re.S)


def open_file(path: Path) -> BinaryIO:
    """The content of a file, unpacked if it is a .gz or .zst."""
    file = path.open("rb")
    if path.suffix not in PACKED:
        return file
    import pyarrow as pa

    unpacked = pa.CompressedInputStream(pa.PythonFile(file), PACKED[path.suffix])
    return BufferedReader(unpacked)


def bare_name(path: Path) -> str:
    """The name of a file without its compression suffix."""
    return path.stem if path.suffix in PACKED else path.name


def head(path: Path) -> bytes:
    """The first bytes of a file; empty if it is not a readable file."""
    if not path.is_file():
        return b""
    try:
        with open_file(path) as file:
            return file.read(_HEAD)
    except OSError:
        return b""


def file_states(path: Path) -> list[list[Any]]:
    """Name, size and time of a file and of its WAL, which holds a database's latest writes; they
    change with every write."""
    files = (path, path.with_name(path.name + "-wal"))
    stats = [(file, file.stat()) for file in files if file.exists()]
    return [[str(file), stat.st_size, stat.st_mtime_ns] for file, stat in stats]


def lines(
    path: Path, findings: Findings, longest: int | None = None
) -> Iterator[tuple[bytes, bool]]:
    """The lines of a file, without line ends, and whether each is complete: the last one may be
    half written. Lines of more than `longest` bytes (None: MAX_LINE) are counted."""
    longest = longest or MAX_LINE
    size = 0
    try:
        with open_file(path) as file:
            while line := file.readline(longest + 1):
                size += len(line)
                if size >= _BLOCK:
                    findings.advance(size)
                    size = 0
                if len(line) > longest and not line.endswith(b"\n"):
                    findings.skip(f"lines of more than {longest >> 20} MB")
                    while (line := file.readline(_BLOCK)) and not line.endswith(b"\n"):
                        findings.advance(len(line))
                else:
                    yield line.removesuffix(b"\n"), line.endswith(b"\n")
    except OSError as error:
        why = getattr(error, "strerror", None) or error
        findings.skip(f"files that cannot be read to their end ({why})")
    findings.advance(size)


def is_notebook(path: Path) -> bool:
    return Path(bare_name(path)).suffix == ".ipynb"


def text_lines(path: Path, findings: Findings) -> Iterator[tuple[bytes, bool]]:
    """The lines of a text, like `lines`; for a notebook, the output of its cells."""
    if not is_notebook(path):
        yield from lines(path, findings, MAX_TEXT_LINE)
        return
    try:
        cells = document(path, findings)["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
    except (TypeError, KeyError, AttributeError):
        outputs = []
    for output in filter(lambda value: isinstance(value, dict), outputs):
        data = output.get("data") if isinstance(output.get("data"), dict) else {}
        html = _joined(data.get("text/html"))
        for row in re.findall(r"<tr.*?</tr>", html, re.S):
            names = (re.sub(r"<[^>]*>|\s+", " ", c).strip() for c in _CELL.findall(row))
            yield " | ".join(names).encode("utf-8", "replace"), True
        text = _joined(output.get("text")) or ("" if html else _joined(data.get("text/plain")))
        for line in text.split("\n"):
            if len(line) <= MAX_TEXT_LINE:
                yield line.encode("utf-8", "replace"), True


def document(path: Path, findings: Findings) -> Any:
    """The value of a JSON file; None (and counted) if it is invalid."""
    try:
        with open_file(path) as file:
            text = file.read(MAX_DOCUMENT + 1)
        findings.advance(len(text))
        if len(text) > MAX_DOCUMENT or text.count(b"[") + text.count(b"{") > MAX_CONTAINERS:
            findings.skip(
                f"JSON documents of more than {MAX_DOCUMENT >> 20} MB or {MAX_CONTAINERS:,} objects"
            )
            return None
        return parse(text)
    except (OSError, ValueError):
        findings.skip("JSON documents that are damaged or half written")
        return None


def _joined(value: Any) -> str:
    """The text of a notebook's field: one string, or a list of them."""
    parts = value if isinstance(value, list) else [value]
    return "".join(part for part in parts if isinstance(part, str))


def objects(path: Path, findings: Findings) -> Iterator[dict[str, Any]]:
    """The objects of a .jsonl file; other lines are skipped."""
    for line, is_complete in lines(path, findings):
        try:
            value = parse(line) if line.strip() else None
        except ValueError:
            findings.skip(
                "lines that are not JSON" if is_complete else "last lines that are half written"
            )
            continue
        if isinstance(value, dict):
            yield value
        elif value is not None:
            findings.skip("lines that are not a JSON object")


def first_object(start: bytes) -> dict[str, Any] | None:
    """The object on the first line of a file that begins with `start`; None if there is none, or if
    it is longer than `start`."""
    line = start.lstrip().partition(b"\n")[0]
    try:
        value = parse(line) if line.startswith(b"{") else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def number(value: Any) -> float | None:
    """A number or numeric text of a log as a float; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


# A rate or a norm that is under a thousandth is printed as 0.000: unknown, and not 0.
_SMALL = re.compile(r"(?i)grad|learning.?rate|(?:^|[/_-])lr\b")
_ROUNDED = re.compile(r"[-+]?0\.0{3,6}")


def is_lost_to_rounding(name: str, text: str, findings: Findings) -> bool:
    """Whether a rate or norm was printed with so few decimals that it became 0; counted."""
    is_gone = _ROUNDED.fullmatch(text) is not None and _SMALL.search(name) is not None
    if is_gone:
        findings.skip("learning rates and gradient norms that were printed as 0.000")
    return is_gone


def seconds_of(value: Any) -> float | None:
    """Unix time of a number of seconds or milliseconds, or of an ISO date (UTC unless it has a
    zone); None for other values."""
    seconds = number(value)
    if seconds is not None:
        seconds = seconds / 1000 if seconds > 1e11 else seconds
        return seconds if 1e9 < seconds < 1e11 else None
    try:
        moment = datetime.fromisoformat(str(value))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def as_step(value: Any) -> int | None:
    """A step of a log, `3` or `3/200`, as an int; None for other values."""
    step = number(value.partition("/")[0] if isinstance(value, str) else value)
    valid = step is not None and step.is_integer() and 0 <= step < 2**31
    return int(step) if step is not None and valid else None


def natural_key(path: Path) -> list[Any]:
    """A sort key of file names: step 2 before step 10."""
    parts = re.split(r"(\d+)", str(path))
    return [int(part) if i % 2 else part for i, part in enumerate(parts)]


def listing(names: Sequence[str], most: int = 20) -> str:
    """The first names and the number of further ones, for a sentence."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def choose_run(query: str | None, runs: Mapping[str, str], where: Path | str) -> str | None:
    """The id of the requested run among `runs` (id → name); None if there are no runs. Raises
    UsageError with the sorted names if several runs exist and none was requested, or if the
    requested one does not exist."""
    if query is None and len(runs) <= 1:
        return next(iter(runs), None)
    matches = [i for i, name in runs.items() if query in (i, name)]
    if len(matches) == 1:
        return matches[0]
    names = list(runs.values())
    ordered = sorted(((name, run) for run, name in runs.items()), key=str)  # ids may be anything
    listed = [name if names.count(name) == 1 else f"{name} ({run})" for name, run in ordered]
    text = listing(listed)
    if query is None:
        keys = [name if names.count(name) == 1 else run for name, run in ordered]
        message = f"{where} holds {len(runs)} runs; say which with --run: {text}."
        raise SeveralRuns(message, keys)
    many = "more than one run" if matches else "no run"
    raise UsageError(f"{where} holds {many} called {query}. It holds: {text}.")


def of_one_run(
    paths: Sequence[Path], findings: Findings, run_of: Callable[[Path], str]
) -> list[Path]:
    """The paths of the requested run; `run_of` gives the run of a path. Raises UsageError like
    `choose_run`."""
    runs = {run: Path(run).name for run in map(run_of, paths)}
    where = Path(os.path.commonpath([path.absolute() for path in paths])) if paths else Path()
    run = choose_run(findings.request.run if len(runs) > 1 else None, runs, where)
    return sorted((path for path in paths if run_of(path) == run), key=natural_key)
