"""The share of repeated n-grams, against counting them one by one."""

from __future__ import annotations

import numpy as np
import pytest

from lldscope.recording.repetition import N, repeated_share


def counted(ids: list[int], action: list[int]) -> float | None:
    grams = [
        tuple(ids[i : i + N])
        for i in range(len(action) - N + 1)
        if action[i] >= 0 and len(set(action[i : i + N])) == 1
    ]
    return 1 - len(set(grams)) / len(grams) if grams else None


def shares(ids: list[list[int]], action: list[list[int]]) -> list[float | None]:
    return repeated_share(ids, np.array(action)).tolist()


def test_every_rollout_is_counted_alone():
    rng = np.random.default_rng(0)
    for _ in range(50):
        n, width = rng.integers(1, 6), rng.integers(1, 40)
        action = (
            rng.integers(-1, 3, (n, width)) if rng.random() < 0.5 else np.zeros((n, width), int)
        )
        action = np.sort(action, axis=1)
        ids = [rng.integers(0, 3, rng.integers(0, width + 1)).tolist() for _ in range(n)]
        for i, row in enumerate(ids):
            action[i, len(row) :] = -1
        expected = [counted(row, mask) for row, mask in zip(ids, action.tolist(), strict=True)]
        actual = shares(ids, action.tolist())
        assert actual == [e if e is None else pytest.approx(e) for e in expected]
    assert shares([[7] * 9], [[0] * 9]) == [pytest.approx(5 / 6)], "of 4-grams"
