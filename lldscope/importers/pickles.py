"""Pickles, such as slime's dumps, SkyRL's `dump_data_batch` and checkpoints, which are not loaded.

To load one is to run what is in it, and it needs the packages of its classes; so it is left to the
person who trusts the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .source import Findings, Scalars


class Pickle:
    name = "pickle"
    description = "pickles (slime's dumps, SkyRL's batches, checkpoints), which are skipped"

    def looks_like(self, path: Path, head: bytes) -> bool:
        return path.suffix in (".pt", ".pth", ".pkl", ".pickle")

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        findings.skip("pickles, which are not loaded", len(paths))
        findings.note(
            f"{paths[0]} is a pickle: loading it would run code in it. Import the trainer's "
            "console output, W&B or TensorBoard, or write train_data_step<N>.jsonl from the "
            "trainer's own environment: docs/importing.md has its fields."
        )
        return iter(())
