"""Policy losses: log-probabilities of one (micro-)batch -> the scalar the optimizer minimises.

Called by the train loop after `advantages.py`; `llds.py` adds its term to the result. B rows
(responses), T columns (positions), actions marked by ones in `action_mask`; feedback and padding
may hold anything, NaN included, and reach neither a value nor a gradient.

Departures, each for a reason:
- The numerical caps on the ratio are the reference code's (of arXiv 2512.04220): GRPO's ratio at
  most 100, GSPO's log-ratio at most 10. Past the cap a token with negative advantage has a
  constant loss and no gradient; the papers print no cap. The returned `ratio` is not capped: a
  monitor must see the blow-up that the loss is protected from.
- The GSPO paper clips at 3e-4 and 4e-4 (arXiv 2507.18071 v2, §5.1); 0.2 is PPO's range and what
  the LLDS reference used. The caller chooses. That paper also averages per sequence, so
  "sequence-mean" is its aggregation, and the other two are ours to combine.
- Dr. GRPO divides by a constant only if `max_tokens` is one: pass the generation budget, not the
  longest response of the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .advantages import token_advantages

# Largest log-ratio that enters the loss, see the module docstring.
LOG_RATIO_CAP = {"grpo": math.log(100.0), "gspo": 10.0}


@dataclass(frozen=True)
class PolicyLoss:
    """`loss`: scalar, to minimise. `ratio` (B, T): importance ratio before any cap, 1 off the
    action tokens. `clipped` (B, T) bool: a clip or cap changed the token's value. `count`: what
    the aggregation divides by, a 0-dim integer tensor, 0 where there is nothing to average.
    Only `loss` carries a gradient.

    Σ loss·count / Σ count over micro-batches is the loss of the whole batch."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    count: Tensor


def policy_loss(
    logp_new: Tensor,
    logp_old: Tensor,
    action_mask: Tensor,
    advantages: Tensor,
    *,
    objective: str = "grpo",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    aggregation: str = "token-mean",
    max_tokens: int | None = None,
    weights: Tensor | None = None,
) -> PolicyLoss:
    """Clipped surrogate −min(rÂ, clip(r, 1−clip_low, 1+clip_high)Â), aggregated to a scalar.

    logp_new, logp_old, action_mask (B, T), nats; advantages (B,) or (B, T).

    objective:
    - "grpo": r = π_θ/π_old per token (arXiv 2512.04220 v2, §3; arXiv 2402.03300 v3, Eq. 3).
    - "gspo": r = sg[s_i]·π_θ/sg[π_θ], s_i = exp(mean_k(ln π_θ − ln π_old)) over the response's
      action tokens (arXiv 2507.18071 v2, Eq. 7 and 14).

    clip_high > clip_low is DAPO's clip-higher (arXiv 2503.14476 v2, §3.1). dual_clip c > 1 bounds
    the surrogate of a negative advantage from below by cÂ (arXiv 1912.09729 v3, Eq. 5).

    weights (B, T): factors of the tokens' surrogates (`importance_weights`); the aggregation's
    divisor leaves them out.

    aggregation:
    - "token-mean": Σ / number of action tokens (arXiv 2512.04220 v2, §3; arXiv 2503.14476 v2,
      §3.3).
    - "sequence-mean": mean over responses of the response's token mean (arXiv 2402.03300 v3,
      Eq. 3). A row without action tokens is padding and does not count as a response.
    - "dr-grpo": Σ / (B · max_tokens) (arXiv 2503.20783 v2, §3.2). Every row counts.

    A batch without action tokens has loss 0 and zero gradients. Raises ValueError for wrong
    shapes.
    """
    check_shapes(logp_new, logp_old=logp_old, action_mask=action_mask)
    mask = action_mask.bool()
    log_r = log_ratio(logp_new, logp_old, mask)  # (B, T)
    advantage = token_advantages(advantages, mask, log_r.dtype)
    surrogate, ratio, is_clipped = _surrogate(
        log_r, advantage, mask, objective, clip_low, clip_high, dual_clip
    )
    if weights is not None:
        check_shapes(logp_new, weights=weights)
        surrogate = surrogate * weights.detach().to(surrogate.dtype).masked_fill(~mask, 0.0)
    total, count = _aggregate(surrogate, mask, aggregation, max_tokens)
    return PolicyLoss(-(total / count.clamp(min=1)), ratio, is_clipped, count)


def importance_weights(
    logp_old: Tensor, logp_behaviour: Tensor, action_mask: Tensor, *, mode: str, cap: float
) -> Tensor:
    """The factor of each token's policy loss, if another policy sampled the rollouts than the one
    that is trained: (B, T), 0 off the action tokens, without gradient.

    An inference engine with other weights, precision or sampling settings is a `behaviour` policy
    of its own. w = π_old/π_behaviour corrects the difference; the importance ratio of the policy
    loss, π_θ/π_old, stays as it is (decoupled, arXiv 2110.00641 v3, §1). A token without a measured
    behaviour (NaN) has w = 1, as in TRL 1.16.

    logp_old, logp_behaviour, action_mask (B, T), nats. The modes are called as in TRL 1.16
    (`vllm_importance_sampling_mode`):
    - "token_truncate": min(w, cap), w = π_old/π_behaviour of the token: truncated importance
      sampling (TIS; Ionides 2008, for LLMs Yao et al., "Your efficient RL framework secretly
      brings you off-policy RL training", 2025).
    - "token_mask": w where w ≤ cap, else 0 (MIS).
    - "sequence_truncate", "sequence_mask": the same with w of the whole response, the product over
      its action tokens.
    """
    action = action_mask.bool()
    log_w = log_ratio(logp_old, logp_behaviour, action).detach().nan_to_num(nan=0.0)  # (B, T)
    level, _, kind = mode.partition("_")
    if level == "sequence":
        log_w = log_w.sum(1, keepdim=True).expand_as(log_w)
    over = log_w > math.log(cap)
    weights = log_w.masked_fill(over, math.log(cap)).exp()
    if kind == "mask":
        weights = weights.masked_fill(over, 0.0)
    return weights * action


