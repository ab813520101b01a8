"""What vLLM loads beside its own worker: new weights in place, on a GPU and on the CPU.

`worker_extension_cls` names `WeightSync` here. vLLM imports this module before it builds the model,
in time for the two patches of its CPU backend (`compat`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from vllm.platforms import current_platform

from .compat import leave_weights_unpacked, pad_attention_heads


class WeightSync:
    """Methods that vLLM adds to its worker, called by `collective_rpc`."""

    model_runner: Any
    vllm_config: Any

    def take_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy weights under their Hugging Face names into the model; they need not be all. One
        after the other: adapters are merged into each only when it is its turn."""
        self.model_runner.model.load_weights(weights=iter(weights))

    def take_weights_from(self, path: str) -> None:
        """The same from a file on this machine, which must be a safetensors one: nothing else is
        opened. Raises ValueError that names the file."""
        if not path.endswith(".safetensors"):
            raise ValueError(f"{path}: only safetensors files are loaded")
        device = next(self.model_runner.model.parameters()).device
        try:
            weights = load_file(path, device=str(device))
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{path}: {error}") from error
        try:
            self.take_weights(weights.items())
        except (AssertionError, KeyError, RuntimeError, ValueError) as error:
            raise ValueError(f"the server runs another model than this run ({error})") from error

    def check_ready(self) -> None:
        """For a client to find out early that this extension is there and the server can do what
        it will be asked. Raises ValueError that says with which argument it could."""
        chunked = self.vllm_config.scheduler_config.enable_chunked_prefill
        if chunked and current_platform.is_cpu():
            raise ValueError(
                "on the CPU, vLLM stops at a prompt that it takes in pieces and that has a seed: "
                "start the server with --no-enable-chunked-prefill"
            )


if current_platform.is_cpu():
    leave_weights_unpacked()
    pad_attention_heads()
