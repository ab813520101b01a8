"""Advantages: rewards of one rollout batch -> one number per response, relative to its group.

Comes between the environment's rewards and the losses (`objectives.py`, `llds.py`), which share
`token_advantages`. A group holds the responses to one prompt.

Departures from the reference code of arXiv 2512.04220 (its `core_algos.py`):
- The key is (data_source, index). The reference keys by index alone; NQ and HotpotQA both number
  their rows from 0, so two questions of one batch can end up in one group.
- A group of one has nothing to be relative to and gets 0. The reference takes mean 0 and std 1
  there, which leaves the raw reward as the advantage.
- A constant group gets exactly 0 whatever the rounding of its mean. The sign matters: LLDS
  preserves a response by Â >= 0, so a mean one ulp too high would drop the whole group from it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

EPS = 1e-6
"""Added to the standard deviation, as in the reference code."""


def group_advantages(rewards: Tensor, groups: Sequence[Hashable], *, std: bool = True) -> Tensor:
    """Group-relative advantages: rewards (B,), of a floating type, and B group keys -> (B,).

    Â_i = (r_i − mean_G r) / (std_G r + EPS) with the unbiased std (arXiv 2512.04220 v2, §3; the
    form is arXiv 2402.03300 v3, §4.1.2). `std=False` leaves the division out (Dr. GRPO, arXiv
    2503.20783 v2, §3.2). A NaN reward makes its own group NaN and no other.
    """
    numbers: dict[Hashable, int] = {}
    member = torch.tensor(
        [numbers.setdefault(key, len(numbers)) for key in groups],
        dtype=torch.int64,
        device=rewards.device,
    )
    zeros = rewards.new_zeros(len(numbers))
    size = zeros.index_add(0, member, torch.ones_like(rewards))
    mean = zeros.index_add(0, member, rewards) / size
    centred = rewards - mean[member]
    lowest = zeros.scatter_reduce(0, member, rewards, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, member, rewards, "amax", include_self=False)
    constant = (lowest == highest)[member]
    if std:
        variance = zeros.index_add(0, member, centred.square()) / (size - 1).clamp(min=1)
        centred = centred / (variance.sqrt()[member] + EPS)
    return centred.masked_fill(constant, 0.0)


def token_advantages(advantages: Tensor, action_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Advantages (B,) or (B, T) as (B, T): 0 off the action tokens, without gradient.

    All tokens of a response share its advantage (arXiv 2512.04220 v2, §3). Raises ValueError for
    any other shape.
    """
    rows, columns = action_mask.shape
    if advantages.shape not in ((rows,), (rows, columns)):
        raise ValueError(
            f"advantages must have shape (B,) = ({rows},) or (B, T) = ({rows}, {columns}), "
            f"got {tuple(advantages.shape)}"
        )
    per_token = advantages.detach().to(dtype)
    if per_token.ndim == 1:
        per_token = per_token.unsqueeze(1)
    return torch.where(action_mask.bool(), per_token, torch.zeros_like(per_token))
