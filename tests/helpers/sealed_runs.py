"""Runs of a few seals, and the rows in them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.parquet as pq

import lldscope
from lldscope.recording.buffers import to_arrow
from lldscope.storage import json_files, layout
from lldscope.storage.manifest import MANIFEST_DIR, commit, manifest_path
from lldscope.storage.part import Owner, PartName, write_part


def values(path: Path, table: str = "responses") -> list[tuple[int, int]]:
    """(step, response_id) of all rows that count."""
    rows = []
    for part in layout.read_manifest(path).parts:
        if part.table == table:
            columns = pq.read_table(part.path(path), columns=["step", "response_id"])
            rows += list(zip(*(c.to_pylist() for c in columns.columns), strict=True))
    return rows


def beat_of_a_killed_one(path: Path) -> None:
    """The heartbeat as the recorder wrote it first, of a process that is gone for long."""
    beat = {"time": 1.7e9, "closed": False, "attempt": 1}
    (path / "heartbeat" / "r0.json").write_text(json.dumps(beat))


def sealed(path: Path, seals: range, rows: int = 3, table: str = "responses") -> None:
    """Write seals of a table, as a killed recorder leaves them."""
    for seal in seals:
        name = PartName(Owner(1, 0), seal, seal)
        columns = {"step": [seal] * rows}
        if table == "responses":
            columns["response_id"] = list(range(rows))
        arrow = to_arrow(table, columns, 1, 0, lambda *details: None)
        part = write_part(path, table, name, [arrow])
        commit(path, (1, 0), [part])


def silence(path: Path) -> None:
    """Make the manifest so old that its recorder counts as ended."""
    os.utime(manifest_path(path, 1, 0), (0, 0))


def killed(path: Path, seals: int) -> Path:
    """A run of some seals whose recorder has ended without closing."""
    lldscope.Recorder(path).close()
    manifest_path(path, 1, 0).write_bytes(b"")
    (path / "heartbeat" / "r0.json").unlink()
    sealed(path, range(1, seals + 1))
    silence(path)
    return path


def change_parts(path: Path, change) -> None:
    """`change(table, file)` each part of a run, with its manifest line, as if it had been written
    so."""
    for manifest in (path / MANIFEST_DIR).glob("*.jsonl"):
        lines = []
        for entry in json_files.read_lines(manifest)[0]:
            for table, listed in entry["parts"].items():
                part = path / table / listed["file"]
                if not part.exists():
                    continue  # a slow machine sealed twice: it is merged into another
                change(table, part)
                with open(part, "rb") as file:
                    listed |= {"crc": json_files.checksum(file), "bytes": part.stat().st_size}
            lines.append(json_files.with_checksum(json_files.to_json(entry)))
        manifest.write_bytes(b"".join(lines))


def rewrite(path: Path, change) -> None:
    """Rewrite each part as `change(table, rows)` returns it: as another version would have."""
    change_parts(
        path, lambda table, part: pq.write_table(change(table, pq.read_table(part)), part)
    )


def make_unreadable(path: Path) -> None:
    """The manifest says that its parts of `responses` are as they were written, and DuckDB that
    they are none."""

    def damage(table: str, part: Path) -> None:
        if table == "responses":
            content = part.read_bytes()
            part.write_bytes(content[:4] + bytes(40) + content[44:])

    change_parts(path, damage)
