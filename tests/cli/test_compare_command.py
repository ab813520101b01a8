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
        reward = run.signals()["reward"].astype(float)
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


def test_onset_is_zero_where_the_fall_began(runs):
    answer = compare(runs, "onset", 10, ["reward"])
    fell, well = answer["runs"]
    assert well["onset"] is None
    at_zero = values(answer, "reward")["values"][answer["points"].index(0.0)]
    reward = runs[0].signals().set_index("step")["reward"].astype(float)
    assert at_zero[0] == pytest.approx(reward.loc[fell["onset"] - 9 : fell["onset"]].mean())
    assert at_zero[1] is None


def test_tokens_are_matched(runs):
    answer = compare(runs, "tokens", 200_000, ["reward"])
    point = answer["points"][1]
    for i, run in enumerate(runs):
        signals = run.signals()
        row = int((signals["tokens_seen"] <= point).sum()) - 1
        mean = signals["reward"].astype(float)[row - 9 : row + 1].mean()
        assert values(answer, "reward")["values"][1][i] == pytest.approx(mean)


def test_command(lldscope_command):
    both = (SAMPLES / "grpo", SAMPLES / "grpo-llds")
    answer = json.loads(lldscope_command("compare", *both, "--json").stdout)
    assert answer["schema"] == 1
    assert [r["verdict"] for r in answer["runs"]] == ["critical", "healthy"]
    table = lldscope_command("compare", *both).stdout
    assert "lld-collapse 69 +" in table
    assert "difference" in table
