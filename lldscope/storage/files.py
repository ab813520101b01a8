"""Files of a run directory, read whatever state they are in.

Only regular files inside the run are opened: no link that leads out of it, no pipe, no device. A
small file has a largest size. What cannot be read raises ValueError with the reason in words, so
that a reader can name the file and go on.

Lines of a .jsonl file end with a checksum of what stands before it. Lines of older versions and
lines that people write have none, and are taken as they are.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from pathlib import Path
from typing import Any, BinaryIO

MOST_BYTES = 256 << 20  # of a small file; a manifest of 100,000 seals has some 100 MB
_BLOCK = 1 << 20

_CHECKSUM = re.compile(rb', "crc": (\d{1,10})\}\Z')
_SURROGATE = re.compile(r"\\ud[89a-f]", re.I)


def open_inside(path: Path, run: Path) -> BinaryIO:
    """Open a regular file of the run for reading.

    Raises FileNotFoundError, another OSError, or ValueError if it is no regular file of the run.
    """
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(run)):
        raise ValueError("it is a link that leads out of the run")
    if not stat.S_ISREG(os.stat(real).st_mode):  # to open a pipe would wait for its writer
        raise ValueError("it is not a regular file")
    return open(real, "rb")


def read_bytes(path: Path, run: Path) -> bytes:
    """The content of a small file of the run; raises as `open_inside` does."""
    with open_inside(path, run) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise ValueError(f"it has {size} bytes, more than such a file can have")
        return file.read(MOST_BYTES)


def checksum(file: BinaryIO) -> int:
    """CRC-32 of an open file, from where it stands to its end."""
    crc = 0
    while block := file.read(_BLOCK):
        crc = zlib.crc32(block, crc)
    return crc


def parse(raw: bytes) -> Any:
    """A JSON value; raises ValueError for whatever is none."""
    try:
        text = raw.decode("utf-8")
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    return _printable(value) if _SURROGATE.search(text) else value


def _printable(value: Any) -> Any:
    """Half a surrogate pair, which JSON can hold and no output can encode, becomes "?"."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_printable(k): _printable(v) for k, v in value.items()}
    return [_printable(v) for v in value] if isinstance(value, list) else value


def with_checksum(text: str) -> bytes:
    """A JSON object as a line that ends with its checksum."""
    return f'{text[:-1]}, "crc": {zlib.crc32(text.encode())}}}\n'.encode()


def parse_line(raw: bytes) -> tuple[Any, bool]:
    """The value of a line, and whether a checksum vouches for it; raises ValueError."""
    value = parse(raw)
    found = _CHECKSUM.search(raw)
    if found is None or not isinstance(value, dict):
        return value, False
    if zlib.crc32(raw[: found.start()] + b"}") != int(found[1]):
        raise ValueError("its checksum is wrong")
    del value["crc"]
    return value, True


def read_lines(path: Path, run: Path) -> tuple[list[tuple[Any, bool]], dict[str, str]]:
    """The values of a .jsonl file with whether a checksum vouches for each, and what is wrong,
    by place. A missing file is empty.

    A torn last line, as a kill leaves it, is left out and is no damage: it was never complete.
    """
    name = path.relative_to(run).as_posix()
    try:
        lines = read_bytes(path, run).split(b"\n")
    except FileNotFoundError:
        return [], {}
    except (ValueError, OSError) as error:
        return [], {name: words(error)}
    values, wrong = [], {}
    for number, line in enumerate(lines, 1):
        try:
            if line:
                values.append(parse_line(line))
        except ValueError as error:
            if number < len(lines) or not torn(line):
                wrong[f"{name} line {number}"] = words(error)
    return values, wrong


def torn(line: bytes) -> bool:
    """Whether a line without end is one that a kill cut off, rather than one that was destroyed."""
    return line.startswith(b"{") and b"\0" not in line


def words(error: Exception) -> str:
    """Why something could not be read, for `damaged`."""
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror or type(error).__name__})"
    return str(error)


def is_time(value: Any) -> bool:
    """Whether a value can be a Unix time."""
    return type(value) in (int, float) and 0 <= value < 1e12
