"""Which rollouts of a step are scored again after its last update: the sample for Δ.

Every trainer uses this rule. docs/signals.md, "The sample for Δ", has reasons and estimators.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import SupportsInt

INCORRECT_SHARE = 0.25
"""The share of re-scored rollouts that are incorrect."""


def mixed_groups(
    correct: Sequence[bool | None], groups: Sequence[SupportsInt]
) -> dict[int, list[int]]:
    """The rows of each group that has correct and incorrect responses, by group number."""
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(int(group), []).append(row)
    classes = {group: {correct[row] for row in rows} for group, rows in members.items()}
    return {group: members[group] for group in sorted(members) if {True, False} <= classes[group]}


def rescore_sample(
    correct: Sequence[bool | None], groups: Sequence[SupportsInt], share: float, step: int
) -> list[int]:
    """Rows of the rollouts to score again, ascending: of mixed groups, n = `share` · N at most.

    correct, groups: of the whole step, those of all ranks. The incorrect responses are a simple
    random sample of n · INCORRECT_SHARE; the correct ones are those of groups in random order, as
    many as are left. If one class has fewer, the other gets its room. A share of 1 takes every
    rollout, 0 none; any other takes one at least.

    `step` alone seeds the draw: the sample depends neither on the trainer, nor on the order of the
    groups, nor on how they are spread over ranks.
    """
    if share >= 1:
        return list(range(len(correct)))
    n = max(1, round(share * len(correct))) if share > 0 else 0
    rng = random.Random(f"rescore {step}")
    mixed = list(mixed_groups(correct, groups).values())
    rng.shuffle(mixed)
    right = [row for rows in mixed for row in rows if correct[row]]
    wrong = [row for rows in mixed for row in rows if correct[row] is False]
    rng.shuffle(wrong)
    right = right[: n - min(len(wrong), round(n * INCORRECT_SHARE))]
    return sorted(right + wrong[: n - len(right)])
