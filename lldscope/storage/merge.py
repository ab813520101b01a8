"""Merging neighbouring parts into one, which is committed before their files are removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ..core.schema import arrow_schema
from . import layout, manifest
from .part import Part, PartName, remove_parts, write_part

ROW_GROUP = 131_072  # rows; a merge holds about this many in memory


class BadPart(Exception):
    """A part that cannot be merged because it cannot be read."""

    def __init__(self, part: Part, why: object) -> None:
        super().__init__(f"{part.table}/{part.file}: {why}")
        self.part = part


def merge(
    run: Path,
    group: Sequence[Part],
    *,
    kept_from: int = 0,
    pause: Callable[[], None] = lambda: None,
) -> Part | None:
    """Replace neighbouring parts by one with the same rows, and commit it.

    Rows before step `kept_from` are left out; None if no row remains. `pause` is called between row
    groups. The files of `group` stay for readers that are using them. Raises BadPart, OSError.
    """
    first, last = group[0].name, group[-1].name
    removed_before = max(kept_from, *(p.name.kept_from for p in group))
    name = PartName(first.attempt, first.rank, first.first, last.last, removed_before)
    new_part = write_part(run, group[0].table, name, _row_groups(run, group, removed_before, pause))
    parts = [new_part] if new_part else []
    try:
        manifest.commit(run, name.attempt, name.rank, parts, remove=group)
    except OSError:
        if new_part and new_part not in layout.read_manifest(run).parts:
            remove_parts(run, parts)
        raise
    return new_part


def _row_groups(
    run: Path, group: Sequence[Part], kept_from: int, pause: Callable[[], None]
) -> Iterator[pa.Table]:
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
                    if kept_from:
                        waiting[-1] = waiting[-1].filter(pc.field("step") >= kept_from)
                    if sum(map(len, waiting)) >= ROW_GROUP:
                        yield pa.concat_tables(waiting)
                        waiting.clear()
                        pause()
        except (OSError, pa.ArrowException) as error:
            raise BadPart(part, error) from error
        if rows != part.rows:
            raise BadPart(part, f"{rows} rows instead of {part.rows}")
    if any(map(len, waiting)):
        yield pa.concat_tables(waiting)


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of the current schema; raises ArrowException if a column is unknown."""
    if unknown := set(rows.column_names) - set(schema.names):
        raise pa.ArrowInvalid(f"columns that this lldscope does not know: {sorted(unknown)}")
    columns = [
        rows.column(f.name).cast(f.type)
        if f.name in rows.column_names
        else pa.nulls(len(rows), f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
