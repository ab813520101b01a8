"""The cost of a step: seconds by part, and memory."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

UPDATE = ("prepare", "score", "reference", "update", "sync")
"""The parts that `seconds_update` sums."""


class Meter:
    """Measures one step after another in this process; `last` has the seconds of the previous
    step's parts. On a GPU every measurement synchronizes with the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = defaultdict[str, float](float)
        self.last: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of the block as this part of the step."""
        start = self._now()
        try:
            yield
        finally:
            self._seconds[name] += self._now() - start

    def columns(self) -> dict[str, Any]:
        """Columns of the table `steps`; later measurements belong to the next step."""
        self.last = s = self._seconds
        self._seconds = defaultdict(float)
        return {
            "seconds_rollout": s["rollout"],
            "seconds_update": sum(s[part] for part in UPDATE),
            "seconds_record": s["probes"] + s["record"],
            "seconds_score": s["score"],
            "seconds_reference": s["reference"],
            "seconds_sync": s["sync"],
            "seconds_evaluation": s["evaluation"],
            "memory_peak": self._memory(),
        }

    def _memory(self) -> int | None:
        """Peak bytes that torch allocated on a GPU since the last call."""
        if self._device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return peak

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
