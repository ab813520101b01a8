"""The label by held-out exact match: what counts as a loss, and when a run has held."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from study.label import ERRORS, KEPT, LOST, Label, label

N = 512


def answers(*counts: int) -> np.ndarray:
    """One row per evaluation with so many right answers, the first ones."""
    return np.array([[i < k for i in range(N)] for k in counts], dtype=int)


@given(st.lists(st.lists(st.integers(0, 1), min_size=8, max_size=8), min_size=2, max_size=7))
def test_the_label_is_what_its_text_says(rows):
    """Once more, question by question."""
    steps = [10 * i for i in range(len(rows))]
    flags, steady = [], True
    for i, row in enumerate(rows):
        best = max(rows[: i + 1], key=sum)
        differences = [b - r for b, r in zip(best, row, strict=True)]
        mean = sum(differences) / len(row)
        variance = sum((x - mean) ** 2 for x in differences) / (len(row) - 1)
        share = sum(row) / sum(best) if sum(best) else 1.0
        error = math.sqrt(variance / len(row))
        flags.append(share < LOST and mean > ERRORS * error)
        steady &= share >= KEPT
    pairs = [i for i in range(len(rows) - 1) if flags[i] and flags[i + 1]]
    expected = (
        Label("degraded", steps[pairs[0]]) if pairs else Label("held" if steady else "grey", None)
    )
    assert label(steps, rows) == expected


def test_snapshots_are_averaged():
    rows = np.repeat(answers(200, 400, 290, 250), 2, axis=0)
    rows[1] = 0  # half of the first pair
    assert label(range(0, 80, 10), rows, 2) == Label("degraded", 40)
    assert label(range(0, 70, 10), rows[:7], 2) == Label("grey", None)  # the last pair is not whole
    assert label([0], rows[:1], 2) == Label("grey", None)
