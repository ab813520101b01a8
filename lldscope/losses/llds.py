"""LLDS, the likelihood-preserving regulariser: a penalty on falling log-probabilities.

Added by the train loop to the policy loss of `objectives.py`: L = L_policy + λ·L_LLDS
(arXiv 2512.04220 v2, Eq. 6). Throughout, drop = Δ = ln π_old − ln π_θ, positive where a token lost
likelihood (the monitor's Δ of Def. 4.1 has the opposite sign). The gradient of the loss with
respect to ln π_θ is −λ·w/N on gated, dropped tokens and 0 elsewhere. If π_θ is still π_old (the
first update after a rollout), every drop is 0 and so is the loss: LLDS works only from the second
update per rollout batch on.

Paper, reference code, and this module:
- Normaliser. The paper divides by N_pre, the action tokens of the preserving set; the reference
  code divides by all action tokens of its micro-batch, which scales λ by N_pre/N_all.
  `normalizer` has both. Either is a count over the tensors given: a loop with micro-batches that
  wants the mean over the whole batch weights each result by its `count`.
- Response gate. The reference code's first release (16 Jan 2026; corrected 24 Feb 2026) summed
  max(0, Δ) for the gate, so one falling token opened it. Here, as printed, the signed sum.
- Answer weight. The reference folds it into λ (min(mask weight, λ) on answer tokens), so with its
  default settings masking changes nothing. Here the weight β multiplies the penalty, as in Eq. 5.
- Adaptive answer weight. Print and code differ (0.5 against 0 at one search): `rule` has both.
- Actions are runs of ones in the action mask. The reference takes runs of (mask and Â >= 0); the
  two differ only when Â changes sign inside one action, where here the gate sums over the action's
  preserved tokens.
- `dead_band` is ours, 0 in the paper: log-probabilities of the same weights differ by rounding
  between two passes, and a strict gate at 0 can open on that noise alone.
- The gate "ungated" is ours, a control: the same tokens at the same weight without gate and hinge,
  which is plain likelihood training and tells what the gate adds to it. It acts in the first
  update, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .advantages import token_advantages
from .objectives import check_shapes, log_ratio

GATES = ("token", "response", "action", "ungated")
NORMALIZERS = ("preserved", "all")


@dataclass(frozen=True)
class LLDS:
    """The loss and what the recorder wants to know. Only `loss` carries a gradient.

    loss: scalar, coefficient included. unweighted: the loss before the coefficient.
    gate_open (B, T) bool: a preserved token behind an open gate; all tokens of an open action or
    response, also those that rose; with gate "token" the dropped tokens themselves, with "ungated"
    all.
    penalty (B, T), nats: gated penalty with answer weight, before the normaliser; where nothing is
    gated, negative on tokens that rose.
    n_preserved_tokens: N_pre. count: N, the divisor of the normaliser, 0 without such tokens;
    Σ loss·count / Σ count over micro-batches is the loss of the whole batch. Both are 0-dim integer
    tensors on the device of the arguments.
    """

    loss: Tensor
    unweighted: Tensor
    gate_open: Tensor
    penalty: Tensor
    n_preserved_tokens: Tensor
    count: Tensor


def llds_loss(
    logp_new: Tensor,
    logp_old: Tensor,
    action_mask: Tensor,
    advantages: Tensor,
    *,
    gate: str,
    coefficient: float,
    answer_mask: Tensor | None = None,
    answer_weight: float = 1.0,
    dead_band: float = 0.0,
    normalizer: str = "preserved",
) -> LLDS:
    """λ/N · Σ gate · w · max(0, drop) over the preserving set {Â >= 0} (arXiv 2512.04220 v2).

    logp_new, logp_old, action_mask, answer_mask (B, T), nats and zeros/ones; advantages (B,) or
    (B, T). Values off the action tokens may be anything, NaN included.

    gate, strict and without gradient:
    - "token": the token's own drop > dead_band (Eq. 9 where dead_band is 0);
    - "response": signed Σ of drops over the response's action tokens > dead_band (Eq. 10);
    - "action": the same over one action (Eq. 4), a maximal run of ones in action_mask;
    - "ungated": always open, and the drop itself instead of max(0, drop): the gradient is −λw/N on
      every preserved token, whatever its drop. `dead_band` has nothing to act on.
    coefficient: λ >= 0. answer_weight: w = β in [0, 1] on tokens of answer_mask, 1 elsewhere
    (Eq. 5); answer tokens count fully in the gates and in N. normalizer: N, "preserved" (N_pre)
    or "all" action tokens.

    At a tie (drop exactly 0) the gradient is 0. Without preserved tokens the loss is 0 with zero
    gradients. Raises ValueError for wrong shapes or arguments.
    """
    for name, value, choices in (("gate", gate, GATES), ("normalizer", normalizer, NORMALIZERS)):
        if value not in choices:
            allowed = ", ".join(map(repr, choices))
            raise ValueError(f"{name} must be one of {allowed}; got {value!r}")
    if not 0 <= coefficient < math.inf:
        raise ValueError(f"coefficient must be a finite number >= 0, got {coefficient}")
    if not 0 <= answer_weight <= 1:
        raise ValueError(f"answer_weight must be in [0, 1], got {answer_weight}")
    if answer_weight != 1 and answer_mask is None:
        raise ValueError("answer_weight other than 1 needs an answer_mask to act on")
    if not 0 <= dead_band < math.inf:
        raise ValueError(f"dead_band must be a finite number >= 0, got {dead_band}")
    check_shapes(logp_new, logp_old=logp_old, action_mask=action_mask)
    mask = action_mask.bool()  # (B, T), as all below
    preserved = mask & (token_advantages(advantages, mask, torch.float32) >= 0)
    drop = -log_ratio(logp_new, logp_old, preserved)
    gate_open = preserved & (_gate_sum(drop.detach(), mask, gate) > dead_band)
    # relu has derivative 0 at 0, the tie.
    penalty = (drop if gate == "ungated" else torch.relu(drop)) * gate_open
    if answer_mask is not None:
        check_shapes(logp_new, answer_mask=answer_mask)
        penalty = torch.where(answer_mask.bool(), answer_weight * penalty, penalty)
    n_preserved = preserved.sum()
    count = n_preserved if normalizer == "preserved" else mask.sum()
    unweighted = penalty.sum() / count.clamp(min=1)
    return LLDS(
        loss=coefficient * unweighted,
        unweighted=unweighted.detach(),
        gate_open=gate_open,
        penalty=penalty.detach(),
        n_preserved_tokens=n_preserved,
        count=count,
    )


def action_ids(action_mask: Tensor) -> Tensor:
    """Action number of each token: (B, T) int64, 0, 1, … within a row, −1 off the actions.

    An action is everything the model emits in one turn (arXiv 2512.04220 v2, §3): a maximal run
    of ones. Feedback, being zeros, separates actions; two turns without a feedback token between
    them are one action.
    """
    mask = action_mask.bool()
    before = mask.new_zeros((len(mask), 1))
    starts = mask & ~torch.cat([before, mask], dim=1)[:, :-1]  # (B, T): first tokens
    return (starts.cumsum(dim=1) - 1).masked_fill(~mask, -1)


def adaptive_answer_weight(valid_searches_mean: float, *, rule: str = "paper") -> float:
    """β for this step from V, the mean number of valid searches per rollout.

    "paper": min(V/V_B, 1) with V_B = 2 (arXiv 2512.04220 v2, schedule beside Eq. 5).
    "reference": clip(V − 1, 0, 1), the authors' code.
    """
    if rule == "paper":
        return min(valid_searches_mean / 2, 1.0)
    return min(max(valid_searches_mean - 1.0, 0.0), 1.0)


def _gate_sum(drop: Tensor, mask: Tensor, gate: str) -> Tensor:
    """The signed sum of drops that opens the gate of each token, (B, T) or (B, 1)."""
    if gate == "ungated":
        return torch.full_like(drop, math.inf)
    if gate == "token":
        return drop
    if gate == "response":
        return drop.sum(dim=1, keepdim=True)
    # Off the actions drop is 0, so filing those positions under action 0 adds nothing to it.
    index = action_ids(mask).clamp(min=0)  # (B, T)
    return torch.zeros_like(drop).scatter_add(1, index, drop).gather(1, index)
