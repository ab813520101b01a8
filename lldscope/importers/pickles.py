"""Pickled dumps: recognized, and refused.

slime's `--dump-details` (624b824) and SkyRL's `dump_data_batch` (0.3.0) are pickles of their own
classes. To load one is to run what is in it, and it needs their packages; so it is left to the
person who trusts the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import LldscopeError
from .source import Findings, Scalars


class Pickle:
    name = "pickle"
    words = "pickled dumps of slime or SkyRL, which are not loaded"
    needs = None

    def looks_like(self, path: Path, head: bytes) -> bool:
        return path.suffix in (".pt", ".pth", ".pkl", ".pickle")

    def read(self, paths: Sequence[Path], found: Findings) -> Iterator[Scalars]:
        raise LldscopeError(
            f"{paths[0]} is a pickle: to load it would run code that is in it. Where you trust it, "
            "write with the trainer's own environment one JSON object per rollout and line, with "
            "input, output, score, step and uid, and import that file; its metrics are in the "
            "console output, in W&B or in TensorBoard."
        )
