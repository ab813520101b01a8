"""The output layer: hidden states → logits, in float32, which arXiv 2506.13585 found necessary.

Where the decoder computes in bfloat16 on a GPU, by bfloat16 products with float32 sums, whose
tensor cores are ten times as fast: exact of inputs that are bfloat16 themselves; of float32 ones
each is split into two halves of 8 significant bits, and of the four products the three that matter
are taken. Gradients are products of the same precision. tests/trainer/test_head.py measures the
error against double precision and LLDS' dead band.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

FEW = 256
"""Rows up to which reading the weights takes most of the time, and splitting them more of it."""


def head_logits(model: Any, hidden: Tensor) -> Tensor:
    """(…, V) float32 logits of hidden states (…, H), whatever the model's weights are."""
    # Its weights and no module: in ZeRO's stage 3 every call of a module makes all ranks fetch its
    # weights together, but the head runs once per chunk of tokens, of which ranks differ in number.
    head = model.get_output_embeddings()
    bias = None if head.bias is None else head.bias.float()
    rows = hidden.flatten(0, -2)  # (n, H)
    with torch.autocast(hidden.device.type, enabled=False):
        bfloat16 = torch.bfloat16 in (getattr(model, "compute_dtype", None), rows.dtype)
        if not (rows.is_cuda and bfloat16 and len(rows) > FEW):
            return linear(hidden.float(), head.weight.float(), bias)
        logits = HalfLinear.apply(rows, head.weight)  # (n, V)
        return (logits if bias is None else logits + bias).view(*hidden.shape[:-1], -1)


class HalfLinear(torch.autograd.Function):
    """rows (n, H) @ weight (V, H).T, forward and backward by `_product`: there is no gradient of a
    product with an `out_dtype`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight.T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        (logits,) = gradients  # (n, V)
        by_rows, by_weight = ctx.needs_input_grad
        return (
            _product(logits, weight).to(rows.dtype) if by_rows else None,
            _product(logits.T, rows).to(weight.dtype) if by_weight else None,
        )


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The float32 product of two matrices, of their first 16 significant bits."""
    (first, *rest), (second, *more) = halves(a), halves(b)
    product = _add_product(None, first, second)
    for low in rest:
        product = _add_product(product, low, second)
    for low in more:
        product = _add_product(product, first, low)
    return product


def halves(a: Tensor) -> list[Tensor]:
    """bfloat16 tensors that add up to `a`: of a bfloat16 tensor itself, else two, which miss 2⁻¹⁷
    of it at most."""
    if a.dtype == torch.bfloat16:
        return [a]
    high = a.bfloat16()
    return [high, (a - high).bfloat16()]


def _add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """total + a @ b with float32 sums."""
    if not a.is_cuda:  # products of 8-bit numbers are exact in float32
        return a.float() @ b.float() if total is None else total.addmm_(a.float(), b.float())
    if total is None:
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.addmm(total, a, b, out_dtype=torch.float32)
