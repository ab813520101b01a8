"""What the doctor reads of single files, and how it moves them aside."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..storage import files, part_file
from ..storage.integrity import find_damage
from ..storage.manifest import QUARANTINE_DIR, Part


def name_of(run: Path, path: Path) -> str:
    return path.relative_to(run).as_posix()


def lost_rows(part: Part) -> str:
    steps = f"step {part.first_step}"
    if part.last_step > part.first_step:
        steps = f"steps {part.first_step} to {part.last_step}"
    return f"{part.rows} rows of {steps} (attempt {part.attempt}, rank {part.rank}) are left out"


def wrong_content(run: Path, part: Part, steps: Counter[tuple[int, int, int]]) -> str | None:
    """What is wrong inside a part; counts how often each step was recorded."""

    try:
        with pq.ParquetFile(part.path(run), page_checksum_verification=True) as file:
            told = (file.schema_arrow.metadata or {}).get(part_file.PART_KEY)
            if told not in (None, f"{part.table}/{part.file}".encode()):
                return f"it was written as {told.decode(errors='replace')}"
            for batch in file.iter_batches():
                for column in ("attempt", "rank"):
                    if set(batch.column(column).unique().to_pylist()) - {getattr(part, column)}:
                        return f"it holds rows of another {column}"
                if part.table == "steps":
                    owner = (part.attempt, part.rank)
                    steps.update((*owner, s) for s in batch.column("step").to_pylist())
    except (OSError, pa.ArrowException, KeyError) as error:
        return str(error).split("\n")[0]
    return None


def readable(run: Path, stray: part_file.UnlistedFile) -> Part | None:
    """An unlisted file as the part it is; None if it is none that says so itself."""

    assert stray.name is not None
    try:
        with open(stray.path, "rb") as file:
            crc, size = files.checksum(file), file.tell()
        rows = pq.read_table(stray.path, page_checksum_verification=True, partitioning=None)
        if (rows.schema.metadata or {}).get(part_file.PART_KEY) != name_of(
            run, stray.path
        ).encode():
            return None
        ends = pc.min_max(rows.column("step")).as_py()
        first, last = ends["min"], ends["max"]
        name = stray.path.name
        part = Part(stray.table, name, *stray.name.owner, len(rows), size, first, last, crc)
    except (OSError, pa.ArrowException, KeyError):
        return None
    return part if find_damage(run, part) is None else None


def quarantine(run: Path, part: Part, why: str) -> None:
    set_aside(run, part.path(run), f"{part.table}-{part.file}", why)


def set_aside(run: Path, path: Path, name: str, why: str) -> None:
    """Move a file into quarantine/, the reason beside it."""
    target = run / QUARANTINE_DIR / name
    target.parent.mkdir(exist_ok=True)
    target.with_suffix(".txt").write_text(f"{why}\n", encoding="utf-8")
    os.replace(path, target)
