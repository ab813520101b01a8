"""What a step costs: seconds by part, and memory."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

UPDATE = ("prepare", "score", "reference", "update", "sync")
"""The parts of a step that `seconds_update` adds up."""


class Meter:
    """Measures one step after the other, on this process; `last` has the seconds of the parts of
    the one before. On a GPU every measurement waits until the device has done what it was given."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = defaultdict[str, float](float)
        self.last: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what happens inside as this part of the step."""
        start = self._now()
        try:
            yield
        finally:
            self._seconds[name] += self._now() - start

    def columns(self) -> dict[str, Any]:
        """Of the table `steps`; what is measured from now on belongs to the next step."""
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
        """Most bytes that torch had allocated on a GPU since this was last asked."""
        if self._device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return peak

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
