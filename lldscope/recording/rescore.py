"""Which rollouts of a step are scored again after its last update: the sample for Δ.

The one rule for every trainer. Reasons and estimators: docs/signals.md, "The sample for Δ".
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import SupportsInt


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
    """Rows of the rollouts to score again, ascending.

    correct, groups: of the whole step, those of all ranks. Mixed groups are drawn at random without
    replacement, whole, as long as they fit into `share` · N rollouts; one is drawn in any case. A
    share of 1 takes every rollout, 0 none.

    `step` alone seeds the draw: the sample depends neither on the trainer, nor on the order of the
    rows, nor on how the groups lie on ranks.
    """
    if share >= 1:
        return list(range(len(correct)))
    mixed = mixed_groups(correct, groups)
    order = list(mixed)
    random.Random(f"rescore {step}").shuffle(order)
    room = share * len(correct)
    chosen: list[int] = []
    for group in order if share > 0 else ():
        if chosen and len(chosen) + len(mixed[group]) > room:
            break
        chosen += mixed[group]
    return sorted(chosen)
