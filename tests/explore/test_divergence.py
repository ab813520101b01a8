"""From where on one run differs from another: runs of the study with a fault, and made-up noise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lldscope.explore.comparison import divergences
from lldscope.explore.settings import differing, flat


def course(rng: np.random.Generator, noise: float, steps: int = 200) -> pd.DataFrame:
    at = np.arange(steps)
    columns = {"reward": 0.5 + at / 800, "entropy": 1.0 - at / 400, "grad_norm": 0.5 + 0 * at}
    return pd.DataFrame(
        {"step": at} | {k: v + rng.normal(0, noise, steps) for k, v in columns.items()}
    )


def test_noise_alone_hardly_ever_parts_two_runs() -> None:
    rng = np.random.default_rng(0)
    parted = [
        one.step is not None
        for _ in range(60)
        for one in divergences(course(rng, 0.05), course(rng, 0.05))
    ]
    assert len(parted) == 180
    assert np.mean(parted) <= 0.04


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_shift_of_six_standard_deviations_is_found_within_three_steps(sign: int) -> None:
    rng = np.random.default_rng(1)
    hits = []
    for step in range(20, 180, 4):
        a, b = course(rng, 0.05), course(rng, 0.05)
        b.loc[b["step"] >= step, "entropy"] += sign * 6 * 0.05
        one = next(x for x in divergences(a, b) if x.signal == "entropy")
        hits.append(one.step is not None and abs(one.step - step) <= 3)
    assert np.mean(hits) >= 0.9


def test_a_run_does_not_part_from_itself_and_what_lacks_is_left_out() -> None:
    a = course(np.random.default_rng(2), 0.05)
    assert all(one.step is None and one.differs is None for one in divergences(a, a))
    short = a[a["step"] < 5]
    assert divergences(a, short) == []
    lr = a.assign(lr=1e-6)
    other = lr.assign(lr=np.where(lr["step"] < 90, 1e-6, 2e-6))
    (one, *_) = divergences(lr, other)
    assert (one.signal, one.step, one.differs) == ("lr", 90, 90)
    slow = other.assign(seconds_evaluation=9.0, seconds_sync=9.0, tokens_per_second=1.0)
    assert divergences(slow.assign(seconds_sync=1.0, tokens_per_second=9.0), slow) == (
        divergences(other, other)
    ), "what a step costs is no difference of the training"


def test_settings_that_differ_are_named_with_dots() -> None:
    a, b = flat({"lr": 1, "m": {"n": [1, 2]}, "same": None}), flat({"lr": 2, "same": None})
    assert differing([a, b]) == [("lr", ["1", "2"]), ("m.n", ["[1, 2]", "not recorded"])]
    assert flat("no configuration") == {}
