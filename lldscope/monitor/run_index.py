"""The index of a folder of runs: what the list of runs says of each, in one Parquet file.

    ROOT/.lldscope/runs.parquet

ROOT is a folder or an address on an object store. It is never the truth. An entry counts only while
the files of its run are those that it was made from (`fingerprint`; of a remote run what
`query.remote.find_remote` says), the rules are the same, and its checksum is right; any other run
is read anew. An index that is lost, damaged or cannot be written costs time only. Processes that
write at once replace each other's file, each with what the other had written before.

One row per run, so that DuckDB answers questions about thousands of runs, here or on an object
store: `SELECT run, verdict FROM 'runs/.lldscope/runs.parquet' WHERE phase = 'collapse'`. Readers of
lldscope read `summary` (JSON) alone; the other columns repeat it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import uuid
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..core.errors import LldscopeError
from ..storage import json_files
from ..storage.cache import code_version
from ..storage.manifest import MANIFEST_DIR
from ..storage.url import Url
from .summary import Summary

FOLDER, FILE = ".lldscope", "runs.parquet"
_NAME = f"{FOLDER}/{FILE}"
MOST_RUNS = 1_000_000  # that a file may claim

_SCHEMA = pa.schema(
    {
        "run": pa.string(), "fingerprint": pa.string(), "made": pa.string(),
        "summary": pa.string(), "crc": pa.int64(),
        "title": pa.string(), "group": pa.string(), "tags": pa.list_(pa.string()),
        "verdict": pa.string(), "phase": pa.string(), "evidence": pa.string(), "life": pa.string(),
        "last_step": pa.int64(), "last_time": pa.float64(), "reward": pa.float64(),
        "delta": pa.float64(), "firing": pa.list_(pa.string()),
    }
)
_READ = ["run", "fingerprint", "made", "summary", "crc"]
_Entry = tuple[str, str]  # fingerprint, and summary as JSON


class RunIndex:
    """The index of the runs under `root`, a folder or an address that is no run itself."""

    def __init__(self, root: Path | Url) -> None:
        self._root = root
        self._entries = self._read()
        self._new: dict[str, _Entry] = {}

    def get(self, name: str, digest: str) -> Summary | None:
        """The summary of a run whose files are these now; None if it must be read. What was read
        from the file is given once."""
        fingerprint, text = self._new.get(name) or self._entries.pop(name, None) or ("", "")
        if fingerprint != digest or not digest:
            return None
        try:
            return Summary.from_dict(name, json_files.parse(text.encode()))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def put(self, summary: Summary, digest: str) -> None:
        """Keep a summary that was made from these files, if time alone cannot change it: that of a
        run that is over or stalled, and has no alarm that is snoozed."""
        state = summary.state
        if state is None or not digest or state.life == "live" or any(state.silenced.values()):
            return
        with suppress(ValueError, TypeError):
            summary.name.encode()  # that of a folder may not be UTF-8
            self._new[summary.name] = digest, json_files.to_json(summary.to_dict())

    def save(self, names: Collection[str]) -> None:
        """Write what is new, together with what others wrote meanwhile; `names` are the runs there
        are. Nothing happens where the folder cannot be written."""
        if not self._new:
            return
        self._entries = {n: e for n, e in (self._read() | self._new).items() if n in names}
        self._new = {}
        with suppress(OSError, ValueError, LldscopeError, pa.ArrowException):
            _write_file(self._root, _content(self._entries))

    def _read(self) -> dict[str, _Entry]:
        import pyarrow.parquet as pq

        try:
            parquet = pq.ParquetFile(io.BytesIO(_read_file(self._root)))
            if parquet.metadata.num_rows > MOST_RUNS:
                return {}
            columns = parquet.read(columns=_READ).to_pydict()
        except (OSError, ValueError, LldscopeError, pa.ArrowException):
            return {}
        try:
            rows = zip(*(columns[name] for name in _READ), strict=True)
            return {
                run: (digest, text)
                for run, digest, version, text, crc in rows
                if version == code_version() and crc == _checksum(run, digest, text)
            }
        except (KeyError, TypeError, ValueError, AttributeError):
            return {}


def _read_file(root: Path | Url) -> bytes:
    """Raises OSError, ValueError or LldscopeError; a store may have no such object: empty."""
    if isinstance(root, Url):
        from ..storage.objects import ObjectStore

        content = ObjectStore(root).read([_NAME]).get(_NAME, b"")
        json_files.check_size(len(content))
        return content
    with json_files.open_inside(root / _NAME, root) as file:
        json_files.check_size(os.fstat(file.fileno()).st_size)
        return file.read()


def _write_file(root: Path | Url, content: bytes) -> None:
    """Replace the index as a whole. Raises OSError or LldscopeError."""
    if isinstance(root, Url):
        from ..storage.objects import ObjectStore

        ObjectStore(root).put({_NAME: content})
        return
    path = root / _NAME
    path.parent.mkdir(exist_ok=True)
    if not Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(root)):
        return  # a link that leads elsewhere
    new = path.with_name(f"{FILE}.{uuid.uuid4().hex}{json_files.IN_PROGRESS}")
    try:
        new.write_bytes(content)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    for old in path.parent.glob(f"{FILE}.*{json_files.IN_PROGRESS}"):
        with suppress(OSError):  # what a kill left
            if time.time() - old.stat().st_mtime > 3600:
                old.unlink()


def _content(entries: Mapping[str, _Entry]) -> bytes:
    import pyarrow.parquet as pq

    rows = [_row(name, *entry) for name, entry in sorted(entries.items())]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), file, compression="zstd")
    return file.getvalue()


def _row(name: str, digest: str, text: str) -> dict[str, Any]:
    plain = json.loads(text)
    state, firing = plain["state"], [a["rule"] for a in plain["state"]["alerts"]]
    fields = {key: state[key] for key in ("verdict", "phase", "evidence", "life", "last_step")}
    plain = {key: plain[key] for key in ("title", "tags", "last_time", "reward", "delta")} | {
        "group": None if plain["group"] is None else str(plain["group"])
    }
    record = {"run": name, "fingerprint": digest, "made": code_version(), "summary": text}
    return {**record, "crc": _checksum(name, digest, text), **plain, **fields, "firing": firing}


def _checksum(run: str, digest: str, text: str) -> int:
    return zlib.crc32("\n".join((run, digest, text)).encode())


def fingerprint(run: Path) -> str:
    """Changes when a run does: names, sizes and times of its files and folders, and of its
    manifests. Empty if it cannot be read. A part that rots in its place is found by who reads it,
    not here."""
    states = []
    try:
        for folder in (run, run / MANIFEST_DIR):
            with os.scandir(folder) as entries:
                for entry in entries:
                    stat = entry.stat()
                    size = 0 if entry.is_dir() else stat.st_size
                    states.append(f"{entry.name} {size} {stat.st_mtime_ns}")
    except (OSError, ValueError):
        return ""
    return hashlib.sha256("\n".join(sorted(states)).encode(errors="replace")).hexdigest()[:32]