def kl_k3(logp_new: Tensor, logp_ref: Tensor, action_mask: Tensor) -> Tensor:
    """Per-token k3 estimate of KL(π_θ ‖ π_ref): (B, T), nats, 0 off the action tokens.

    exp(r) − r − 1 with r = ln π_ref − ln π_θ: estimator k3 of Schulman, "Approximating KL
    Divergence" (joschu.net, 2020), as in arXiv 2402.03300 v3, Eq. 4. The value is at most 10, as
    in the reference code's `low_var_kl`; beyond it the gradient is 0. Carries the gradient of
    logp_new only.
    """
    check_shapes(logp_new, logp_ref=logp_ref, action_mask=action_mask)
    r = -log_ratio(logp_new, logp_ref, action_mask.bool())
    # Already far above the clamp here. Without this exp(r) overflows, and the 0 gradient of the
    # outer clamp times inf would be NaN.
    r = r.clamp(max=math.log(30))
    return (r.exp() - r - 1).clamp(max=10)


def entropy_bonus(entropy: Tensor, action_mask: Tensor) -> Tensor:
    """Token mean of the policy's entropy in nats, a scalar to *subtract* from the loss, times a
    coefficient.

    entropy, action_mask (B, T). Rewarding entropy keeps a policy gradient from narrowing early
    (arXiv 1602.01783 v2, §4, which credits Williams & Peng 1991). The authors' code of arXiv
    2512.04220 has it on at 0.001; the paper does not mention it. Divided by `action_mask.sum()`;
    0 with zero gradients where that is 0.
    """
    mask = action_mask.bool()
    return entropy.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


def log_ratio(logp_new: Tensor, logp_base: Tensor, mask: Tensor) -> Tensor:
    """ln π_θ − ln π_base (B, T), 0 where `mask` is False, in float32 or better.

    Only logp_new gets a gradient. Filling comes after the subtraction, so garbage off the mask
    gets gradient 0 and not 0·NaN.
    """
    dtype = torch.promote_types(torch.promote_types(logp_new.dtype, logp_base.dtype), torch.float32)
    return (logp_new.to(dtype) - logp_base.detach().to(dtype)).masked_fill(~mask, 0.0)


def check_shapes(logp_new: Tensor, **others: Tensor) -> None:
    """Raise ValueError unless logp_new is (B, T) and every other tensor has its shape."""
    if logp_new.ndim != 2:
        raise ValueError(f"logp_new must have shape (B, T), got {tuple(logp_new.shape)}")
    for name, tensor in others.items():
        if tensor.shape != logp_new.shape:
            raise ValueError(
                f"{name} must have the shape (B, T) = {tuple(logp_new.shape)} of logp_new, "
                f"got {tuple(tensor.shape)}"
            )


def _surrogate(
    log_r: Tensor, advantage: Tensor, mask: Tensor,
    objective: str, clip_low: float, clip_high: float, dual_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(surrogate, ratio, clipped), each (B, T)."""
    if objective == "gspo":
        log_r = _sequence_log_ratio(log_r, mask)
    r = log_r.clamp(max=LOG_RATIO_CAP[objective]).exp()  # (B, T)
    ratio = log_r.detach().exp()
    inside = r.clamp(1 - clip_low, 1 + clip_high) * advantage
    below, above = ratio < 1 - clip_low, ratio > 1 + clip_high
    surrogate = torch.minimum(r * advantage, inside)
    ceiling = math.exp(LOG_RATIO_CAP[objective])  # above it a negative advantage is cut off
    if dual_clip is not None:
        floor = torch.maximum(surrogate, dual_clip * advantage)
        surrogate = torch.where(advantage < 0, floor, surrogate)
        ceiling = min(ceiling, dual_clip)
    is_clipped = ((advantage > 0) & above) | ((advantage < 0) & (below | (ratio > ceiling)))
    return surrogate, ratio, is_clipped


def _sequence_log_ratio(log_r: Tensor, mask: Tensor) -> Tensor:
    """Value: ln s_i on each action token. Gradient: that of the token's own ln π_θ."""
    length = mask.sum(1, keepdim=True).clamp(min=1)
    log_s = log_r.detach().sum(1, keepdim=True) / length  # (B, 1)
    return (log_s + log_r - log_r.detach()).masked_fill(~mask, 0.0)


def _aggregate(
    values: Tensor, mask: Tensor, aggregation: str, max_tokens: int | None
) -> tuple[Tensor, Tensor]:
    """`values` (B, T), 0 off the mask -> sum and count, whose quotient is the loss."""
    if aggregation == "token-mean":
        return values.sum(), mask.sum()
    if aggregation == "sequence-mean":
        return (values.sum(1) / mask.sum(1).clamp(min=1)).sum(), mask.any(1).sum()
    assert max_tokens is not None
    return values.sum(), mask.new_full((), len(values) * max_tokens, dtype=torch.int64)
