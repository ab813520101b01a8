"""Checks of part files: parts that are damaged, and files that no manifest lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..storage import json_files, layout
from ..storage.integrity import (
    COVERED,
    REMOVABLE,
    UNSEALED,
    UnlistedFile,
    find_damage,
    unlisted_files,
)
from ..storage.manifest import commit, manifest_file
from ..storage.part import PART_KEY, Part, quarantine_reason
from . import repairs
from .findings import Context, Examination, Finding

MOVE = "move it into quarantine/"


def check_parts(context: Context, result: Examination) -> Iterator[Finding]:
    """Reads every part that counts: size, checksum, footer, rows, columns."""
    run, recording = context.run, context.recording
    steps: Counter[tuple[int, int, int]] = Counter()
    for part in context.manifest.parts:
        where = f"{part.table}/{part.file}"
        problem = find_damage(run, part)
        if problem is None and part.table == "steps":
            problem = _count_steps(run, part, steps)
        if problem is None:
            result.rows[part.table] += part.rows
            continue
        owner_is_recording = part.name.owner in recording
        if owner_is_recording and part not in layout.read_manifest(run).parts:
            continue  # its recorder has merged it since the manifest was read
        message = f"{_lost_rows(part)}: {problem}."
        if quarantine_reason(run, part):
            yield Finding("warning", "quarantine", where, message)
        elif part.path(run).exists() and not owner_is_recording:
            action = partial(repairs.quarantine_part, run, part, problem)
            yield Finding("damage", "part", where, message, MOVE, action)
        else:
            yield Finding("damage", "part", where, message)
    for (attempt, rank, step), times in sorted(steps.items()):
        if times > 1:
            yield Finding(
                "warning",
                "repeated-step",
                f"attempt {attempt}, rank {rank}",
                f"step {step} was recorded {times} times: its sums count {times} times. Call "
                "`step()` once per step.",
            )


def _lost_rows(part: Part) -> str:
    steps = f"step {part.first_step}"
    if part.last_step > part.first_step:
        steps = f"steps {part.first_step} to {part.last_step}"
    return f"{part.rows} rows of {steps} (attempt {part.attempt}, rank {part.rank}) are left out"


def _count_steps(run: Path, part: Part, steps: Counter[tuple[int, int, int]]) -> str | None:
    """Counts how often each step was recorded; what is wrong if it cannot be read."""
    try:
        column = pq.read_table(part.path(run), columns=["step"], partitioning=None)["step"]
    except (OSError, pa.ArrowException) as error:
        return str(error).split("\n")[0]
    steps.update((*part.name.owner, step) for step in column.to_pylist())
    return None


def check_unlisted_files(context: Context) -> Iterator[Finding]:
    """Files that do not count: leftovers of a killed process, and rows that can be listed again.

    Those are intact parts of a manifest that has lost lines, and merged parts; where the manifest
    is whole, other parts are of a seal that was not completed.
    """
    run = context.run
    # The manifests are read again: checking the parts of a long run takes minutes.
    manifest = layout.read_manifest(run)
    damaged = {*context.manifest.damaged, *manifest.damaged}
    files = [f for f in unlisted_files(run, manifest) if f.name.owner not in context.recording]
    intact: dict[UnlistedFile, Part] = {}
    for file in files:
        is_merged = file.name.first < file.name.last
        manifest_is_damaged = manifest_file(*file.name.owner) in damaged
        may_count = file.why == UNSEALED and (is_merged or manifest_is_damaged)
        if may_count and (part := _intact_part(run, file)):
            intact[file] = part
    for file in files:
        where = f"{file.table}/{file.path.name}"
        part = intact.get(file)
        is_covered = part and any(
            q.table == part.table and q.name.covers(part.name) for q in intact.values()
        )
        if file.why in REMOVABLE:
            remove = partial(repairs.remove_unlisted, run, file)
            yield Finding("note", "leftover", where, f"{file.why}.", "remove it", remove)
        elif part is None or is_covered:
            why = COVERED if is_covered else file.why
            move = partial(repairs.quarantine_unlisted, run, file, why)
            yield Finding("warning", "leftover", where, f"{why}.", MOVE, move)
        else:
            message = f"{part.rows} intact rows that no manifest lists."
            list_it = partial(commit, run, *file.name.owner, [part])
            yield Finding("damage", "unlisted", where, message, "list them", list_it)


def _intact_part(run: Path, file: UnlistedFile) -> Part | None:
    """An unlisted file as a part; None unless it is intact and was written under this name."""
    try:
        with open(file.path, "rb") as raw:
            crc, size = json_files.checksum(raw), raw.tell()
        rows = pq.read_table(file.path, page_checksum_verification=True, partitioning=None)
        if (rows.schema.metadata or {}).get(PART_KEY) != f"{file.table}/{file.path.name}".encode():
            return None
        steps = pc.min_max(rows.column("step")).as_py()
    except (OSError, pa.ArrowException, KeyError):
        return None
    ends = steps["min"], steps["max"]
    part = Part(file.table, file.path.name, *file.name.owner, len(rows), size, *ends, crc)
    return part if find_damage(run, part) is None else None
