"""Runs side by side: matched points against plain lookups, and from where on one differs from
another, on runs of the study with a fault and on made-up noise."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import lldscope
from lldscope.evaluation.bank import rows_of_run
from lldscope.explore.comparison import compare, divergences
from lldscope.explore.settings import differing, flat

SAMPLES = Path(__file__).parents[2] / "sample_runs"
BANK = SAMPLES / "bank"
PLAIN = ("reward", "entropy", "response_tokens", "tool_fail_share", "lr", "advantage_offset",
         "n_nonfinite", "merged_action_share", "truncated_share", "engine_gap",
         "action_logp_min", "invalid_share", "grad_norm", "kl")
INJECTED = 30  # the step from which on the faults of the bank are there


@pytest.mark.slow
def test_runs_of_one_seed_part_where_they_went_another_way() -> None:
    """Runs of a seed are alike, to rounding, until a fault changes one; on different processors
    rounding parts some of them sooner, from the first step on or at step 24."""
    lines = map(json.loads, (BANK / "index.jsonl").read_text("utf-8").splitlines())
    faulty = [line for line in lines if line.get("fault")]
    assert {line["settings"]["fault_at"] for line in faulty} == {INJECTED}
    near: list[bool] = []
    for seed in {line["seed"] for line in faulty}:
        runs = [line["run"] for line in faulty if line["seed"] == seed]
        tables = [rows_of_run(BANK / "signals.parquet", run) for run in runs]
        for a, b in itertools.permutations(tables, 2):
            truth = unequal_from(a, b)
            if truth >= 20:
                first = divergences(a, b)[0]
                near.append(first.step is not None and abs(first.step - truth) <= 3)
    assert len(near) == 120
    assert sum(near) >= 110


def unequal_from(a: pd.DataFrame, b: pd.DataFrame) -> int:
    """The first step at which a signal is not the same to one part in 10,000."""
    both = a.merge(b, on="step", suffixes=("", "_b"))
    steps = []
    for name in PLAIN:
        x, y = both[name].astype(float), both[f"{name}_b"].astype(float)
        same = np.isclose(x, y, rtol=1e-4, atol=1e-6, equal_nan=True)
        if not same.all():
            steps.append(int(both["step"][int(np.argmin(same))]))
    return min(steps)


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


# -- matched points --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs():
    with lldscope.open_run(SAMPLES / "grpo") as a, lldscope.open_run(SAMPLES / "grpo-llds") as b:
        yield a, b


def values(answer, name):
    return next(s for s in answer["signals"] if s["signal"] == name)


def test_landmarks_are_means_over_ten_steps(runs):
    answer = compare(runs)
    start, best, end = values(answer, "reward")["values"]
    for i, run in enumerate(runs):
        reward = run.signals()["reward"].dropna().astype(float)
        assert start[i] == pytest.approx(reward[:10].mean())
        assert end[i] == pytest.approx(reward[-10:].mean())
        assert best[i] == pytest.approx(reward.rolling(10).mean().max())


def test_steps_are_matched_and_differences_are_to_the_first(runs):
    answer = compare(runs, every=50, signals=["entropy"])
    assert answer["points"] == [0.0, 50.0, 100.0]
    of = values(answer, "entropy")
    for i, run in enumerate(runs):
        entropy = run.signals().set_index("step")["entropy"].astype(float)
        assert of["values"][1][i] == pytest.approx(entropy.loc[41:50].mean())
    assert of["differences"][1] == [0.0, pytest.approx(of["values"][1][1] - of["values"][1][0])]


def test_the_table_has_alarms_and_differences(lldscope_command) -> None:
    table = lldscope_command("compare", SAMPLES / "grpo", SAMPLES / "grpo-llds").stdout
    assert "lld-collapse 69 +" in table
    assert "difference" in table
