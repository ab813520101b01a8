"""W&B's downloads: the history of a run as Parquet or CSV.

The Parquet files are those of `Run.download_history_exports`; the history as CSV is what people
make of `Run.scan_history` with pandas.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from .logged import LoggerCalls, of_one_run
from .metrics import table
from .parquet import is_number, parquet_rows, schema_of
from .reading import lines, objects
from .source import Findings, Rows, Scalars
from .wandb_api import SUFFIX

_PART = re.compile(r"_\d+\.runhistory\.parquet$")  # one of several of a run


class WandbHistory:
    name = "wandb-history"
    description = "W&B's history of a run: wandb://ENTITY/PROJECT/RUN, Parquet, or CSV with _step"

    def looks_like(self, path: Path, head: bytes) -> bool:
        if head.startswith(b"PAR1"):
            schema = schema_of(path)
            return schema is not None and "_step" in schema.names
        return path.name.endswith(SUFFIX) or "_step" in _header(head)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars | Rows]:
        calls = LoggerCalls(findings)
        for path in of_one_run(paths, findings, lambda path: _PART.sub("", path.name)):
            with path.open("rb") as file:
                is_parquet = file.read(4) == b"PAR1"
            read = _numbers_of if is_parquet else _csv_rows
            for row in (objects if path.name.endswith(SUFFIX) else read)(path, findings):
                time = row.get("_timestamp")
                time = float(time) if isinstance(time, int | float) else None
                if scalars := calls.record(row, row.get("_step"), time):
                    yield scalars


def _header(head: bytes) -> list[str]:
    """Names of the columns of a CSV file; nothing if its beginning is no such line."""
    line, newline, _ = head.partition(b"\n")
    try:
        return next(csv.reader([line.decode("utf-8-sig")]), []) if newline else []
    except (UnicodeDecodeError, csv.Error):
        return []


def _csv_rows(path: Path, findings: Findings) -> Iterator[dict[str, Any]]:
    """Rows of a CSV file; an empty field is one that was not logged."""
    text = (line.decode("utf-8-sig", "replace") + "\n" for line, _ in lines(path, findings))
    names = next(table(text, ",", findings), [])
    for cells in table(text, ",", findings):
        if len(cells) == len(names):
            yield {n: _value(c) for n, c in zip(names, cells, strict=True) if n and c != ""}
        elif cells:
            findings.skip("lines with more or fewer fields than the header has")


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _numbers_of(path: Path, findings: Findings) -> Iterator[Mapping[str, Any]]:
    """Rows of a Parquet file, of columns that can hold numbers."""

    def can(field: pa.Field) -> bool:  # NaN and Inf may be words
        return is_number(field.type) or pa.types.is_string(field.type)

    for row in parquet_rows(path, findings, can):
        yield {n: v for n, v in row.items() if v is not None}
