"""Which rollouts are scored again after a step's last update, where not all are.

Δ needs one more forward pass (Def. 4.1 of arXiv 2512.04220 v2), and the alarms look at groups with
correct and incorrect responses: those come first, whole, in random order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence


def rescored(
    correct: Sequence[bool | None], groups: Sequence[Hashable], share: float, rng: random.Random
) -> list[int]:
    """Rows of ⌈share · N⌉ rollouts, always as many, so that all ranks make as many passes."""
    n = math.ceil(share * len(correct))
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    shuffled = list(members.values())
    rng.shuffle(shuffled)
    order = sorted(shuffled, key=lambda m: not _mixed([correct[i] for i in m]))  # stable
    return sorted([i for m in order for i in m][:n])


def _mixed(correct: Sequence[bool | None]) -> bool:
    return True in correct and False in correct
