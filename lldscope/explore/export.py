"""Tables and views of a run as plain Parquet or CSV files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ..core.errors import LldscopeError, UsageError
from ..core.schema import TABLES, VIEWS
from ..storage.json_files import IN_PROGRESS

if TYPE_CHECKING:
    from ..runs import Run

ROW_GROUP = 100_000


def export_run(
    run: Run, folder: Path, kind: str = "parquet", tables: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Write each table as `<folder>/<table>.<kind>`; returns file, rows and bytes of each.

    Without `tables`: every table and signal view that has rows. Raises UsageError for an unknown
    table, a file that is already there, or a folder inside the run; then nothing is written.
    """
    wanted = list(dict.fromkeys(tables)) if tables is not None else [*TABLES, *VIEWS]
    known = [*TABLES, *VIEWS, *(f"all_{name}" for name in TABLES)]
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(f"There is no table {', '.join(unknown)}. There are: {', '.join(known)}.")
    if folder.resolve().is_relative_to(run.path):
        raise UsageError(f"{folder} lies inside the run. Export to another folder.")
    there = [n for n in wanted if os.path.lexists(folder / f"{n}.{kind}")]
    if there:
        raise UsageError(
            f"{folder / there[0]}.{kind} is already there; nothing is overwritten. Choose another "
            "folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [_write(run, name, folder / f"{name}.{kind}", tables is None) for name in wanted]
    except OSError as error:
        raise LldscopeError(f"{folder} cannot be written ({error.strerror or error}).") from error
    return [told for told in files if told is not None]


def _write(run: Run, table: str, path: Path, only_with_rows: bool) -> dict[str, Any] | None:
    """One file, whole or not at all; None if there were no rows and none were wanted."""
    arriving = path.with_name(path.name + IN_PROGRESS)
    rows = 0
    try:
        with (
            run.pieces(table, ROW_GROUP) as pieces,
            open(arriving, "xb") as sink,
            _writer(path.suffix, sink, pieces.schema) as writer,
        ):
            for piece in pieces:
                rows += len(piece)
                writer.write_batch(piece)
        if not rows and only_with_rows:
            return None
        os.link(arriving, path)  # unlike a rename, this never replaces a file
    finally:
        arriving.unlink(missing_ok=True)
    return {"file": str(path), "rows": rows, "bytes": path.stat().st_size}


def _writer(suffix: str, sink: Any, schema: pa.Schema) -> Any:
    if suffix == ".parquet":
        return pa.parquet.ParquetWriter(sink, schema, compression="zstd")
    return pa.csv.CSVWriter(sink, schema)
