"""MLflow's folder `mlruns`, its tracking store in older versions.

Format: mlflow's store/tracking/file_store.py (a file for each metric, lines of `milliseconds value
step`). None of MLflow is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from heapq import merge
from pathlib import Path
from typing import BinaryIO

from .limits import files_under
from .logged import Point, chosen, joined
from .reading import as_step, head
from .source import Findings, Rows, Scalars

_MOST_FILES = 500
_LONGEST_LINE = 1 << 16
_LONGEST_NAME = 1000


class MlflowFiles:
    name = "mlflow-files"
    description = "MLflow's file store (mlruns, an experiment or a run of it), metrics of one run"

    def looks_like(self, path: Path, head: bytes) -> bool:
        return path.is_dir() and bool(_runs(path))

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars | Rows]:
        for path in paths:
            folders = {folder.name: folder for folder in _runs(path)}
            run = chosen(
                findings.request.run, {i: _name(folder) for i, folder in folders.items()}, path
            )
            if run is not None:
                yield from joined(_merged(folders[run] / "metrics", findings))


def _runs(path: Path) -> list[Path]:
    """The folders of runs: of a run, an experiment, or all experiments."""
    folders = (m.parent for depth in ("", "*/", "*/*/") for m in path.glob(f"{depth}meta.yaml"))
    return sorted(f for f in folders if (f / "metrics").is_dir())


def _name(folder: Path) -> str:
    text = head(folder / "tags" / "mlflow.runName", _LONGEST_NAME)
    return text.decode("utf-8", "replace").strip() or folder.name


def _merged(folder: Path, findings: Findings) -> Iterator[Point]:
    """Points of all metrics in the order in which they were written."""
    files = files_under(folder)
    if len(files) > _MOST_FILES:
        findings.skip(f"metrics after the first {_MOST_FILES}", len(files) - _MOST_FILES)
    with ExitStack() as stack:
        points = []
        for path in files[:_MOST_FILES]:
            try:
                file = stack.enter_context(path.open("rb"))
            except OSError:
                findings.skip("files that cannot be read")
                continue
            points.append(_lines(path.relative_to(folder).as_posix(), file, findings))
        yield from merge(*points, key=lambda point: point[3] or 0.0)


def _lines(name: str, file: BinaryIO, findings: Findings) -> Iterator[Point]:
    while line := file.readline(_LONGEST_LINE):
        findings.advance(len(line))
        fields = line.split()
        try:
            if not line.endswith(b"\n"):
                findings.skip("lines that were not finished")
                while len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                    line = file.readline(_LONGEST_LINE)  # the rest of it
                continue
            time, value = int(fields[0]) / 1000, float(fields[1])
            step = as_step(fields[2].decode()) if len(fields) > 2 else 0
        except (ValueError, IndexError, OverflowError):
            step = None
        if step is None:
            findings.skip("lines that are no metric of MLflow")
        else:
            yield name, value, step, time
