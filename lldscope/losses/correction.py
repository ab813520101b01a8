"""Corrections for rollouts that another policy sampled than the one that is trained.

An inference engine with other weights, precision or sampling settings is a `behaviour` policy of
its own. w = π_old/π_behaviour, per token or per response, makes up for it; the importance ratio of
the policy loss, π_θ/π_old, stays as it is (decoupled, arXiv 2110.00641 v3, §1).

Departure: where behaviour was not measured (NaN) a token counts as one that both policies agree on,
w = 1, as in TRL 1.16.
"""

from __future__ import annotations

import math

from torch import Tensor

from .objectives import log_ratio

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def importance_weights(
    logp_old: Tensor, logp_behaviour: Tensor, action_mask: Tensor, *, mode: str, cap: float
) -> Tensor:
    """What the policy loss of each token is multiplied by: (B, T), 0 off the action tokens, without
    gradient.

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
    log_w = log_ratio(logp_old, logp_behaviour, action).detach().nan_to_num(nan=0.0)
    level, _, kind = mode.partition("_")
    if level == "sequence":
        log_w = log_w.sum(1, keepdim=True).expand_as(log_w)
    over = log_w > math.log(cap)
    weights = log_w.masked_fill(over, math.log(cap)).exp()
    if kind == "mask":
        weights = weights.masked_fill(over, 0.0)
    return weights * action
