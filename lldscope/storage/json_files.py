"""Small files of a run directory: read in any state, written as a whole or line by line.

Only regular files inside the run are opened: no symlink that leads outside, no pipe, no device.
Small files have a maximum size. A file that cannot be read raises ValueError with the reason, so
that a reader can report it and go on.

Each line of a .jsonl file ends with the CRC-32 of the text before it. Lines written by older
versions or by hand have none; they are accepted.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import stat
import time
import zlib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import orjson

IN_PROGRESS = ".inprogress"  # suffix of a file that is being written
LAST_TIME = 253_402_300_799.0  # the end of the year 9999
MAX_BYTES = 256 << 20  # of a small file; a manifest of 100,000 lines has about 100 MB
_BLOCK = 1 << 20

_CHECKSUM = re.compile(rb', "crc": (\d{1,10})\}\Z')
_SURROGATE = re.compile(r"\\ud[89a-f]", re.I)
_UNPRINTABLE = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)


def open_inside(path: Path, run: Path) -> BinaryIO:
    """Open a regular file of the run for reading.

    Raises FileNotFoundError, another OSError, or ValueError if it is not a regular file of the run.
    """
    real = os.path.realpath(path)
    if not real.startswith(os.path.join(os.path.realpath(run), "")):
        raise ValueError("it is a link that leads out of the run")
    if not stat.S_ISREG(os.stat(real).st_mode):  # opening a pipe would wait for its writer
        raise ValueError("it is not a regular file")
    return open(real, "rb")


def read_bytes(path: Path, run: Path) -> bytes:
    """The content of a small file of the run; raises as `open_inside` does."""
    with open_inside(path, run) as file:
        size = os.fstat(file.fileno()).st_size
        check_size(size)
        return file.read(size)  # a larger number would take that much memory


def check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise ValueError(f"it has {size} bytes, too many for such a file")


def checksum(file: BinaryIO) -> int:
    """CRC-32 of an open file, from its current position to its end."""
    crc = 0
    while block := file.read(_BLOCK):
        crc = zlib.crc32(block, crc)
    return crc


def parse(raw: bytes) -> Any:
    """The value of a JSON text; raises ValueError if it is not one.

    orjson is five times as fast; json accepts more, such as NaN and half a surrogate pair.
    """
    with contextlib.suppress(orjson.JSONDecodeError):
        return orjson.loads(raw)
    try:
        text = raw.decode("utf-8")
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    return _encodable(value) if _SURROGATE.search(text) else value


def _encodable(value: Any) -> Any:
    """Replace half a surrogate pair, which JSON can hold and no output can encode, by "?"."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(k): _encodable(v) for k, v in value.items()}
    return [_encodable(v) for v in value] if isinstance(value, list) else value


def parse_line(raw: bytes) -> tuple[Any, bool]:
    """The value of a line, and whether the line has a checksum. Raises ValueError."""
    value = parse(raw)
    match = _CHECKSUM.search(raw)
    if match is None or not isinstance(value, dict):
        return value, False
    if zlib.crc32(raw[: match.start()] + b"}") != int(match[1]):
        raise ValueError("its checksum is wrong")
    del value["crc"]
    return value, True


def read_lines(path: Path, run: Path | None = None) -> tuple[list[Any], dict[str, str]]:
    """The values of a .jsonl file, and location → reason of what cannot be read.

    A missing file is empty. A torn last line, as a kill leaves it, is no damage: it was never
    complete. `run` is the directory that the file must be in, by default its own.
    """
    run = run or path.parent
    name = path.relative_to(run).as_posix()
    try:
        lines = read_bytes(path, run).split(b"\n")
    except FileNotFoundError:
        return [], {}
    except (ValueError, OSError) as error:
        return [], {name: reason(error)}
    values, damaged = [], {}
    for number, line in enumerate(lines, 1):
        try:
            if line:
                values.append(parse_line(line)[0])
        except ValueError as error:
            if number < len(lines) or not is_torn(line):
                damaged[f"{name} line {number}"] = reason(error)
    return values, damaged


def is_torn(line: bytes) -> bool:
    """Whether an incomplete last line was cut off by a kill, rather than overwritten."""
    return line.startswith(b"{") and b"\0" not in line


def reason(error: Exception) -> str:
    """Why a file could not be read."""
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror or type(error).__name__})"
    return str(error)


def is_time(value: Any) -> bool:
    """Whether a value can be a Unix time, of the years 1970 to 9999."""
    return type(value) in (int, float) and 0 <= value <= LAST_TIME


def now() -> float:
    """The Unix time, kept within what readers accept whatever the clock of this machine says."""
    return min(max(time.time(), 0.0), LAST_TIME)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that any parser reads: NaN and Inf become the strings "NaN", "Infinity", "-Infinity".

    Control and direction characters, which a terminal would obey, are written as \\u escapes.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, indent=indent, default=_basic)
    return _UNPRINTABLE.sub(lambda c: f"\\u{ord(c[0]):04x}", text)


def jsonable(value: Any) -> Any:
    """The value as a reader will get it back; raises whatever converting it to JSON raises."""
    return parse(to_json(value).encode())


def _basic(value: Any) -> Any:
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


def with_checksum(text: str) -> bytes:
    """A JSON object as a line that ends with its checksum."""
    return f'{text[:-1]}, "crc": {zlib.crc32(text.encode())}}}\n'.encode()


def replace_file(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a small file atomically: a reader sees the old content or the new one. The umask
    applies to `mode` as to any file."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{IN_PROGRESS}")
    try:
        with open(temporary, "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, mode)) as new:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())  # else a power cut could leave the name with nothing in it
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):  # a full disk can refuse this as well
            temporary.unlink(missing_ok=True)
        raise


def append_line(path: Path, value: Any) -> None:
    """Append an object as one line of JSON; see `append_text`."""
    append_text(path, to_json(value))


def append_text(path: Path, text: str) -> None:
    """Append one JSON line and its checksum with a single write, and make it durable.

    If a kill or a full disk cut off the last line, the new one starts on a line of its own. Raises
    OSError if the disk did not accept the whole line; then nothing of the line stays in the file.
    """
    line = with_checksum(text)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        n_bytes = os.write(handle, line)
        if n_bytes < len(line):
            if os.fstat(handle).st_size == size + n_bytes:  # no other process has appended since
                os.ftruncate(handle, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        with contextlib.suppress(OSError):  # written already; only a power loss could undo it
            os.fsync(handle)
    finally:
        os.close(handle)
