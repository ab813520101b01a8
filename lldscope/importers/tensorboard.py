"""TensorBoard's event files, by the reader of the package `tensorboard`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .metrics import Point, group_points
from .reading import of_one_run
from .rows import Candidate
from .source import Findings, Rows, Scalars, in_attempts

_FIRST = b"brain.Event:"  # in the first record of every event file
_FRAME = 16  # bytes of a record beside its content: length and two checksums
_NUMBERS = frozenset((1, 2, 3, 4, 5, 6, 9, 10, 14, 17, 19, 22, 23))  # of TensorProto.DataType


class TensorBoard:
    name = "tensorboard"
    description = "TensorBoard event files (*.tfevents.*), scalars"

    def looks_like(self, file: Candidate) -> bool:
        return len(file.head) > 24 and _FIRST in file.head[:64]

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars | Rows]:
        # A folder is a run, as for TensorBoard itself; in a name is the second when it was begun.
        files = of_one_run(paths, findings, lambda path: str(path.parent))
        if find_spec("tensorboard") is None:
            missing = "files that need the package tensorboard: pip install 'lldscope[import]'"
            return findings.skip(missing, len(files))
        points = (point for path in files for point in _points(path, findings))
        yield from in_attempts(group_points(points), findings)


def _points(path: Path, findings: Findings) -> Iterator[Point]:
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    size, read = path.stat().st_size, 0
    try:
        for record in RawEventFileLoader(str(path)).Load():
            read += len(record) + _FRAME
            findings.advance(len(record) + _FRAME)
            try:
                event = Event.FromString(record)
            except DecodeError:
                findings.skip("records that are not TensorBoard events")
                continue
            for summary in event.summary.value:
                if (value := _scalar(summary)) is not None:
                    yield summary.tag, value, event.step, event.wall_time
    except (OSError, MemoryError, OverflowError):  # a length that no file has
        pass
    if read < size:  # TensorBoard's reader ends at the first record that is not whole
        findings.skip("bytes after the last whole record", size - read)


def _scalar(summary: Any) -> float | None:
    """The number of a summary (plain value or scalar tensor); None for others."""
    if summary.HasField("simple_value"):
        return float(summary.simple_value)
    tensor = summary.tensor
    if not summary.HasField("tensor") or tensor.tensor_shape.dim or tensor.dtype not in _NUMBERS:
        return None
    from tensorboard.util.tensor_util import make_ndarray

    try:
        return float(make_ndarray(tensor))
    except (TypeError, ValueError):
        return None
