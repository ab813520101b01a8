"""vLLM's worker extension: new weights in place, on a GPU and on the CPU.

`worker_extension_cls` names `WeightSync` here. vLLM imports this module before it builds the model,
in time for the two patches of its CPU backend (`compat`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from vllm.platforms import current_platform

from .compat import leave_weights_unpacked, pad_attention_heads


class WeightSync:
    """Methods that vLLM adds to its worker, called by `collective_rpc`."""

    model_runner: Any

    def take_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy weights under their Hugging Face names into the model."""
        self.model_runner.model.load_weights(weights=iter(weights))


if current_platform.is_cpu():
    leave_weights_unpacked()
    pad_attention_heads()
