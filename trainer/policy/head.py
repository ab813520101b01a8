"""The output layer: hidden states → float32 logits, in the precision that `head_dtype` names.

- float32, the default: what arXiv 2506.13585 found necessary.
- tf32: inputs rounded to 11 significant bits by the GPU's tensor cores, sums in float32.
- bfloat16: inputs rounded to 8 significant bits, sums in float32. Nothing is kept of the float32
  copy of the weights that the other two need where the policy's own are bfloat16.

Gradients are products of the same precision. tests/trainer/test_head.py measures the error of each
against double precision and LLDS' dead band.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear


def head_logits(model: Any, hidden: Tensor) -> Tensor:
    """(…, vocabulary) float32 logits of hidden states (…, hidden size), in the model's
    `head_dtype`, float32 where it has none, whatever its weights are."""
    # Its weights and no module: in ZeRO's stage 3 every call of a module makes all ranks fetch its
    # weights together, but the head runs once per chunk of tokens, of which ranks differ in number.
    head = model.get_output_embeddings()
    bias = None if head.bias is None else head.bias.float()
    dtype = getattr(model, "head_dtype", "float32")
    with torch.autocast(hidden.device.type, enabled=False):
        if dtype == "float32":
            return linear(hidden.float(), head.weight.float(), bias)
        logits = _Linear.apply(hidden.flatten(0, -2), head.weight, dtype)
        return (logits if bias is None else logits + bias).view(*hidden.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    """hidden @ weight.T, forward and backward by `_product`: the switch for TF32 is global, and
    there is no gradient of a product with an `out_dtype`."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, dtype: str) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.dtype = dtype
        return _product(hidden, weight.T, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        hidden, weight = ctx.saved_tensors
        (logits,) = gradients
        by_hidden, by_weight, _ = ctx.needs_input_grad
        return (
            _product(logits, weight, ctx.dtype).to(hidden.dtype) if by_hidden else None,
            _product(logits.T, hidden, ctx.dtype).to(weight.dtype) if by_weight else None,
            None,
        )


def _product(a: Tensor, b: Tensor, dtype: str) -> Tensor:
    """The float32 product of two matrices."""
    if dtype == "tf32":
        with _tf32():
            return a.float() @ b.float()
    a, b = a.bfloat16(), b.bfloat16()
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()  # of 8-bit numbers, products are exact in float32


@contextmanager
def _tf32() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, True
    try:
        yield
    finally:
        matmul.allow_tf32 = before
