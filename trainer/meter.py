"""What a step costs: seconds by part, floating-point operations, memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .policy.flops import Flops, peak_flops

UPDATE = ("prepare", "score", "reference", "update", "sync")
"""The parts of a step that `seconds_update` adds up."""


def parts_of(columns: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of a step by what they were spent on, each once."""
    names = {"sampling": "rollout", "scoring": "score", "reference": "reference", "sync": "sync",
             "evaluation": "evaluation", "recording": "record"}
    parts = {name: columns[f"seconds_{column}"] for name, column in names.items()}
    inside = sum(parts[name] for name in ("scoring", "reference", "sync"))
    return parts | {"update": columns["seconds_update"] - inside}


@dataclass
class Lap:
    """One stretch of time."""

    seconds: float = 0.0


class Meter:
    """Measures one step after the other, on this process. On a GPU every measurement waits until
    the device has done what it was given."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._flops = Flops(model)
        self._device = device
        self._peak = peak_flops(device)
        self._evaluation = 0.0
        self.start()

    def start(self) -> None:
        """Begin a step."""
        self._seconds = dict.fromkeys(("rollout", *UPDATE, "probes", "record"), 0.0)

    @contextmanager
    def part(self, name: str) -> Iterator[Lap]:
        """Count what happens inside as this part of the step; the lap has its seconds at the
        end."""
        lap, start = Lap(), self._now()
        try:
            yield lap
        finally:
            lap.seconds = self._now() - start
            self._seconds[name] += lap.seconds

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count what happens inside to the next step's evaluation."""
        start = self._now()
        try:
            yield
        finally:
            self._evaluation += self._now() - start

    def columns(self, lengths: Sequence[int], n_tokens: int) -> dict[str, Any]:
        """Of the table `steps`, for rollouts of these lengths with `n_tokens` action tokens, each
        of which went through one forward and backward pass."""
        s = self._seconds
        evaluation, self._evaluation = self._evaluation, 0.0
        return {
            "seconds_rollout": s["rollout"],
            "seconds_update": sum(s[part] for part in UPDATE),
            "seconds_record": s["probes"] + s["record"],
            "seconds_score": s["score"],
            "seconds_reference": s["reference"],
            "seconds_sync": s["sync"],
            "seconds_evaluation": evaluation,
            "flops": float(3 * self._flops.forward(lengths, n_tokens)),
            "flops_possible": None if self._peak is None else self._peak * s["update"],
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
