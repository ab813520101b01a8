"""Log-probabilities of action tokens under a policy, for whole sequences at once.

The decoder runs over the full sequences, the LM head only where an action token is predicted, in
chunks whose logits fit LOGITS_BYTES: memory does not grow with vocabulary × sequence length. Rows
are padded on the right, which under causal attention needs no mask: nothing real ever looks at the
padding.

A policy with `compute_dtype` (see `policy.load_policy`) keeps float32 weights and runs its decoder
under autocast. The head does not (`policy.head`): bfloat16 keeps 8 bits of a logit, an error of
several hundredths of a nat, which is more than one update moves most tokens.

Shapes: B rows, T tokens, n action tokens, H hidden size, V vocabulary; position t of a result
belongs to token t of the row.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .head import head_logits
from .packing import packed_hidden

LOGITS_BYTES = 256 * 2**20
"""Largest block of logits made at once. Softmax and its gradient need a few such blocks."""
_ON_A_GPU = 2
"""Times as large a block there: a GPU is fast on large products only."""


class TokenScores(NamedTuple):
    """Per token, (B, T) float32, 0 off the action tokens; None where not asked for.

    logp: log π(y), nats. entropy: −Σ_v π(v) ln π(v), nats. error_norm: ‖e_y − π‖² =
    1 − 2π(y) + Σ_v π(v)² (the error vector of arXiv 2505.18830, Theorem 4.4), without gradient.
    """

    logp: Tensor
    entropy: Tensor | None
    error_norm: Tensor | None


def action_scores(
    model: Any,
    ids: Tensor,
    action_mask: Tensor,
    *,
    entropy: bool = False,
    error_norm: bool = False,
) -> TokenScores:
    """What `model` thinks of every action token; with gradient where gradients are enabled.

    Args:
        model: a Hugging Face causal language model.
        ids: (B, T) token ids, padded on the right.
        action_mask: (B, T), 1 where the policy emitted the token; never at position 0.
    """
    where = action_mask.flatten().nonzero()[:, 0]  # (n,) positions of action tokens in B · T
    before = _hidden_before(model, ids, action_mask, where)  # (n, H)
    targets = ids.flatten().index_select(0, where)  # (n,)
    size = logits_rows(model)
    # With several chunks their logits would all wait for the backward pass; recompute instead.
    many = torch.is_grad_enabled() and len(targets) > size
    chunks = []
    for h, y in zip(before.split(size), targets.split(size), strict=True):
        arguments = (model, h, y, entropy, error_norm)
        chunks.append(
            checkpoint(_score, *arguments, use_reentrant=False) if many else _score(*arguments)
        )

    def whole(parts: Sequence[Tensor | None]) -> Tensor | None:
        pieces = [part for part in parts if part is not None]
        if not pieces:
            return None
        zeros = torch.zeros(ids.numel(), dtype=torch.float32, device=ids.device)
        return zeros.index_copy(0, where, torch.cat(pieces)).view(ids.shape)

    logp, *others = map(whole, zip(*chunks, strict=True))
    assert logp is not None
    return TokenScores(logp, *others)


def action_hidden(model: Any, ids: Tensor, action_mask: Tensor) -> Tensor:
    """(action tokens, hidden size): the final hidden states that predict the action tokens, row by
    row."""
    return _hidden_before(model, ids, action_mask, action_mask.flatten().nonzero()[:, 0])


def _hidden_before(model: Any, ids: Tensor, action_mask: Tensor, where: Tensor) -> Tensor:
    """The final hidden states that predict the action tokens, which are at the positions `where` of
    the flattened rows. They are found once for all uses: a GPU is waited for to know how many there
    are."""
    with compute(model), _recomputing(model):
        if getattr(model, "packing", False):
            return packed_hidden(model, ids, action_mask, where)
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, where - 1)


def logits_rows(model: Any) -> int:
    """How many tokens' logits fit LOGITS_BYTES."""
    head = model.get_output_embeddings()
    times = _ON_A_GPU if head.weight.is_cuda else 1
    return max(1, times * LOGITS_BYTES // (4 * head.out_features))


def action_logps(model: Any, ids: Tensor, action_mask: Tensor) -> Tensor:
    """(B, T) log-probabilities alone: `action_scores(…).logp`."""
    return action_scores(model, ids, action_mask).logp


def sequence_logps(
    model: Any,
    ids: Sequence[Sequence[int]],
    masks: Sequence[Sequence[int]],
    n_buckets: int,
) -> list[Tensor]:
    """For each sequence (T,) float64 log π of its action tokens, 0 elsewhere, on the CPU; scored in
    at most `n_buckets` of similar length."""
    device = next(model.parameters()).device
    by_index: dict[int, Tensor] = {}
    for bucket in by_length([len(row) for row in ids], n_buckets):
        rows, mask = [ids[i] for i in bucket], [masks[i] for i in bucket]
        logps = action_logps(model, pad(rows, 0, device), pad(mask, 0, device)).double().cpu()
        by_index |= {i: logp[: len(ids[i])] for i, logp in zip(bucket, logps, strict=True)}
    return [by_index[i] for i in range(len(ids))]


def compute(model: Any) -> AbstractContextManager[Any]:
    """The context the decoder of `model` runs in: autocast to its `compute_dtype`, if it has one.

    Autocast keeps its casts of trainable weights until the outermost context ends, so wrap a whole
    rollout in one context rather than every token.
    """
    dtype = getattr(model, "compute_dtype", None)
    if dtype is None:
        return nullcontext()
    return torch.autocast(next(model.parameters()).device.type, dtype=dtype)


@contextmanager
def _recomputing(model: Any) -> Iterator[None]:
    """Let layers with gradient checkpointing act on it, where gradients are enabled.

    Hugging Face layers do so in training mode only. Their children stay in evaluation mode:
    dropout would make π_θ differ from π_old with the same weights.
    """
    layers = [
        layer
        for layer in (model.modules() if torch.is_grad_enabled() else ())
        if getattr(layer, "gradient_checkpointing", False) and not layer.training
    ]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


class _LogProb(torch.autograd.Function):
    """(log π(y), ln Σ_v e^logit) of (n, vocabulary) logits. Its gradient, that of the former alone,
    makes one block of the logits' size, where autograd through gather and logsumexp makes four."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        normaliser = logits.logsumexp(-1)
        ctx.save_for_backward(logits, normaliser, targets)
        ctx.mark_non_differentiable(normaliser)
        return logits.gather(-1, targets[:, None])[:, 0] - normaliser, normaliser

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, normaliser, targets = ctx.saved_tensors
        gradient = gradients[0][:, None]
        block = (logits - normaliser[:, None]).exp_().mul_(-gradient)
        return block.scatter_add_(-1, targets[:, None], gradient), None


def _score(
    model: Any, hidden: Tensor, targets: Tensor, entropy: bool, error_norm: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(n,) scores of n tokens from the hidden states before them."""
    logits = head_logits(model, hidden)  # (n, V)
    logp, normaliser = _LogProb.apply(logits, targets)
    spread = error = None
    if entropy:
        normaliser = logits.logsumexp(-1)
        logps = logits - normaliser[:, None]
        spread = -(logps.exp() * logps).sum(-1)
    if error_norm:
        with torch.no_grad():
            probs = (logits - normaliser[:, None]).exp()
            error = 1 - 2 * logp.exp() + probs.square().sum(-1)
    return logp, spread, error


def pad(rows: Sequence[Sequence[float]], value: float, device: torch.device) -> Tensor:
    """(B, T) tensor of ragged rows of numbers, `value` to the right of the shorter ones: int64 or
    float32, as `value` is. By way of arrays: torch reads nested lists ten times as slowly."""
    code = "q" if isinstance(value, int) else "f"
    table = np.full((len(rows), max(map(len, rows))), value, code)
    for to, row in zip(table, rows, strict=True):
        to[: len(row)] = array(code, row)
    return torch.from_numpy(table).to(device)


def by_length(lengths: Sequence[int], n_buckets: int) -> list[list[int]]:
    """Indices in `n_buckets` of similar length, so that little of a padded bucket is padding."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    size = -(-len(order) // max(1, min(n_buckets, len(order))))
    return [order[i : i + size] for i in range(0, len(order), size)]


def by_tokens(lengths: Sequence[int], rows: Sequence[int], most: int) -> list[list[int]]:
    """The rows, shortest first, in parts that take at most `most` tokens when padded; a row that is
    longer is a part of its own."""
    parts: list[list[int]] = [[]]
    for row in sorted(rows, key=lambda row: lengths[row]):
        if parts[-1] and (len(parts[-1]) + 1) * lengths[row] > most:
            parts.append([])
        parts[-1].append(row)
    return parts
