"""The rows of a pass as one, without padding: `packing=true`.

Each row is cut behind its last action token and placed behind the one before it; positions start
again with each (`position_ids`). Attention stays within rows: on a GPU by torch's own kernel for
rows of different lengths (FlashAttention, bfloat16), on a CPU row by row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "lldscope_packed"
"""Of the attention that knows packed rows; all other passes go through torch's."""


def use_packing(model: Any) -> None:
    """Let scoring pack rows. Raises ValueError for a model whose attention cannot be replaced, or
    which looks back over a window only."""
    if getattr(model.config, "sliding_window", None):
        raise ValueError("a model with a sliding window cannot be packed: take packing=false")
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    model.packing = True


def packed_hidden(model: Any, ids: Tensor, where: Tensor) -> Tensor:
    """The decoder's final hidden states before the action tokens, (n, H): of rows (B, T) whose
    action tokens stand at the places `where` (n,) of the flattened rows."""
    (n_rows, n_columns), device = ids.shape, ids.device
    row = where // n_columns
    lengths = where.new_ones(n_rows).scatter_reduce(0, row, where % n_columns + 1, "amax")  # (B,)
    columns = torch.arange(n_columns, device=device)
    real = (columns < lengths[:, None]).flatten().nonzero()[:, 0]  # (N,) places that are kept
    ends = lengths.cumsum(0)  # (B,)
    bounds = torch.cat([ends.new_zeros(1), ends]).int()
    hidden = model.get_decoder()(
        input_ids=ids.flatten()[real][None],
        position_ids=(real % n_columns)[None],
        # Four dimensions are taken for a finished mask: none of N × N is made.
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
        use_cache=False,
        cu_seq_lens_q=bounds, cu_seq_lens_k=bounds, max_length_q=n_columns, max_length_k=n_columns,
    ).last_hidden_state  # (1, N, H)
    before = where % n_columns - 1 + bounds[row]  # their places among the kept ones
    return hidden[0].index_select(0, before)


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer, with query (B, heads, T, D) and likewise key and
    value; in a pass of packed rows B is 1 and `cu_seq_lens_q` (rows + 1,) has their bounds."""
    bounds = kwargs.get("cu_seq_lens_q")
    if bounds is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    groups = query.shape[1] // key.shape[1]
    # Rotary embeddings leave float32 under autocast; the kernel wants one type.
    q, k, v = (
        x[0].to(value.dtype).repeat_interleave(n, 0)
        for x, n in ((query, 1), (key, groups), (value, groups))
    )  # (heads, N, D)
    if q.is_cuda:
        return by_kernel(q, k, v, bounds, kwargs["max_length_q"], kwargs["scaling"]), None
    return by_rows(q, k, v, bounds, kwargs["scaling"]), None


def by_kernel(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, scale: float
) -> Tensor:
    """Causal attention within rows of (heads, N, D): (1, N, heads, D)."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x.transpose(0, 1).contiguous() for x in (q, k, v))  # (N, heads, D)
    out: Any = varlen_attn(
        q, k, v, bounds, bounds, longest, longest, scale=scale, window_size=(-1, 0)
    )
    return out[None]


def by_rows(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, scale: float) -> Tensor:
    """The same, one row after the other."""
    rows = bounds.diff().tolist()
    each = zip(q.split(rows, 1), k.split(rows, 1), v.split(rows, 1), strict=True)
    parts = [scaled_dot_product_attention(*row, is_causal=True, scale=scale) for row in each]
    return torch.cat(parts, 1).transpose(0, 1)[None].contiguous()
