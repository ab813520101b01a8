"""The sample of rollouts that Δ is measured on."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lldscope.recording.rescore import mixed_groups, rescore_sample

N, SIZE = 128, 8


def made_up(seed: int) -> tuple[list[bool | None], list[int], np.ndarray]:
    """Correctness, groups and a Δ of 128 rollouts; Δ differs by class and by group."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(N // SIZE), SIZE)
    correct = rng.random(N) < np.repeat(rng.random(N // SIZE), SIZE)
    delta = np.where(correct, 0.1, -1.0) + rng.normal(0, 0.2, N // SIZE)[groups]
    return [bool(c) for c in correct], groups.tolist(), delta + rng.normal(0, 0.3, N)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.6, 0.99])
def test_the_sample_is_of_mixed_groups_and_within_its_budget(share):
    for seed in range(20):
        correct, groups, _ = made_up(seed)
        sample = rescore_sample(correct, groups, share, seed)
        mixed = {row for rows in mixed_groups(correct, groups).values() for row in rows}
        assert set(sample) <= mixed
        assert len(sample) == len(set(sample)) == min(len(mixed), max(1, round(share * N)))
        wrong = sum(not correct[row] for row in sample)
        assert wrong >= min(round(len(sample) / 4), sum(not correct[row] for row in mixed))


def test_correct_responses_come_by_whole_groups():
    correct, groups, _ = made_up(1)
    sample = [r for r in rescore_sample(correct, groups, 0.25, 0) if correct[r]]
    of_group = {g: [r for r in rows if correct[r]] for g, rows in
                mixed_groups(correct, groups).items()}
    cut = [g for g in {groups[r] for r in sample} if not set(of_group[g]) <= set(sample)]
    assert len(cut) <= 1
    assert len({groups[r] for r in sample}) > 3


def test_both_means_estimate_those_of_all_mixed_groups():
    """Over many draws the sample's mean Δ of either class is that of the population."""
    correct, groups, delta = made_up(2)
    mixed = [row for rows in mixed_groups(correct, groups).values() for row in rows]
    means: dict[bool, list[float]] = {True: [], False: []}
    for step in range(2000):
        sample = rescore_sample(correct, groups, 0.25, step)
        for verdict, values in means.items():
            values.append(np.mean([delta[row] for row in sample if correct[row] is verdict]))
    for verdict, values in means.items():
        truth = np.mean([delta[row] for row in mixed if correct[row] is verdict])
        assert np.mean(values) == pytest.approx(truth, abs=0.02)
        assert 0.02 < np.std(values) < 0.15


def test_the_step_alone_decides_and_not_the_order_of_the_rows():
    correct, groups, _ = made_up(3)
    sample = rescore_sample(correct, groups, 0.25, 7)
    assert sample == rescore_sample(correct, np.array(groups), 0.25, 7)
    assert sample != rescore_sample(correct, groups, 0.25, 8)
    by_rank = sorted(range(N), key=lambda row: (groups[row] % 4, row))  # groups dealt to 4 ranks
    again = rescore_sample([correct[r] for r in by_rank], [groups[r] for r in by_rank], 0.25, 7)
    assert sorted(by_rank[row] for row in again) == sample
    random.seed(0)
    before = random.getstate()
    rescore_sample(correct, groups, 0.25, 7)
    assert random.getstate() == before, "the training's random numbers are not touched"
