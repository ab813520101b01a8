"""The output layer: hidden states → float32 logits, in the precision that `head_dtype` names.

- float32, the default, which arXiv 2506.13585 found necessary. If the decoder computes in bfloat16
  on a GPU, bfloat16 products are summed in float32, because tensor cores do that ten times as fast.
  The products of bfloat16 inputs are exact. A float32 input is split into two halves of 8
  significant bits each, and the product of the two low halves is left out.
- bfloat16: inputs rounded to 8 significant bits, sums in float32: one product, and no float32 copy
  of the weights.

Gradients are products of the same precision. tests/trainer/test_head.py measures the error of each
against double precision and LLDS' dead band.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

FEW = 256
"""The most rows for which reading the weights dominates: splitting them would take longer."""


def head_logits(model: Any, hidden: Tensor) -> Tensor:
    """(…, V) float32 logits of hidden states (…, H), in the model's `head_dtype`, float32 where it
    has none, whatever its weights are."""
    # Its weights and no module: in ZeRO's stage 3 every call of a module makes all ranks fetch its
    # weights together, but the head runs once per chunk of tokens, of which ranks differ in number.
    head = model.get_output_embeddings()
    bias = None if head.bias is None else head.bias.float()
    rows = hidden.flatten(0, -2)  # (n, H)
    with torch.autocast(hidden.device.type, enabled=False):
        exact = getattr(model, "head_dtype", "float32") == "float32"
        bfloat16 = torch.bfloat16 in (getattr(model, "compute_dtype", None), rows.dtype)
        if exact and not (rows.is_cuda and bfloat16 and len(rows) > FEW):
            return linear(hidden.float(), head.weight.float(), bias)
        logits = HalfLinear.apply(rows, head.weight, exact)  # (n, V)
        return (logits if bias is None else logits + bias).view(*hidden.shape[:-1], -1)


class HalfLinear(torch.autograd.Function):
    """rows (n, H) @ weight (V, H).T, forward and backward by `_product`: there is no gradient of a
    product with an `out_dtype`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, exact: bool) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.exact = exact
        return _product(rows, weight.T, exact)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, weight = ctx.saved_tensors
        (logits,) = gradients  # (n, V)
        by_rows, by_weight, _ = ctx.needs_input_grad
        return (
            _product(logits, weight, ctx.exact).to(rows.dtype) if by_rows else None,
            _product(logits.T, rows, ctx.exact).to(weight.dtype) if by_weight else None,
            None,
        )


def _product(a: Tensor, b: Tensor, exact: bool) -> Tensor:
    """The float32 product of two matrices: of their first 8 significant bits, or of 16."""
    (first, *rest), (second, *more) = halves(a, exact), halves(b, exact)
    product = _add_product(None, first, second)
    for low in rest:
        product = _add_product(product, low, second)
    for low in more:
        product = _add_product(product, first, low)
    return product


def halves(a: Tensor, exact: bool) -> list[Tensor]:
    """bfloat16 tensors that add up to `a`: one of a bfloat16 tensor or if not `exact`, else two,
    which miss 2⁻¹⁷ of it at most."""
    high = a.bfloat16()
    if a.dtype == torch.bfloat16 or not exact:
        return [high]
    return [high, (a - high).bfloat16()]


def _add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """total + a @ b with float32 sums."""
    if not a.is_cuda:  # products of 8-bit numbers are exact in float32
        return a.float() @ b.float() if total is None else total.addmm_(a.float(), b.float())
    if total is None:
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.addmm(total, a, b, out_dtype=torch.float32)
