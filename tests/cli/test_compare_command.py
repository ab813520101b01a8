"""`lldscope compare`: matched points against plain lookups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lldscope
from lldscope.explore.comparison import compare

SAMPLES = Path(__file__).parents[2] / "sample_runs"


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


def test_command(lldscope_command):
    both = (SAMPLES / "grpo", SAMPLES / "grpo-llds")
    answer = json.loads(lldscope_command("compare", *both, "--json").stdout)
    assert answer["schema"] == 1
    assert [r["verdict"] for r in answer["runs"]] == ["critical", "healthy"]
    table = lldscope_command("compare", *both).stdout
    assert "lld-collapse 69 +" in table
    assert "difference" in table
