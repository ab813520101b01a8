"""Rows of a file as dictionaries, from JSON lines, a JSON document, CSV or Parquet. `metrics` and
`rollouts` interpret them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from .reading import bare_name, document, first_object, head, is_notebook, lines, objects
from .source import Findings

_DEPTH = 4  # of objects in which the list of steps is looked for
_FIRST = 20  # rows that a format is recognized by
_PIECE = 512  # rows of Parquet that are decoded at once
_HISTORY = "log_history"  # the Hugging Face Trainer's list of steps

Row = dict[str, Any]


@dataclass
class Candidate:
    """A file for the sources to claim: its first bytes, and its first rows, if any."""

    path: Path
    columns: Mapping[str, str] = field(default_factory=dict)  # as in ImportRequest

    @cached_property
    def head(self) -> bytes:
        return head(self.path)

    @cached_property
    def rows(self) -> list[Row]:
        return first_rows(self.path)


def form(path: Path) -> str | None:
    """The file's container: "parquet", "csv", "document" or "lines"; None if it has no rows."""
    start = head(path)
    if start.startswith(b"PAR1"):
        return "parquet"
    start = start.lstrip()
    suffix = Path(bare_name(path)).suffix.lower()
    if is_notebook(path):
        return None
    first, _, more = start.partition(b"\n")
    if start[:1] == b"[":
        return "document"
    if start[:1] == b"{":
        are_lines = suffix == ".jsonl" or b"\n" not in start or first_object(start) is not None
        # JSON lines may be called .json, too.
        return "lines" if are_lines and (suffix != ".json" or more.strip()) else "document"
    if b"\0" in start[:4096]:
        return None
    if suffix in (".csv", ".tsv") or b"_step" in first.replace(b'"', b"").split(b","):
        return "csv"
    return None


def rows_of(path: Path, findings: Findings) -> Iterator[Row]:
    """The rows of a file, in order. Unreadable content is counted."""
    kind = form(path)
    if kind == "parquet":
        yield from _parquet_rows(path, findings)
    elif kind == "csv":
        yield from _csv_rows(path, findings)
    elif kind == "document":
        yield from _document_rows(path, findings)
    else:
        yield from objects(path, findings)


def first_rows(path: Path) -> list[Row]:
    """The first rows of a file; empty if it has none."""
    return list(islice(rows_of(path, Findings()), _FIRST)) if form(path) else []


def _document_rows(path: Path, findings: Findings) -> list[Row]:
    """The steps in a JSON value."""
    value = document(path, findings)
    if isinstance(value, dict) and isinstance(value.get("max_steps"), int):
        findings.planned_steps = value["max_steps"]
    return steps_in(value)


def steps_in(value: Any, depth: int = _DEPTH) -> list[Row]:
    """The rows of a JSON value: a list of objects, an object of equally long lists of numbers
    (columns), an object keyed by step, or the longest of these inside it."""
    if isinstance(value, list):
        return [row for row in value if isinstance(row, dict)]
    if not isinstance(value, dict) or depth == 0:
        return []
    if isinstance(value.get(_HISTORY), list):
        return steps_in(value[_HISTORY])
    if value and all(n.isdigit() and isinstance(row, dict) for n, row in value.items()):
        return [{"step": int(n), **row} for n, row in value.items()]
    columns = {n: v for n, v in value.items() if v and isinstance(v, list) and _are_numbers(v)}
    choices = [steps_in(v, depth - 1) for v in value.values() if isinstance(v, dict | list)]
    if columns:
        (length, _), *_ = Counter(map(len, columns.values())).most_common(1)
        columns = {n: v for n, v in columns.items() if len(v) == length}
        rows = zip(*columns.values(), strict=True)
        choices.append([dict(zip(columns, row, strict=True)) for row in rows])
    return max(choices, key=len, default=[]) or [value]


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(v is None or isinstance(v, int | float) for v in values)


def _csv_rows(path: Path, findings: Findings) -> Iterator[Row]:
    """Rows of a CSV table; an empty cell was not logged."""
    text = (line.decode("utf-8-sig", "replace") + "\n" for line, _ in lines(path, findings))
    header = next(text, "")
    delimiter = max(",;\t", key=header.count)
    names = [name.strip() for name in next(_table([header], delimiter, findings), [])]
    for cells in _table(text, delimiter, findings):
        if len(cells) == len(names):
            yield {n: c for n, c in zip(names, cells, strict=True) if n and c.strip()}
        elif cells:
            findings.skip("lines with more or fewer fields than the header has")


def _table(text: Iterable[str], delimiter: str, findings: Findings) -> Iterator[list[str]]:
    """The rows of CSV text; malformed ones are counted."""
    rows = csv.reader(text, delimiter=delimiter)
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error:  # a field that does not end, for example
            findings.skip("lines that are no CSV")


def _parquet_rows(path: Path, findings: Findings) -> Iterator[Row]:
    """The rows of a Parquet file without NULLs, one piece at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        size = path.stat().st_size
        with pq.ParquetFile(path) as file:
            for piece in file.iter_batches(_PIECE, use_threads=False):
                findings.advance(size * piece.num_rows // max(file.metadata.num_rows, 1))
                for row in piece.to_pylist():
                    yield {name: value for name, value in row.items() if value is not None}
    except (pa.ArrowException, OSError, OverflowError, ValueError) as error:
        findings.skip("Parquet files that cannot be read to their end")
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        findings.note(f"{path.name}: {reason[:200]}")
