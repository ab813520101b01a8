"""How many floating-point operations a model needs, and how many a GPU could do: MFU.

The model FLOP utilisation of arXiv 2204.02311, appendix B: operations that the computation needs,
over those that the device could have done in the time. What is done on padding, or again because of
gradient checkpointing, does not count, so both lower it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

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
