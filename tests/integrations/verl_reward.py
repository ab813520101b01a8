"""The reward function of test_verl_live, in verl's form."""

from __future__ import annotations

from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    """Every second sum of letters is right."""
    right = float(sum(map(ord, solution_str)) % 2)
    return {"score": right, "acc": right}
