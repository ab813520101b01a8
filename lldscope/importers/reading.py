"""Lines and JSON objects of files of any size and in any state, in bounded memory."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from .source import Findings

_BLOCK = 1 << 20
MAX_LINE = 64 << 20  # bytes; a rollout with its token ids has some hundred KB
_ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?")


def open_file(path: Path) -> BinaryIO:
    """The content of a file, unpacked if it is a .gz."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # type: ignore


def head(path: Path, size: int) -> bytes:
    """The first bytes of a file; empty for whatever is none or cannot be read."""
    if not path.is_file():
        return b""
    try:
        with open_file(path) as file:
            return file.read(size)
    except (OSError, EOFError):
        return b""


def lines(path: Path, findings: Findings, mark: bytes = b"") -> Iterator[tuple[bytes, bool]]:
    """The lines of a file that hold `mark`, without their ends, and whether each has ended: the
    last one may be half written. A line that is longer than any log's is skipped and
    counted."""
    rest, tail = b"", b""
    try:
        with open_file(path) as file:
            while block := file.read(_BLOCK):
                findings.advance(len(block))
                complete = (rest + block).split(b"\n")
                rest = complete.pop()
                if len(rest) > MAX_LINE:
                    findings.skip(f"stretches of more than {MAX_LINE >> 20} MB without a line end")
                    rest = b""
                for line in [line for line in complete if mark in line]:
                    yield line, True
            tail = rest
    except (OSError, EOFError) as error:
        findings.skip(f"files that cannot be read to their end ({_reason(error)})")
        tail = rest
    if tail and mark in tail:
        yield tail, False


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def objects(path: Path, findings: Findings) -> Iterator[dict[str, Any]]:
    """The objects of a .jsonl file, whatever else is in it."""
    for line, ended in lines(path, findings):
        try:
            value = _json(line) if line.strip() else None
        except (ValueError, RecursionError):
            findings.skip(
                "lines that are not JSON" if ended else "last lines that are half written"
            )
            continue
        if isinstance(value, dict):
            yield value
        elif value is not None:
            findings.skip("lines that are no JSON object")


def _json(text: bytes) -> Any:
    """orjson is five times as fast; json accepts more, such as NaN and Inf."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def first_object(start: bytes) -> dict[str, Any] | None:
    """The object on the first line of a file, of which `start` is the beginning; None if there is
    none, or if it is longer than that."""
    line = start.lstrip().partition(b"\n")[0]
    try:
        value = json.loads(line) if line.startswith(b"{") else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def first_keys(start: bytes) -> frozenset[str]:
    """The keys on the first line of a .jsonl file, also where it is longer than `start`: then those
    that can be seen in it."""
    value = first_object(start)
    if value is not None:
        return frozenset(value)
    if not start.lstrip().startswith(b"{"):
        return frozenset()
    line = start.lstrip().partition(b"\n")[0]
    return frozenset(key.decode() for key in re.findall(rb'"([A-Za-z_]{1,40})"\s*:', line))


def strip_ansi(line: bytes) -> bytes:
    """A line of terminal output without what would colour or move it."""
    return _ESCAPES.sub(b"", line) if b"\x1b" in line else line


def number(value: Any) -> float | None:
    """A number of a log as a float, parsed where it is text; None if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def as_step(value: Any) -> int | None:
    """A step of a log as an int; None if it is none."""
    step = number(value)
    valid = step is not None and step.is_integer() and 0 <= step < 2**31
    return int(step) if step is not None and valid else None


def natural_key(path: Path) -> list[Any]:
    """A sort key of file names: step 2 before step 10."""
    return [int(s) if s.isdigit() else s for s in re.split(r"(\d+)", str(path))]
