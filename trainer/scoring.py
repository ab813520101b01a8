"""Log-probabilities of action tokens under a policy, for whole sequences at once.

The decoder runs over the full sequences, the LM head only where an action token is predicted, in
chunks: memory does not grow with vocabulary × sequence length. Rows are padded on the right, which
under causal attention needs no mask: nothing real ever looks at the padding.

Shapes: B rows, T tokens; position t of a result belongs to token t of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 8192
"""Action tokens per call of the LM head."""


def action_logps(model: Any, ids: Tensor, action_mask: Tensor) -> Tensor:
    """log π(token) of every action token.

    Args:
        model: a Hugging Face causal language model.
        ids: (B, T) token ids, padded on the right.
        action_mask: (B, T), 1 where the policy emitted the token; never at position 0.

    Returns:
        (B, T) float32 log-probabilities in nats, 0 where `action_mask` is 0.
    """
    mask = action_mask.bool()
    hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    before = hidden[:, :-1][mask[:, 1:]]
    targets = ids[mask]
    parts = []
    for h, y in zip(before.split(CHUNK), targets.split(CHUNK), strict=True):
        # With several chunks their logits would all wait for the backward pass; recompute instead.
        many = torch.is_grad_enabled() and len(targets) > CHUNK
        head = model.get_output_embeddings()
        parts.append(
            checkpoint(_logp, head, h, y, use_reentrant=False) if many else _logp(head, h, y)
        )
    logps = torch.zeros(ids.shape, dtype=torch.float32, device=ids.device)
    return logps.masked_scatter(mask, torch.cat(parts)) if parts else logps


def _logp(head: Any, hidden: Tensor, targets: Tensor) -> Tensor:
    logits = head(hidden).float()
    return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)


def pad(rows: Sequence[Sequence[float]], value: float, device: torch.device) -> Tensor:
    """(B, T) tensor of ragged rows, `value` to the right of the shorter ones."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], device=device)


def by_length(lengths: Sequence[int], n_buckets: int) -> list[list[int]]:
    """Indices in `n_buckets` of similar length, so that little of a padded bucket is padding."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    size = -(-len(order) // max(1, min(n_buckets, len(order))))
    return [order[i : i + size] for i in range(0, len(order), size)]
