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
from .prefixes import tree_hidden

LOGITS_BYTES = 512 * 2**20
"""Largest block of logits made at once. Softmax and its gradient need a few such blocks."""


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
    """Score every action token with `model`; with gradient if gradients are enabled.

    ids: (B, T) token ids, padded on the right.
    action_mask: (B, T), 1 where the policy emitted the token; never at position 0.
    """
    # (n,) positions of action tokens in B · T, found once: a GPU is waited for to know how many.
    where = action_mask.flatten().nonzero()[:, 0]
    back = None
    if getattr(model, "shared_prefixes", False) and len(where):
        with compute(model), _recomputing(model):
            before, targets, back = tree_hidden(model, ids, where)  # (m, H), (m,), (n,)
    else:
        before = hidden_before(model, ids, where)  # (n, H)
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
        scores = torch.cat(pieces) if back is None else torch.cat(pieces)[back]
        return zeros.index_copy(0, where, scores).view(ids.shape)

    logp, *others = map(whole, zip(*chunks, strict=True))
    assert logp is not None
    return TokenScores(logp, *others)


def hidden_before(model: Any, ids: Tensor, where: Tensor) -> Tensor:
    """(n, H): the final hidden states that predict the tokens at the positions `where` (n,) of the
    flattened rows."""
    with compute(model), _recomputing(model):
        if getattr(model, "packing", False):
            return packed_hidden(model, ids, where)
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, where - 1)


def logits_rows(model: Any) -> int:
    """How many tokens' logits fit LOGITS_BYTES."""
    return max(1, LOGITS_BYTES // (4 * model.get_output_embeddings().out_features))


def action_logps(model: Any, ids: Tensor, action_mask: Tensor) -> Tensor:
    """(B, T) log-probabilities alone: `action_scores(…).logp`."""
    return action_scores(model, ids, action_mask).logp


def sequence_logps(
    model: Any,
    ids: Sequence[Sequence[int]],
    masks: Sequence[Sequence[int]],
    micro_tokens: int,
) -> list[Tensor]:
    """For each sequence (T,) float64 log π of its action tokens, 0 elsewhere, on the CPU; in passes
    of at most `micro_tokens` (`by_tokens`)."""
    device = next(model.parameters()).device
    by_index: dict[int, Tensor] = {}
    for part in by_tokens([len(row) for row in ids], range(len(ids)), micro_tokens):
        rows, mask = [ids[i] for i in part], [masks[i] for i in part]
        logps = action_logps(model, pad(rows, 0, device), pad(mask, 0, device)).double().cpu()
        by_index |= {i: logp[: len(ids[i])] for i, logp in zip(part, logps, strict=True)}
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
    """Let layers recompute their activations if gradients are enabled and checkpointing is on.

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


def _score(
    model: Any, hidden: Tensor, targets: Tensor, entropy: bool, error_norm: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(n,) scores of n tokens from the hidden states before them."""
    logps = head_logits(model, hidden).log_softmax(-1)  # (n, V)
    logp = logps.gather(-1, targets[:, None])[:, 0]
    spread = error = None
    if entropy:
        spread = -(logps.exp() * logps).sum(-1)
    if error_norm:
        with torch.no_grad():
            error = 1 - 2 * logp.exp() + logps.exp().square().sum(-1)
    return logp, spread, error


def pad(rows: Sequence[Sequence[float]], value: float, device: torch.device) -> Tensor:
    """(B, T) tensor of ragged rows of numbers, `value` to the right of the shorter ones: int64 or
    float32, as `value` is. By way of arrays: torch reads nested lists ten times as slowly."""
    code = "q" if isinstance(value, int) else "f"
    table = np.full((len(rows), max(map(len, rows))), value, code)
    for to, row in zip(table, rows, strict=True):
        to[: len(row)] = array(code, row)
    return torch.from_numpy(table).to(device)


def by_tokens(lengths: Sequence[int], rows: Sequence[int], most: int) -> list[list[int]]:
    """The rows, shortest first, in parts that take at most `most` tokens when padded; a row that is
    longer is a part of its own. In parts of similar lengths little is padding."""
    parts: list[list[int]] = []
    for row in sorted(rows, key=lambda row: lengths[row]):
        if not parts or (len(parts[-1]) + 1) * lengths[row] > most:
            parts.append([])
        parts[-1].append(row)
    return parts
