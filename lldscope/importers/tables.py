"""Metrics as a table: a CSV file with a header line and a column of steps."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from .metrics import STEPS, time_of
from .reading import as_step, lines, number
from .source import AttemptCounter, Findings, Scalars


class MetricTable:
    name = "csv"
    description = "a CSV file with a column of steps"
    needs = None

    def looks_like(self, path: Path, head: bytes) -> bool:
        if path.suffix.lower() not in (".csv", ".tsv"):
            return False
        first = head.split(b"\n", 1)[0].decode("utf-8", "replace").strip()
        names = next(csv.reader([first], delimiter=_delimiter(first)), [])
        return any(name.strip().lower() in STEPS for name in names)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        for path in paths:
            text = (line.decode("utf-8-sig", "replace") for line, _ in lines(path, findings))
            header = next(text, "")
            delimiter = _delimiter(header)
            names = [n.strip() for n in next(csv.reader([header], delimiter=delimiter), [])]
            column = findings.request.columns.get("step")
            at = next((i for i, n in enumerate(names) if n == column or _is_step(n, column)), None)
            if at is None:
                findings.skip("tables without a column of steps")
                findings.note(
                    f"{path.name} has no column named {column or 'step'}. Say which one counts the "
                    "steps: --map step=NAME."
                )
                continue
            attempts_seen = AttemptCounter()
            for row in csv.reader(text, delimiter=delimiter):
                step = as_step(row[at]) if len(row) == len(names) else None
                if step is None:
                    findings.skip("rows without a step, or with too few or many columns")
                    continue
                cells = dict(zip(names, row, strict=True))
                values = {
                    name: value
                    for name, cell in cells.items()
                    if name != names[at] and (value := number(cell)) is not None
                }
                if values:
                    yield Scalars(step, values, time_of(cells), attempts_seen.of(step, values))


def _is_step(name: str, column: str | None) -> bool:
    return column is None and name.lower() in STEPS


def _delimiter(header: str) -> str:
    return max(",;\t", key=header.count)
