"""Compares the files of a run directory with its manifests.

`examine` only reads. Damage means that sealed rows are lost; a warning asks for attention or for
cleaning; a note explains. `repair` never touches files that a running recorder writes. It moves
damaged parts into quarantine, and lists parts again whose manifest line is lost. It goes on
reporting the damage that it cannot repair.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..core.errors import LldscopeError, NewerSchema
from ..storage import compaction, json_files, layout
from ..storage.events import read_journals
from ..storage.heartbeats import HEARTBEAT_DIR, read_heartbeats
from ..storage.integrity import (
    COVERED,
    REMOVABLE,
    UNFINISHED,
    UNSEALED,
    UnlistedFile,
    find_damage,
    unlisted_files,
)
from ..storage.manifest import MANIFEST_DIR, commit, manifest_file
from ..storage.part import PART_KEY, Part, quarantine_reason
from . import repairs
from .findings import Examination, Finding, Severity

MOVE = "move it into quarantine/"


def examine(run: Path) -> Examination:
    """Check every file of a run. Raises RunNotFound, NewerSchema."""
    findings = _check_run_file(run)
    manifest = layout.read_manifest(run)
    status = {owner: compaction.still_writing(run, owner, manifest) for owner in manifest.owners}
    recording = {owner: why for owner, why in status.items() if why}
    journals: dict[str, str] = {}
    read_journals(run, journals)
    bad_heartbeats: dict[str, str] = {}
    beats = read_heartbeats(run, bad_heartbeats)
    bad_heartbeats = layout.missing_heartbeats(manifest, beats) | bad_heartbeats
    result = Examination(run, manifest, recording, beats, findings)
    findings += check_manifests(result)
    findings += _each("damage", "lines", journals)
    findings += check_parts(result)
    findings += check_unlisted_files(result)
    findings += _each("warning", "heartbeat", bad_heartbeats)
    findings += check_writers(result)
    findings += check_dropped_rows(result)
    return result


def repair(examination: Examination) -> Examination:
    """Apply the repairs of the findings, in order, and examine again. Raises OSError."""
    done = [f for f in examination.findings if f.action is not None]
    for finding in done:
        assert finding.action is not None
        finding.action()
        finding.repaired = True
    result = examine(examination.run)
    result.findings = done + result.findings
    return result


def _each(severity: Severity, what: str, damaged: dict[str, str]) -> list[Finding]:
    return [Finding(severity, what, where, f"{why}.") for where, why in damaged.items()]


def _check_run_file(run: Path) -> list[Finding]:
    damaged: dict[str, str] = {}
    try:
        layout.read_run(run, damaged)
        return _each("warning", "run-json", damaged)
    except NewerSchema:
        raise
    except LldscopeError as error:
        if not (run / MANIFEST_DIR).is_dir():
            raise  # not a run
        offer = "write a new one; configuration and the rule for correct are lost"
        action = partial(repairs.rebuild_run_file, run)
        return [Finding("damage", "run-json", layout.RUN_FILE, str(error), offer, action)]


def check_manifests(examination: Examination) -> Iterator[Finding]:
    run, manifest = examination.run, examination.manifest
    owners = {*manifest.owners, *(f.name.owner for f in unlisted_files(run, manifest))}
    owner_of = {manifest_file(*owner): owner for owner in owners}
    for where, why in manifest.damaged.items():
        owner = owner_of.get(where)
        if owner is None or owner in examination.recording:
            yield Finding("damage", "manifest", where, f"{why}.")
        else:
            offer = "keep the lines that can be read, and list intact parts again"
            action = partial(repairs.rewrite_manifest, run, owner)
            yield Finding("damage", "manifest", where, f"{why}.", offer, action)


def check_parts(examination: Examination) -> Iterator[Finding]:
    """Read every part that counts: size, checksum, footer, rows, columns."""
    run = examination.run
    for part in examination.manifest.parts:
        problem = find_damage(run, part)
        if problem is None:
            examination.rows[part.table] += part.rows
            continue
        owner_is_recording = part.name.owner in examination.recording
        if owner_is_recording and part not in layout.read_manifest(run).parts:
            continue  # its recorder has merged it since the manifest was read
        message = f"{_lost_rows(part)}: {problem}."
        if quarantine_reason(run, part):
            yield Finding("warning", "quarantine", part.place, message)
        elif part.path(run).exists() and not owner_is_recording:
            action = partial(repairs.quarantine_part, run, part, problem)
            yield Finding("damage", "part", part.place, message, MOVE, action)
        else:
            yield Finding("damage", "part", part.place, message)


def _lost_rows(part: Part) -> str:
    steps = f"step {part.first_step}"
    if part.last_step > part.first_step:
        steps = f"steps {part.first_step} to {part.last_step}"
    return f"{part.rows} rows of {steps} ({part.name.owner.words}) are left out"


def check_unlisted_files(examination: Examination) -> Iterator[Finding]:
    """Files that do not count: leftovers of a killed process, and parts that can be listed again,
    which are intact merged parts and intact parts of a manifest that has lost lines. Beside a whole
    manifest, any other part belongs to an unfinished seal."""
    run = examination.run
    # The manifests are read again: checking the parts of a long run takes minutes.
    manifest = layout.read_manifest(run)
    damaged = {*examination.manifest.damaged, *manifest.damaged}
    recording = examination.recording
    files = [f for f in unlisted_files(run, manifest) if f.name.owner not in recording]
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
            list_it = partial(commit, run, file.name.owner, [part])
            yield Finding("damage", "unlisted", where, message, "list them", list_it)


def _intact_part(run: Path, file: UnlistedFile) -> Part | None:
    """An unlisted file as a part; None if it is damaged or its metadata do not match its name."""
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
    part = Part(file.table, file.path.name, len(rows), size, *ends, crc)
    return part if find_damage(run, part) is None else None


def check_writers(examination: Examination) -> Iterator[Finding]:
    """Recorders that still run or were not closed, and their unfinished files."""
    run, manifest = examination.run, examination.manifest
    for owner in manifest.owners:
        beat = examination.heartbeats.get(owner.rank, {})
        closed_by_heartbeat = "attempt" not in beat and bool(beat.get("closed"))  # earlier versions
        if owner in manifest.closed or closed_by_heartbeat:
            continue
        where = owner.words
        if owner in examination.recording:
            yield Finding("note", "recording", where, f"{examination.recording[owner]}.")
            continue
        last = max((p.last_step for p in manifest.parts if p.name.owner == owner), default=None)
        sealed = "nothing was sealed" if last is None else f"the last sealed step is {last}"
        message = (
            f"the process ended without closing its recorder; {sealed}, and rows after it that "
            "were not sealed yet, about a second's worth, are lost."
        )
        yield Finding("warning", "not-closed", where, message)
    for path in [*run.glob(f"*{json_files.IN_PROGRESS}"),
                 *(run / HEARTBEAT_DIR).glob(f"*{json_files.IN_PROGRESS}")]:
        if not examination.recording:
            action = partial(path.unlink, missing_ok=True)
            where = path.relative_to(run).as_posix()
            yield Finding("note", "leftover", where, f"{UNFINISHED}.", "remove it", action)


def check_dropped_rows(examination: Examination) -> Iterator[Finding]:
    for rank, beat in sorted(examination.heartbeats.items()):
        drops = beat.get("dropped")
        for what, count in drops.items() if isinstance(drops, dict) else ():
            yield Finding("warning", "dropped", f"rank {rank}", f"{count} × {what}.")
