"""Few parts instead of many: tiered compaction, by the recorder of a manifest or after its end.

The level of a part is ⌊log₁₆ of the number of seals it spans⌋. The newest parts up to some level
are merged into one part as soon as they are at least 16 and together reach the next level. So a
manifest has at most 15 parts of a level, and a row is written once per level.

While a recorder is alive, it alone merges the parts of its manifest; after its end,
`lldscope compact` does. If two processes do so at once, one of their commits is void
(`lldscope.storage.manifest`), and its writer removes nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from ..core.schema import arrow_schema
from . import heartbeats, layout
from .integrity import REMOVABLE, UNPUBLISHED, is_removable, unlisted_files
from .manifest import Manifest, commit, manifest_file, manifest_names, manifest_path
from .part import Owner, Part, PartName, remove_parts, write_part

FAN_IN = 16
ROW_GROUP = 131_072  # rows; a merge holds about this many in memory
MAX_BYTES = 256 << 20  # parts are not merged beyond this size
SILENT_SECONDS = 600.0  # without a heartbeat for this long a writer on another machine has ended

_REPAIR_FIRST = "run lldscope doctor --repair first"


def _level(first: int, last: int) -> int:
    seals, level = last - first + 1, 0
    while seals >= FAN_IN:
        seals, level = seals // FAN_IN, level + 1
    return level


def due(parts: Sequence[Part]) -> Sequence[Part]:
    """The newest parts of a table that should be merged now. `parts` are in the order of their
    seals."""
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


def newest(parts: Sequence[Part], max_bytes: int) -> Sequence[Part]:
    """The newest parts of one table with at most so many bytes, if these are several."""
    start, size = len(parts), 0
    while start and size + parts[start - 1].size <= max_bytes:
        start -= 1
        size += parts[start].size
    return parts[start:] if len(parts) - start > 1 else ()


@dataclass
class Compacted:
    """The result of a compaction. `files_…` and `bytes_…` are of the parts that count."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    files_removed: int = 0  # replaced by a merged part, now or before a process was killed
    skipped: dict[str, str] = field(default_factory=dict)  # manifest or part → reason


def still_writing(run: Path, owner: Owner, manifest: Manifest) -> str | None:
    """Why a manifest's recorder may still be alive; None if it has ended."""
    if owner in manifest.closed:
        return None
    if any(map(owner.precedes, manifest_names(run))):
        return None  # a later recorder of its rank has replaced it
    beat = heartbeats.read_heartbeats(run).get(owner.rank, {})
    if heartbeats.is_of(beat, owner):
        if beat.get("closed") or heartbeats.process_exited(beat):
            return None
        last = beat.get("time")
    else:
        last = manifest_path(run, *owner).stat().st_mtime  # no heartbeat of its own yet
    silent = time.time() - last if isinstance(last, int | float) else SILENT_SECONDS
    if silent >= SILENT_SECONDS:
        return None
    return f"its recorder is running (last heartbeat {max(0.0, silent):.0f} s ago)"


def compact(run: Path) -> Compacted:
    """Merge the parts of every recorder that has ended, and remove the files they replace.

    A damaged manifest is skipped: between the parts it lists may lie parts whose line is lost.
    Raises OSError.
    """
    result = Compacted()
    manifest = layout.read_manifest(run)
    result.files_before, result.bytes_before = _extent(manifest.parts)
    owners = set()
    for owner in manifest_names(run):
        file = manifest_file(*owner)
        if why := still_writing(run, owner, manifest):
            result.skipped[file] = why
            continue
        if why := manifest.damaged.get(file):
            result.skipped[file] = f"{why}; {_REPAIR_FIRST}"
            continue
        owners.add(owner)
        tables: dict[str, list[Part]] = defaultdict(list)
        for part in manifest.parts:
            if part.name.owner == owner:
                tables[part.table].append(part)
        for parts in tables.values():
            _merge_all(run, sorted(parts, key=lambda p: p.name.first), result)
    result.files_after, result.bytes_after = _extent(_remove_leftovers(run, owners, result))
    return result


def _extent(parts: Sequence[Part]) -> tuple[int, int]:
    return len(parts), sum(p.size for p in parts)


def _merge_all(run: Path, parts: list[Part], result: Compacted) -> None:
    """Merge neighbours up to MAX_BYTES; a part that cannot be read is left as it is."""
    groups = _groups(parts)
    while groups:
        group = groups.pop()
        try:
            if len(group) > 1:
                merge(run, group)
        except BadPart as error:
            result.skipped[error.part.place] = str(error)
            i = group.index(error.part)
            groups += [g for g in (group[:i], group[i + 1 :]) if g]


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


def _remove_leftovers(run: Path, owners: set[Owner], result: Compacted) -> list[Part]:
    """Remove what ended recorders and this compaction left behind; return the parts that count.
    Readers that are using a removed file read the manifests again."""
    manifest = layout.read_manifest(run)
    for file in unlisted_files(run, manifest):
        owner = file.name.owner
        if owner not in owners or manifest_file(*owner) in manifest.damaged:
            continue
        if file.why == UNPUBLISHED:  # another compaction may have committed it since
            manifest = layout.read_manifest(run)
        if file.why in REMOVABLE and is_removable(run, file, manifest):
            with contextlib.suppress(FileNotFoundError):
                file.path.unlink()
                result.files_removed += 1
    return manifest.parts


class BadPart(Exception):
    def __init__(self, part: Part, why: object) -> None:
        super().__init__(f"{part.place}: {why}")
        self.part = part


def merge(run: Path, group: Sequence[Part]) -> None:
    """Replace neighbouring parts by one with the same rows, and commit it.

    The files of `group` stay for readers that are using them. Raises BadPart, OSError.
    """
    first, last = group[0].name, group[-1].name
    kept_from = max(p.name.kept_from for p in group)
    name = PartName(first.owner, first.first, last.last, kept_from)
    new_part = write_part(run, group[0].table, name, row_groups(run, group))
    parts = [new_part] if new_part else []
    try:
        commit(run, name.owner, parts, remove=group)
    except OSError:
        if new_part and new_part not in layout.read_manifest(run).parts:
            remove_parts(run, parts)
        raise


def row_groups(run: Path, group: Sequence[Part]) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq

    schema = arrow_schema(group[0].table)
    waiting: list[pa.Table] = []
    for part in sorted(group, key=lambda p: (p.first_step, p.name.first)):
        rows = 0
        try:
            with pq.ParquetFile(part.path(run), page_checksum_verification=True) as file:
                for batch in file.iter_batches(ROW_GROUP):
                    rows += len(batch)
                    waiting.append(_conform(pa.table(batch), schema))
                    if sum(map(len, waiting)) >= ROW_GROUP:
                        yield pa.concat_tables(waiting)
                        waiting.clear()
        except (OSError, pa.ArrowException) as error:
            raise BadPart(part, error) from error
        if rows != part.rows:
            raise BadPart(part, f"{rows} rows instead of {part.rows}")
    if any(map(len, waiting)):
        yield pa.concat_tables(waiting)


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of the current schema; raises ArrowException if a column is unknown."""
    if rows.schema.equals(schema):
        return rows
    if unknown := set(rows.column_names) - set(schema.names):
        raise pa.ArrowInvalid(f"columns that this lldscope does not know: {sorted(unknown)}")
    nulls = {field.name: pa.nulls(len(rows), field.type) for field in schema}
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    return pa.Table.from_pydict(nulls | columns, schema=schema)
