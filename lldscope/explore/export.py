"""Tables and views of a run as plain Parquet or CSV files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from ..core.errors import LldscopeError, UsageError
from ..core.safe_text import FORMULA
from ..core.schema import TABLES, VIEWS
from ..runs import Run
from ..storage.json_files import IN_PROGRESS
from ..storage.part import columns_without_floats

ROW_GROUP = 100_000


def export_run(
    run: Run, folder: Path, kind: str = "parquet", tables: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Write each table as `<folder>/<table>.<kind>`; returns file, rows and bytes of each.

    Without `tables`: every table and signal view that has rows. In CSV, text that a spreadsheet
    would take for a formula gets a leading apostrophe. Raises UsageError for an unknown table, a
    file that exists, or a folder inside the run; then nothing is written.
    """
    names = list(dict.fromkeys([*TABLES, *VIEWS] if tables is None else tables))
    valid = [*TABLES, *VIEWS, *(f"all_{name}" for name in TABLES)]
    if unknown := [name for name in names if name not in valid]:
        raise UsageError(f"There is no table {', '.join(unknown)}. There are: {', '.join(valid)}.")
    if folder.resolve().is_relative_to(run.path):
        raise UsageError(f"{folder} is inside the run. Export to another folder.")
    existing = [n for n in names if os.path.lexists(folder / f"{n}.{kind}")]
    if existing:
        raise UsageError(
            f"{folder / existing[0]}.{kind} already exists; nothing is overwritten. Choose another "
            "folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        places = {name: folder / f"{name}.{kind}" for name in names}
        files = [_write(run, name, path, tables is None) for name, path in places.items()]
    except OSError as error:
        raise LldscopeError(f"{folder} cannot be written ({error.strerror or error}).") from error
    return [file for file in files if file is not None]


def _write(run: Run, table: str, path: Path, only_with_rows: bool) -> dict[str, Any] | None:
    """Write one file, complete or not at all; None without rows if `only_with_rows`."""
    temporary = path.with_name(path.name + IN_PROGRESS)
    rows, guard = 0, path.suffix == ".csv"
    try:
        with (
            run.pieces(table, ROW_GROUP) as pieces,
            open(temporary, "xb") as sink,
            _writer(path.suffix, sink, pieces.schema) as writer,
        ):
            for piece in pieces:
                rows += len(piece)
                writer.write_batch(_without_formulas(piece) if guard else piece)
        if not rows and only_with_rows:
            return None
        os.link(temporary, path)  # unlike a rename, this never replaces a file
    finally:
        temporary.unlink(missing_ok=True)
    return {"file": str(path), "rows": rows, "bytes": path.stat().st_size}


def _without_formulas(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with an apostrophe before texts that a spreadsheet would compute."""
    for i, field in enumerate(rows.schema):
        if pa.types.is_string(field.type):
            texts = rows.column(i)
            quoted = pc.binary_join_element_wise("'", texts, "")
            texts = pc.if_else(pc.match_substring_regex(texts, FORMULA), quoted, texts)
            rows = rows.set_column(i, field, texts)
    return rows


def _writer(suffix: str, sink: Any, schema: pa.Schema) -> Any:
    if suffix == ".parquet":
        bounded = columns_without_floats(schema)
        return pa.parquet.ParquetWriter(
            sink, schema, compression="zstd", write_statistics=bounded
        )
    return pa.csv.CSVWriter(sink, schema)
