"""Advantages: rewards of one rollout batch -> one number per response, relative to its group.

Comes between the environment's rewards and the losses (`objectives.py`, `llds.py`), which share
`token_advantages`. A group holds the responses to one prompt.

Departures from the reference code of arXiv 2512.04220 (its `core_algos.py`):
- The key is (data_source, index). The reference keys by index alone; NQ and HotpotQA both number
  their rows from 0, so two questions of one batch can end up in one group. `check_groups` refuses
  such a batch instead of averaging over it.
- A group of one has nothing to be relative to and gets 0. The reference takes mean 0 and std 1
  there, which leaves the raw reward as the advantage.
- A constant group gets exactly 0 whatever the rounding of its mean. The sign matters: LLDS
  preserves a response by Â >= 0, so a mean one ulp too high would drop the whole group from it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ..core.errors import UsageError


def group_advantages(
    rewards: Tensor, groups: Sequence[Hashable], *, std: bool = True, eps: float = 1e-6
) -> Tensor:
    """Group-relative advantages: rewards (B,) and B group keys -> (B,).

    Â_i = (r_i − mean_G r) / (std_G r + eps) with the unbiased std (arXiv 2512.04220 v2, §3; the
    form is arXiv 2402.03300 v3, §4.1.2; eps is the reference code's). `std=False` leaves the
    division out (Dr. GRPO, arXiv 2503.20783 v2, §3.2). A NaN reward makes its own group NaN and no
    other. Raises ValueError for a wrong shape, a wrong number of keys or a negative eps.
    """
    if rewards.ndim != 1 or len(rewards) != len(groups):
        raise ValueError(
            f"rewards must have shape (B,) with one group key each; got shape "
            f"{tuple(rewards.shape)} and {len(groups)} keys"
        )
    if not eps >= 0:
        raise ValueError(f"eps must be >= 0, got {eps}")
    if not rewards.is_floating_point():
        rewards = rewards.to(torch.get_default_dtype())
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
        centred = centred / (variance.sqrt()[member] + eps)
    return centred.masked_fill(constant, 0.0)


def positive_part(advantages: Tensor) -> Tensor:
    """Advantages with 0 in place of the negative ones: the policy loss then only raises responses
    (the control Pos-Only of arXiv 2505.18830). NaN stays. Not for LLDS, which preserves responses
    by the true sign: to it every incorrect response would look preserved."""
    return advantages.clamp(min=0)


def check_groups(groups: Sequence[Hashable], prompts: Sequence[object]) -> None:
    """Raise UsageError, naming the key, if one group key stands for two different prompts.

    Prompts are compared with `==`: strings, or lists or tuples of token ids. Raises ValueError
    unless there is one key per prompt.
    """
    if len(groups) != len(prompts):
        raise ValueError(f"need one group key per prompt; got {len(groups)} and {len(prompts)}")
    first: dict[Hashable, object] = {}
    for key, prompt in zip(groups, prompts, strict=True):
        if first.setdefault(key, prompt) != prompt:
            raise UsageError(
                f"group {key!r} holds two different prompts, {_short(first[key])} and "
                f"{_short(prompt)}, whose rewards must not be averaged: give every question of a "
                "data source an index of its own"
            )


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


def _short(prompt: object, limit: int = 60) -> str:
    text = repr(prompt)
    return text if len(text) <= limit else text[:limit] + "…"
