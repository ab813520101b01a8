"""W&B's downloads: the history of a run as Parquet or CSV, and the CSV of a chart.

The Parquet files are those of `Run.download_history_exports`; the history as CSV is what people
make of `Run.scan_history` with pandas. A chart's CSV has a column of steps, and for each run
`RUN - METRIC`, with `…__MIN` and `…__MAX` beside it, because a chart averages neighbouring steps.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from .logged import STEPS, LoggerCalls, Point, chosen, joined, of_one_run
from .metrics import table
from .parquet import is_number, parquet_rows, schema_of
from .reading import as_step, lines, natural_key, objects
from .source import Findings, Rows, Scalars
from .wandb_api import SUFFIX

_LEAST, _MOST = "__MIN", "__MAX"
_CHART_STEPS = ("Step", "_step", *STEPS)
_PART = re.compile(r"_\d+\.runhistory\.parquet$")  # one of several of a run


class WandbHistory:
    name = "wandb-history"
    description = "W&B's history of a run: wandb://ENTITY/PROJECT/RUN, Parquet, or CSV with _step"

    def looks_like(self, path: Path, head: bytes) -> bool:
        if head.startswith(b"PAR1"):
            schema = schema_of(path)
            return schema is not None and "_step" in schema.names
        names = _header(head)
        return path.name.endswith(SUFFIX) or ("_step" in names and not _is_chart(names))

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


class WandbChart:
    name = "wandb-chart"
    description = "W&B's CSV of a chart, columns “RUN - METRIC”; one run, of one file or several"

    def looks_like(self, path: Path, head: bytes) -> bool:
        return _is_chart(_header(head))

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars | Rows]:
        files = sorted(paths, key=natural_key)
        runs = {run: run for path in files for run, _ in _lines_of(path).values()}
        run = chosen(findings.request.run, runs, files[0])
        for path in files:
            yield from joined(_chart(path, run or "", findings))


def _is_chart(names: Sequence[str]) -> bool:
    columns = set(names)
    return any(f"{n}{_LEAST}" in columns and f"{n}{_MOST}" in columns for n in names)


def _header(head: bytes) -> list[str]:
    """Names of the columns of a CSV file; nothing if its beginning is no such line."""
    line, newline, _ = head.partition(b"\n")
    try:
        return next(csv.reader([line.decode("utf-8-sig")]), []) if newline else []
    except (UnicodeDecodeError, csv.Error):
        return []


def _lines_of(path: Path) -> dict[str, tuple[str, str]]:
    """Columns of a chart that are averages → run ("" if it names none) and metric."""
    names = _header(next((line + b"\n" for line, _ in lines(path, Findings())), b""))
    columns = set(names)
    metrics = {}
    for name in names:
        if f"{name}{_LEAST}" in columns and f"{name}{_MOST}" in columns:
            run, dash, metric = name.rpartition(" - ")
            metrics[name] = (run, metric) if dash else ("", name)
    return metrics


def _chart(path: Path, run: str, findings: Findings) -> Iterator[Point]:
    """Points of one run. Where a chart shows averages over several steps, it says so."""
    wanted = {name: metric for name, (of, metric) in _lines_of(path).items() if of == run}
    averaged = 0
    for row in _csv_rows(path, findings):
        own = (row.get(name) for name in (*_CHART_STEPS, f"{run} - _step"))
        step = next((whole for value in own if (whole := as_step(value)) is not None), None)
        if step is None:
            findings.skip(
                "rows without a step (a chart over time or epochs; choose Step as its x axis)"
            )
            continue
        for name, metric in wanted.items():
            if isinstance(value := row.get(name), int | float) and metric != "_step":
                averaged += row.get(name + _LEAST) != row.get(name + _MOST) and value == value
                yield metric, float(value), step, None
    if averaged:
        findings.note(
            f"{averaged} points of {path.name} are averages over several steps, as W&B's charts "
            "show them: short spikes are smaller than they were. The run's history has every step."
        )


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
