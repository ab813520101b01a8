"""Jupyter notebooks: the table that the Hugging Face Trainer draws below a cell (`Step`, `Training
Loss`, …), and dictionaries that were printed with their step."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .console import step_in
from .formats import Candidate
from .reading import as_step, number
from .rows import whole
from .source import AttemptCounter, Findings, Scalars

_ROW = re.compile(r"<tr.*?</tr>", re.S)
_CELL = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.S)
_TAG = re.compile(r"<[^>]*>")
_BAR = re.compile(r"\[\s*\d+/(\d+) ")


class Notebook:
    name = "notebook"
    description = "outputs of a Jupyter notebook: the Trainer's tables, printed dictionaries"

    def looks_like(self, file: Candidate) -> bool:
        return file.path.suffix == ".ipynb" and file.head.lstrip().startswith(b"{")

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        attempts_seen = AttemptCounter()
        for path in paths:
            document = whole(path, findings)
            cells = document.get("cells") if isinstance(document, dict) else None
            for output in _outputs(cells if isinstance(cells, list) else []):
                for step, values in _steps(output, findings):
                    yield Scalars(step, values, attempt=attempts_seen.of(step, values))


def _outputs(cells: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for cell in cells:
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        yield from (o for o in outputs or () if isinstance(o, dict))


def _steps(output: dict[str, Any], findings: Findings) -> Iterator[tuple[int, dict[str, float]]]:
    data = output.get("data")
    if isinstance(data, dict) and (page := _text(data.get("text/html"))):
        if total := _BAR.search(page):
            findings.planned_steps = int(total[1])
        names: list[str] = []
        for row in _ROW.findall(page):
            cells = [html.unescape(_TAG.sub("", cell)).strip() for cell in _CELL.findall(row)]
            if "<th" in row:
                names = cells
            elif (
                names[:1] == ["Step"] and (step := as_step(cells[0] if cells else None)) is not None
            ):
                pairs = zip(names[1:], cells[1:], strict=False)
                values = {_name(n): v for n, c in pairs if (v := number(c)) is not None}
                if values:
                    yield step, values
    for line in _text(output.get("text")).splitlines():
        if row := step_in(line.encode(), findings):
            yield row


def _name(title: str) -> str:
    """The name of a column: notebooks put spaces around the slashes of a metric's name."""
    return "loss" if title == "Training Loss" else title.replace(" / ", "/")


def _text(value: Any) -> str:
    """A text, or the lines of one."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""
