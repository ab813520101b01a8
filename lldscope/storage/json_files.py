"""JSON files of a run directory, written whole or a line at a time."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from . import files

IN_PROGRESS = ".inprogress"

_UNPRINTABLE = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that any parser reads: NaN and Inf become the strings "NaN", "Infinity", "-Infinity".

    What a terminal would obey (control and direction characters) is written as \\u escapes.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, indent=indent, default=_plain)
    return _UNPRINTABLE.sub(lambda c: f"\\u{ord(c[0]):04x}", text)


def jsonable(value: Any) -> Any:
    """What a reader will find of a value; raises whatever making or reading its JSON does."""
    return files.parse(to_json(value).encode())


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return _finite(value.tolist())
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 else _finite(float(value))
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
