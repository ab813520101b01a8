"""Detectors: plain twins, causality, and the false-alarm promise of the decay test."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lldscope import detectors as d

NAN = math.nan


def series(seed: int, n: int = 60, missing: float = 0.2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < missing, NAN, rng.normal(0.3, 1.0, n))


def known(values) -> list[float]:
    return [v for v in values if not math.isnan(v)]


@pytest.mark.parametrize("seed", range(4))
def test_trailing_statistics_agree_with_loops(seed):
    x = series(seed)
    mean = d.trailing_mean(x, 10, 4)
    t_value = d.trailing_t(x, 10, 4)
    step_up = d.rise(x, 10)
    ratio = d.over_median(np.abs(x), 3, 5, 20, 6)
    for t in range(len(x)):
        window = known(x[max(0, t - 9) : t + 1])
        if len(window) < 4:
            assert math.isnan(mean[t])
            assert t_value[t] == 0
        else:
            assert mean[t] == pytest.approx(sum(window) / len(window))
            error = np.std(window, ddof=1) / math.sqrt(len(window))
            assert t_value[t] == pytest.approx(np.mean(window) / error, rel=1e-6)
        before, after = known(x[max(0, t - 19) : max(0, t - 9)]), known(x[max(0, t - 9) : t + 1])
        if min(len(before), len(after)) < 5:
            assert step_up[t] == 0
        else:
            pooled = (
                sum((v - np.mean(before)) ** 2 for v in before)
                + sum((v - np.mean(after)) ** 2 for v in after)
            ) / (len(before) + len(after) - 2)
            error = math.sqrt(pooled * (1 / len(before) + 1 / len(after)))
            expected = (np.mean(after) - np.mean(before)) / error
            assert step_up[t] == pytest.approx(expected, rel=1e-6)
        older = known(np.abs(x)[max(0, t - 24) : max(0, t - 4)])
        if len(older) < 6:
            assert math.isnan(ratio[t])
        elif recent := known(np.abs(x)[max(0, t - 2) : t + 1]):
            assert ratio[t] == pytest.approx(np.mean(recent) / np.median(older))


def test_consecutive_counts_runs_of_true():
    flags = np.array([1, 1, 0, 1, 1, 1, 0], dtype=bool)
    assert d.consecutive(flags).tolist() == [1, 2, 0, 1, 2, 3, 0]
    assert d.consecutive(np.zeros(0, dtype=bool)).tolist() == []


def test_the_decay_score_feels_magnitude_and_is_bounded():
    # tanh(0.5 / 0.5) = 0.7616: ½ − 0.3808 = 0.1192
    assert d.decay_score(np.array([0.5]))[0] == pytest.approx(0.11920, abs=1e-5)
    scores = d.decay_score(np.array([-1e9, -2.0, -0.1, 0.0, 0.1, 1e9]))
    assert (np.diff(scores) <= 0).all()
    assert scores[0] == 1.0
    assert scores[3] == 0.5
    assert scores[-1] == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_the_e_detector_agrees_with_a_loop(seed):
    scores = np.clip(series(seed, 80) / 4 + 0.5, 0, 1)
    m = dict.fromkeys(d.MIXTURE, 0.0)
    for t, value in enumerate(d.e_detector(scores, arl=1e12)):
        if not math.isnan(scores[t]):
            for bet in m:
                m[bet] = (m[bet] + 1) * (1 + bet * (2 * scores[t] - 1))
        assert value == pytest.approx(sum(m.values()) / len(m))


def run_length(draw, arl: float, horizon: int) -> int:
    hits = np.flatnonzero(d.e_detector(draw(horizon), arl) >= arl)
    return int(hits[0]) + 1 if len(hits) else horizon


@pytest.mark.parametrize(
    "null",
    ["fair coin", "all exactly a half", "heavy tails", "few correct responses", "shared shock"],
)
def test_false_alarms_are_no_more_frequent_than_promised(null):
    """Under E[score | past] ≤ ½ the mean run length is ≥ A; cut at 4·A, so a low estimate."""
    arl, horizon = 60.0, 240
    rng = np.random.default_rng(11)

    def draw(n: int) -> np.ndarray:
        if null == "fair coin":
            return rng.integers(0, 2, n).astype(float)
        if null == "all exactly a half":
            return np.full(n, 0.5)
        if null == "heavy tails":
            return d.decay_score(rng.standard_t(1.5, n))
        if null == "few correct responses":
            delta = np.array([rng.normal(0, 3, k).mean() if k else NAN
                              for k in rng.integers(0, 3, n)])  # fmt: skip
            return d.decay_score(delta)
        return d.decay_score(rng.normal(0, 1, (n, 1)) + rng.normal(0, 0.1, (n, 1)))[:, 0]

    lengths = [run_length(draw, arl, horizon) for _ in range(400)]
    error = np.std(lengths) / math.sqrt(len(lengths))
    assert np.mean(lengths) + 3 * error >= arl


def test_a_real_decay_is_found_soon():
    rng = np.random.default_rng(5)
    healthy, dying = rng.normal(0.15, 0.3, 60), rng.normal(-0.5, 0.5, 40)
    evidence = d.e_detector(d.decay_score(np.concatenate([healthy, dying])), 2000)
    fired = np.flatnonzero(evidence >= 2000)
    assert len(fired)
    assert 60 <= fired[0] < 85


def test_evidence_resolves_after_a_decay_that_ended():
    scores = np.concatenate([np.full(200, 0.9), np.full(60, 0.2)])
    evidence = d.e_detector(scores, 2000)
    assert evidence[199] >= 2000
    assert evidence[-1] < 2000


def test_a_step_without_measurement_changes_nothing():
    scores = np.array([0.8, NAN, 0.8])
    with_gap, without = d.e_detector(scores, 50), d.e_detector(scores[[0, 2]], 50)
    assert with_gap[1] == with_gap[0]
    assert with_gap[2] == without[1]


def test_noise_of_the_level_is_frozen_after_the_baseline():
    rng = np.random.default_rng(0)
    calm, wild = rng.normal(0, 0.1, 40), rng.normal(0, 5.0, 40)
    noise = d.spread(np.concatenate([calm, wild]), 40, 10)
    assert noise[39] == noise[-1] == pytest.approx(0.1, rel=0.35)
    assert np.isnan(noise[8])
