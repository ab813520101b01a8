"""An object store in memory that refuses, answers late, or carries out a request twice.

Addresses are `flaky://bucket/run`. While `faults` is not 0, that share of the writes goes wrong in
one of three ways: nothing is written; it is written and the answer is lost; the answer is lost and
it is written much later, after other requests (`apply_late`).
"""

from __future__ import annotations

import random
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FlakyStore(MemoryFileSystem):
    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}  # not that of memory://
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[float] = 0.0
    late: ClassVar[list[tuple[str, bytes]]] = []
    choose: ClassVar[random.Random] = random.Random(0)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("flaky://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        fault = self.choose.random() < self.faults and self.choose.choice(("none", "twice", "late"))
        if fault == "late":
            self.late.append((path, value))
        elif fault != "none":
            super().pipe_file(path, value)
        if fault:
            raise TimeoutError("no answer")

    def apply_late(self) -> None:
        """Carry out, in any order, what nobody expects any more."""
        self.choose.shuffle(self.late)
        for path, value in self.late:
            super().pipe_file(path, value)
        self.late.clear()

    @classmethod
    def reset(cls, seed: int = 0) -> None:
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.late.clear()
        cls.faults, cls.choose = 0.0, random.Random(seed)


fsspec.register_implementation("flaky", FlakyStore, clobber=True)
