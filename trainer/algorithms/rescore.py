"""Which rollouts are scored again after a step's last update.

At loss time old and new policy nearly agree; what the step did to the likelihood of a response
(Δ of arXiv 2512.04220 v2, Def. 4.1) shows only in one more forward pass. Scoring everything would
cost a tenth of a step (docs/performance.md), so a sample is taken.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch import Tensor

from ..rollout.batch import Batch

INCORRECT_SHARE = 0.25
"""Part of the re-scored rollouts that is taken from the incorrect ones."""


def mixed_groups(right: Sequence[bool], groups: Sequence[int]) -> list[list[int]]:
    """The rows of each group with both classes, groups in the order in which they come."""
    members: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    return [m for m in members.values() if 0 < sum(bool(right[i]) for i in m) < len(m)]


def rescore_sample(
    right: Sequence[bool], groups: Sequence[int], n: int, rng: random.Random
) -> list[int]:
    """Up to `n` rollouts of groups with both classes: correct ones of randomly ordered groups
    first, the last part (INCORRECT_SHARE) from the incorrect ones."""
    mixed = mixed_groups(right, groups)
    rng.shuffle(mixed)
    correct = [i for m in mixed for i in m if right[i]]
    incorrect = [i for m in mixed for i in m if not right[i]]
    rng.shuffle(incorrect)
    spare = min(len(incorrect), round(n * INCORRECT_SHARE))
    correct = correct[: n - spare]
    return correct + incorrect[: n - len(correct)]


def delta_sum(batch: Batch, among: Tensor) -> tuple[float, int]:
    """(sum, number) of Δ = Σ (log π_post − log π_old), in nats per response, over the re-scored
    rollouts in `among` (N,) bool."""
    delta = (batch.post - batch.old).sum(1).cpu()
    measured = among & batch.rescored
    return float(delta[measured].sum()), int(measured.sum())
