"""Few parts in place of many: merging in tiers, by the writer of a manifest or after its end.

The level of a part is ⌊log₁₆ of the seals it spans⌋. As soon as the newest parts, up to some level,
are at least 16 and together reach the next level, they become one part. So there are at most 15
parts of a level in a manifest, and a row is written once per level.

While a recorder lives it alone merges the parts of its manifest; after its end the next attempt's
rank 0 does, or `lldscope compact`. Should two do so at once, one of their manifest lines is void
(`lldscope.storage.manifest`), and whoever wrote it removes nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import heartbeats, layout, part_file
from .manifest import Manifest, ManifestReader, Part, attempts, manifest_names, manifest_path
from .merge import BadPart, merge

FAN_IN = 16
MAX_BYTES = 256 << 20  # parts are not merged beyond this size
SILENT_SECONDS = 600.0  # without a sign of life a writer on another machine counts as dead

_FIRST = "run lldscope doctor --repair first"


def _level(first: int, last: int) -> int:
    seals, level = last - first + 1, 0
    while seals >= FAN_IN:
        seals, level = seals // FAN_IN, level + 1
    return level


def due(parts: Sequence[Part]) -> Sequence[Part]:
    """The newest parts of one table that should become one now; `parts` in the order of seals."""
    levels = [_level(p.name.first, p.name.last) for p in parts]
    for level in range(max(levels, default=-1) + 1):
        start = len(parts)
        while start and levels[start - 1] <= level:
            start -= 1
        group = parts[start:]
        if len(group) < FAN_IN or _level(group[0].name.first, group[-1].name.last) <= level:
            continue
        if sum(p.size for p in group) <= MAX_BYTES:
            return group
    return ()


# -- after the end of a writer --------------------------------------------------------------------


@dataclass
class Compacted:
    """What a compaction did; files and bytes are those of the parts that count."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows_removed: int = 0  # by retention
    files_removed: int = 0  # merged away, here or by a process that was killed
    skipped: dict[str, str] = field(default_factory=dict)  # manifest or part → why


def still_writing(run: Path, attempt: int, rank: int, manifest: Manifest) -> str | None:
    """Why a manifest's recorder may still be at work, in words; None if it is not."""
    if (attempt, rank) in manifest.closed:
        return None
    if any(a > attempt and r == rank for a, r in manifest_names(run)):
        return None  # the run went on without it
    beat = heartbeats.read_heartbeats(run).get(rank, {})
    if beat.get("attempt", attempt) == attempt:
        if beat.get("closed") or heartbeats.process_exited(beat):
            return None
        last = beat.get("time")
    else:
        last = manifest_path(run, attempt, rank).stat().st_mtime  # too young for a heartbeat
    silent = time.time() - last if isinstance(last, int | float) else SILENT_SECONDS
    if silent >= SILENT_SECONDS:
        return None
    return f"its recorder is at work (last sign of life {max(0.0, silent):.0f} s ago)"


def compact(
    run: Path,
    *,
    keep_token_steps: int | None = None,
    before_attempt: int | None = None,
    pause: Callable[[], None] = lambda: None,
) -> Compacted:
    """Merge the parts of every recorder that has ended, and remove what was merged away.

    Of the rows of `tokens` those of the last `keep_token_steps` steps are kept (None: all).
    `before_attempt` leaves the later attempts alone. So are parts whose manifest is damaged: others
    that it listed may lie between them. Raises OSError.
    """
    result = Compacted()
    manifest = layout.read_manifest(run)
    result.files_before, result.bytes_before = _extent(manifest.parts)
    damaged = manifest.bad_files()
    kept_from = 0
    if keep_token_steps and damaged:
        result.skipped["tokens"] = f"the last step is not known; {_FIRST}"
    elif keep_token_steps:
        kept_from = _kept_from(manifest.parts, keep_token_steps)
    ended = set()
    for name in manifest_names(run):
        if before_attempt is not None and name[0] >= before_attempt:
            continue
        if why := still_writing(run, *name, manifest):
            result.skipped[manifest_path(run, *name).name] = why
            continue
        if why := damaged.get(manifest_path(run, *name).name):
            result.skipped[manifest_path(run, *name).name] = f"{why}; {_FIRST}"
            continue
        ended.add(name)
        tables: dict[str, list[Part]] = defaultdict(list)
        for part in manifest.parts:
            if (part.attempt, part.rank) == name:
                tables[part.table].append(part)
        for table, parts in tables.items():
            keep = kept_from if table == "tokens" else 0
            _merge_all(run, sorted(parts, key=lambda p: p.name.first), keep, result, pause)
    result.files_after, result.bytes_after = _extent(_sweep(run, ended, result))
    return result


def _kept_from(parts: Sequence[Part], steps: int) -> int:
    """The first of the last `steps` steps of the newest attempt, however far earlier ones came."""
    spans = attempts(parts)
    return max(0, spans[max(spans)][1] - steps + 1) if spans else 0


def _extent(parts: Sequence[Part]) -> tuple[int, int]:
    return len(parts), sum(p.size for p in parts)


def _merge_all(
    run: Path, parts: list[Part], kept_from: int, result: Compacted, pause: Callable[[], None]
) -> None:
    """Merge neighbours up to MAX_BYTES; a part that cannot be read stays where it is."""
    groups = _groups(parts)
    while groups:
        group = groups.pop()
        if len(group) == 1 and group[0].first_step >= kept_from:
            continue
        try:
            merged = merge(run, group, kept_from=kept_from, pause=pause)
        except BadPart as error:
            result.skipped[f"{error.part.table}/{error.part.file}"] = str(error)
            i = group.index(error.part)
            groups += [g for g in (group[:i], group[i + 1 :]) if g]
        else:
            result.rows_removed += sum(p.rows for p in group) - (merged.rows if merged else 0)


def _groups(parts: Sequence[Part]) -> list[list[Part]]:
    groups: list[list[Part]] = []
    size = 0
    for part in parts:
        if not groups or size + part.size > MAX_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size
    return groups


def _sweep(run: Path, ended: set[tuple[int, int]], result: Compacted) -> list[Part]:
    """Remove what ended recorders, and this compaction, left behind; return the parts that count.

    Readers that have a removed file in hand take the list anew.
    """
    reader = ManifestReader(run)
    manifest = layout.read_manifest(run, reader)
    damaged = manifest.bad_files()
    for stray in part_file.unlisted_files(run, manifest):
        if stray.name is None or stray.name.owner not in ended:
            continue
        if manifest_path(run, *stray.name.owner).name in damaged:
            continue
        if stray.kind == "unpublished":  # another compaction may have listed it since
            manifest = layout.read_manifest(run, reader)
        if stray.kind in ("unfinished", "merged away", "unpublished") and part_file.may_go(
            run, stray, manifest
        ):
            with contextlib.suppress(FileNotFoundError):
                stray.path.unlink()
                result.files_removed += 1
    return manifest.parts
