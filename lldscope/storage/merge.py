"""One part in place of neighbouring ones: the rows of all, in a part that is published first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ..core.schema import arrow_schema
from . import layout, part_file
from .manifest import Part, PartName

ROW_GROUP = 131_072  # rows; also what a merge holds in memory


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
    """One part in place of neighbouring ones, published before they are let go.

    Rows before step `kept_from` are left out; None if no row is left. `pause` is called between row
    groups. The files of `group` stay for readers that have them in hand. Raises BadPart, OSError.
    """
    first, last = group[0].name, group[-1].name
    kept = max(kept_from, *(p.name.kept_from for p in group))
    name = PartName(first.attempt, first.rank, first.first, last.last, kept)
    batches = _row_groups(run, group, kept, pause)
    merged = part_file.write_part(run, group[0].table, name, batches)
    listed = [merged] if merged else []
    try:
        part_file.seal(run, name.attempt, name.rank, listed, replaces=group)
    except OSError:
        if merged and merged not in layout.read_manifest(run).parts:
            part_file.discard(run, listed)
        raise
    return merged


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
    """Rows with the columns of today's schema; raises ArrowException where one has no place."""
    if unknown := set(rows.column_names) - set(schema.names):
        raise pa.ArrowInvalid(f"columns that this lldscope does not know: {sorted(unknown)}")
    columns = [
        rows.column(f.name).cast(f.type)
        if f.name in rows.column_names
        else pa.nulls(len(rows), f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
