"""Checks of part files: parts that are damaged, and files that no manifest lists."""

from __future__ import annotations

from collections import Counter, defaultdict
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
from ..storage.manifest import ManifestReader, commit, manifest_path
from ..storage.part import PART_KEY, Part, quarantine_reason
from . import repairs
from .findings import Context, Examination, Finding, Severity

MOVE = "move it into quarantine/"


def check_parts(context: Context, result: Examination) -> Iterator[Finding]:
    """Reads every part that counts: size, checksum, footer, rows, steps, columns."""
    run, recording = context.run, context.recording
    rows: Counter[str] = Counter()
    steps: Counter[tuple[int, int, int]] = Counter()
    for part in context.manifest.parts:
        where = f"{part.table}/{part.file}"
        problem = find_damage(run, part) or _content_problem(run, part, steps)
        if problem is None:
            rows[part.table] += part.rows
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
    result.parts, result.rows = len(context.manifest.parts), dict(rows)
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


def _content_problem(run: Path, part: Part, steps: Counter[tuple[int, int, int]]) -> str | None:
    """What is wrong with a part's rows; counts in `steps` how often each step was recorded."""
    try:
        with pq.ParquetFile(part.path(run), page_checksum_verification=True) as file:
            written_as = (file.schema_arrow.metadata or {}).get(PART_KEY)
            if written_as not in (None, f"{part.table}/{part.file}".encode()):
                return f"it was written as {written_as.decode(errors='replace')}"
            for batch in file.iter_batches():
                for column in ("attempt", "rank"):
                    if set(batch.column(column).unique().to_pylist()) - {getattr(part, column)}:
                        return f"it holds rows of another {column}"
                if part.table == "steps":
                    steps.update((*part.name.owner, s) for s in batch.column("step").to_pylist())
    except (OSError, pa.ArrowException, KeyError) as error:
        return str(error).split("\n")[0]
    return None


def check_unlisted_files(context: Context) -> Iterator[Finding]:
    """Files that do not count: leftovers of a killed process, and rows that can be listed again."""
    # The manifests are read again: checking the parts of a long run takes minutes.
    reader = ManifestReader(context.run)
    manifest = layout.read_manifest(context.run, reader)
    damaged = {*context.manifest.bad_files(), *manifest.bad_files()}
    intact: dict[UnlistedFile, Part] = {}
    for file in unlisted_files(context.run, manifest):
        if file.name.owner in context.recording:
            continue  # its recorder is about to list or to remove it
        if file.why in REMOVABLE:
            action = partial(repairs.remove_unlisted, context.run, file, reader)
            where = context.name(file.path)
            yield Finding("note", "leftover", where, f"{file.why}.", "remove it", action)
        elif file.why == UNSEALED and (part := _intact_part(context.run, file)):
            intact[file] = part
        else:
            yield _leftover(context, file, file.why, reader)
    seals: dict[tuple[int, ...], list[Part]] = defaultdict(list)
    for file, part in intact.items():
        if any(q.name.covers(part.name) for q in intact.values() if q.table == part.table):
            yield _leftover(context, file, COVERED, reader)
        else:
            seals[*part.name.owner, part.name.first, part.name.last].append(part)
    for _, parts in sorted(seals.items()):
        yield _unlisted(context, parts, damaged)


def _leftover(context: Context, file: UnlistedFile, why: str, reader: ManifestReader) -> Finding:
    action = partial(repairs.quarantine_unlisted, context.run, file, why, reader)
    return Finding("warning", "leftover", context.name(file.path), f"{why}.", MOVE, action)


def _unlisted(context: Context, parts: list[Part], damaged: set[str]) -> Finding:
    """Intact parts of one seal that no manifest lists.

    The part of `steps` is written last: if it exists, the seal is complete. Otherwise the parts are
    listed only if the manifest has lost lines, or if they are merged parts.
    """
    run, owner = context.run, parts[0].name.owner
    is_merged = parts[0].name.first < parts[0].name.last
    manifest_is_damaged = manifest_path(run, *owner).name in damaged
    rows = sum(part.rows for part in parts)
    where = ", ".join(f"{part.table}/{part.file}" for part in parts)
    if manifest_is_damaged or is_merged or any(part.table == "steps" for part in parts):
        severity: Severity = "damage" if manifest_is_damaged else "warning"
        message = f"{rows} intact rows that no manifest lists."
        action = partial(commit, run, *owner, parts)
        return Finding(severity, "unlisted", where, message, "list them", action)

    def quarantine() -> None:
        for part in parts:
            repairs.quarantine_part(run, part, "part of a seal that was not completed")

    message = f"{rows} rows of a seal that was not completed; the process ended during it."
    return Finding("warning", "leftover", where, message, "move them into quarantine/", quarantine)


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
