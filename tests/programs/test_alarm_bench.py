"""The comparison of scores for the decay alarm: what it compares, and on which runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import alarms, candidates, rivals
from lldscope.diagnosis import detectors as d

SAMPLES = Path(__file__).parents[2] / "sample_runs"


@pytest.mark.parametrize("seed", range(3))
def test_cusum_never_fires_before_shiryaev_roberts(seed):
    scores = np.clip(np.random.default_rng(seed).normal(0.1, 1, 400), -1, 5)
    first = [np.flatnonzero(f(scores, 200.0)) for f in (rivals.mixture, rivals.cusum)]
    assert len(first[0])
    assert not len(first[1]) or first[0][0] <= first[1][0]


def test_adaptive_bets_use_the_past_only():
    scores = np.clip(np.random.default_rng(1).normal(0.3, 1, 120), -1, 5)
    complete = rivals.adaptive(scores, 200.0)
    assert complete.any()
    for cut in (3, 40, 119):
        np.testing.assert_array_equal(rivals.adaptive(scores[:cut], 200.0), complete[:cut])


def test_an_alarm_begins_again_only_after_20_quiet_steps():
    fires = np.zeros(100, dtype=bool)
    fires[[5, 6, 20, 60, 90]] = True
    assert candidates.starts(fires, np.arange(100) + 1000) == [1005, 1060, 1090]


def test_candidates_are_compared_on_development_runs(tmp_path, capsys):
    lines = [
        {"run": "a", "outcome": "collapsed", "collapse_step": 100, "path": "grpo"},
        {"run": "b", "outcome": "held", "path": "grpo-llds"},
        {"run": "c", "outcome": "held", "split": "test", "path": "missing"},
    ]
    for line in lines:
        line["path"] = str(SAMPLES / line["path"])
    (tmp_path / "index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    candidates.compare(tmp_path)
    out = capsys.readouterr().out
    assert "2 runs" in out  # the test run is not opened
    names = [name for name, _ in candidates.alarms()]
    assert all(f"\n{name}" in out for name in names)
    used = next(line for line in out.splitlines() if line.startswith("used"))
    assert "1 of 1" in used
    candidates.compare(tmp_path / "nothing")
    assert "no runs yet" in capsys.readouterr().out


def test_simulated_rates_are_printed_for_every_kind_of_noise(capsys):
    alarms.false_alarms(10.0, 3)
    out = capsys.readouterr().out
    assert all(f"\n| {name} |" in out for name in alarms.NOISE)


def test_a_first_alarm_that_never_comes_is_the_length_of_the_series():
    delta = np.stack([np.full(40, 0.3), np.r_[np.full(20, 0.3), np.full(20, -3.0)]], axis=1)
    steps, mean, fired = alarms.first_alarms(delta, 50.0)
    assert steps[0] == 40
    assert fired.tolist() == [False, True]
    assert 20 < steps[1] < 30
    assert mean == pytest.approx(np.nanmean([d.loss_score(c) for c in delta.T]))
