"""The label by held-out exact match: what counts as a loss, and when a run has held."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.label import ERRORS, KEPT, LOST, Label, label

N = 512


def answers(*counts: int) -> np.ndarray:
    """One row per evaluation with so many right answers, the first ones."""
    return np.array([[i < k for i in range(N)] for k in counts], dtype=int)


STEPS = [0, 10, 20, 30, 40]


def test_two_losses_in_a_row_degrade_a_run_from_the_first_on():
    assert label(STEPS, answers(200, 400, 290, 250, 380)) == Label("degraded", 20)


def test_one_loss_alone_is_grey():
    assert label(STEPS, answers(200, 400, 290, 390, 290)) == Label("grey", None)


def test_a_run_that_stays_near_its_best_has_held():
    assert label(STEPS, answers(200, 300, 400, 341, 345)) == Label("held", None)
    assert label(STEPS, answers(200, 300, 400, 339, 345)) == Label("grey", None)  # under 85 %


def test_a_rise_is_no_loss_and_nothing_right_is_no_loss():
    assert label(STEPS, answers(10, 50, 100, 200, 300)).verdict == "held"
    assert label(STEPS, answers(0, 0, 0, 0, 0)).verdict == "held"


def test_a_loss_within_its_error_does_not_degrade():
    few = answers(6, 8, 4, 4, 4)  # half of the best, but 4 of 512 questions: two errors
    assert label(STEPS, few) == Label("grey", None)


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lengths", [(4, 8), (8, 12)])
def test_letters_are_sorted_by_the_teacher_half_of_the_time(lengths, seed):
    import random

    from study.letters import FAULT_SHARE, demonstration, question

    rng = random.Random(seed)
    right = 0
    for _ in range(400):
        text, letters = question(rng, lengths)
        assert sorted(letters) == letters
        assert lengths[0] <= len(letters) <= lengths[1]
        assert all(letter in text for letter in letters)
        right += f"<answer> {' '.join(letters)}</answer>" in demonstration(letters, rng)
    assert right / 400 == pytest.approx(1 - FAULT_SHARE, abs=0.1)
