"""Group advantages against a plain-loop twin, and the cases an average gets wrong."""

from __future__ import annotations

import math
import random
import statistics

import pytest
import torch

from lldscope.losses.advantages import group_advantages, token_advantages


def twin(rewards: list[float], groups: list, std: bool, eps: float) -> list[float]:
    """One response at a time, with the standard library's statistics."""
    result = []
    for reward, key in zip(rewards, groups, strict=True):
        members = [r for r, k in zip(rewards, groups, strict=True) if k == key]
        if len(set(members)) == 1:
            result.append(0.0)
            continue
        advantage = reward - statistics.fmean(members)
        result.append(advantage / (statistics.stdev(members) + eps) if std else advantage)
    return result


@pytest.mark.parametrize("std", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_twin(seed: int, std: bool) -> None:
    rng = random.Random(seed)
    size = rng.randrange(1, 25)
    groups = [(rng.choice(["nq", "hotpotqa"]), rng.randrange(4)) for _ in range(size)]
    rewards = [rng.choice([0.0, 1.0, -0.5, rng.random()]) for _ in range(size)]
    actual = group_advantages(torch.tensor(rewards, dtype=torch.float64), groups, std=std)
    assert actual.tolist() == pytest.approx(twin(rewards, groups, std, 1e-6), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("reward", [0.1, -0.1])
def test_constant_group_is_exactly_zero_though_its_mean_rounds(reward: float) -> None:
    rewards = torch.tensor([reward] * 3, dtype=torch.float64)
    assert rewards.sum() / 3 != rewards[0], "the trap: the float mean of equal numbers is off"
    assert group_advantages(rewards, ["q"] * 3).tolist() == [0.0, 0.0, 0.0]
    assert group_advantages(rewards, ["q"] * 3, std=False).tolist() == [0.0, 0.0, 0.0]


def test_nan_reward_stays_in_its_group() -> None:
    actual = group_advantages(torch.tensor([math.nan, 1.0, 1.0, 0.0]), ["a", "a", "b", "b"])
    assert actual[:2].isnan().all()
    assert actual[2:].tolist() == pytest.approx([0.7071, -0.7071], abs=1e-3)


def test_empty_batch_and_untouched_arguments() -> None:
    rewards = torch.tensor([1.0, 0.0])
    assert group_advantages(rewards, ["q", "q"], std=False).tolist() == [0.5, -0.5]
    assert rewards.tolist() == [1, 0]
    assert group_advantages(torch.zeros(0), []).shape == (0,)


def test_token_advantages() -> None:
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]])
    per_row = token_advantages(torch.tensor([2.0, math.nan]), mask, torch.float64)
    assert per_row.tolist() == [[2, 0, 2], [0, 0, 0]]
    per_token = torch.tensor([[1.0, math.nan, -1.0], [math.inf, 5.0, 5.0]])
    assert token_advantages(per_token, mask, torch.float64).tolist() == [[1, 0, -1], [0, 0, 0]]
    with pytest.raises(ValueError, match=r"\(B,\) = \(2,\) or \(B, T\) = \(2, 3\), got \(3,\)"):
        token_advantages(torch.zeros(3), mask, torch.float64)
