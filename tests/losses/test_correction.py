"""Corrections for another sampling policy against plain-loop twins, and worked examples."""

from __future__ import annotations

import math
import random

import pytest
import torch
from test_objectives import random_rows, tensors

from lldscope.losses.objectives import importance_weights, policy_loss

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def twin(row: list[float | None], mode: str, cap: float) -> list[float]:
    """Weights of one response, given ln π_old − ln π_behaviour of each token; None off the
    actions, NaN where behaviour was not measured."""
    facts = [0.0 if x is not None and math.isnan(x) else x for x in row]
    whole = math.exp(sum(x for x in facts if x is not None))
    weights = []
    for x in facts:
        w = 0.0 if x is None else whole if mode.startswith("sequence") else math.exp(x)
        if w > cap:
            w = cap if mode.endswith("truncate") else 0.0
        weights.append(w)
    return weights


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cap", [0.8, 2.0, 10.0])
def test_weights_are_those_of_the_twin(mode: str, cap: float) -> None:
    capped = 0
    for seed in range(40):
        rng = random.Random(seed)
        rows = random_rows(rng)
        for row in rows:
            if row and row[0] is not None and rng.random() < 0.2:
                row[0] = math.nan
        old, behaviour, mask = tensors(rows, seed)
        actual = importance_weights(old, behaviour, mask, mode=mode, cap=cap)
        assert not actual.requires_grad
        for i, row in enumerate(rows):
            target = twin(row, mode, cap)
            assert actual[i, : len(row)].tolist() == pytest.approx(target, rel=1e-9)
            assert not actual[i, len(row) :].any()
            capped += sum(
                w in (0.0, cap) for x, w in zip(row, target, strict=True) if x is not None
            )
    assert capped > 3


def test_weights_multiply_values_and_gradients_and_not_the_count() -> None:
    rows = [[0.1, -0.3], [0.6]]
    weights = torch.tensor([[0.5, 0.0], [2.0, math.nan]], dtype=torch.float64)
    advantages = torch.tensor([1.0, -2.0])
    for aggregation in ("token-mean", "sequence-mean", "dr-grpo"):
        parts = []
        for arguments in (None, weights):
            new, old, mask = tensors(rows)
            loss = policy_loss(
                new, old, mask, advantages, aggregation=aggregation, max_tokens=4, weights=arguments
            )
            loss.loss.backward()
            parts.append((loss, new.grad))
        (plain, slope), (weighed, slope_weighed) = parts
        assert weighed.count == plain.count
        target = slope * weights.nan_to_num() * mask
        assert torch.allclose(slope_weighed, target)
        # r·Â·w by hand; the third token's ratio e^0.6 is above 1.2, which for Â < 0 clips nothing
        terms = [math.exp(0.1) * 0.5, 0.0, -2 * math.exp(0.6) * 2]
        by_hand = {
            "token-mean": sum(terms) / 3,
            "sequence-mean": ((terms[0] + terms[1]) / 2 + terms[2]) / 2,
            "dr-grpo": sum(terms) / 8,
        }
        assert weighed.loss.item() == pytest.approx(-by_hand[aggregation])
