"""What a step costs: seconds by part, floating-point operations, memory.

MFU is the model FLOP utilisation of arXiv 2204.02311, appendix B: operations that the computation
needs, over those that the device could have done in the time. What is done on padding, or again
because of gradient checkpointing, does not count, so both lower it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

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


# Dense bfloat16 operations per second with float32 accumulation, as NVIDIA's data sheets give them,
# by the exact name of the card: of names that only look alike, one may have half the speed.
PEAKS = {
    "B300 SXM6 AC": 2250e12,
    "B200": 2250e12,
    "GH200 480GB": 989e12,
    "H200": 989e12,
    "H200 NVL": 835e12,
    "H100 80GB HBM3": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H20": 148e12,
    "A100-SXM4-40GB": 312e12,
    "A100-SXM4-80GB": 312e12,
    "A100-PCIE-40GB": 312e12,
    "A100 80GB PCIe": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10": 125e12,
    "GeForce RTX 5090": 210e12,
    "GeForce RTX 4090": 165e12,
    "GeForce RTX 3090": 71e12,
}


class Flops:
    """Operations of one causal language model.

    A pass over n tokens takes 2·W·n in its linear layers of W weights and, in each layer, 2·H·n² in
    causal attention of width H (n²/2 pairs, two products of 2·H each); the head takes
    2·vocabulary·hidden for each token that is scored.
    """

    def __init__(self, model: Any) -> None:
        decoder, head, config = model.get_decoder(), model.get_output_embeddings(), model.config
        self._linear = sum(
            m.in_features * m.out_features for m in decoder.modules() if isinstance(m, nn.Linear)
        )
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._attention = config.num_hidden_layers * config.num_attention_heads * size
        self._head = head.in_features * head.out_features

    def forward(self, lengths: Iterable[int], targets: int) -> int:
        """A pass over rows of these lengths, `targets` tokens of which get logits. A forward and
        backward pass takes three times that."""
        rows = sum(2 * self._linear * n + 2 * self._attention * n * n for n in lengths)
        return rows + 2 * self._head * targets


def peak_flops(device: torch.device) -> float | None:
    """What the device could do in a second; None for a processor or a card not in PEAKS."""
    if device.type != "cuda":
        return None
    return PEAKS.get(torch.cuda.get_device_name(device).removeprefix("NVIDIA "))
