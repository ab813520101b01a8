"""The decay test: its basis, the rate it claims, and that it uses the past only."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

from lldscope.diagnosis import decay_test as decay
from lldscope.diagnosis import detectors as d

NAN = math.nan
ARL = 2000.0


def alarms(result: decay.DecayTest) -> np.ndarray:
    """Where the test fires."""
    return result.value >= result.threshold


def frame(delta=None, level=None) -> pd.DataFrame:
    n = len(delta if delta is not None else level)
    empty = np.full(n, NAN)
    return pd.DataFrame(
        {
            "delta_correct": empty if delta is None else delta,
            "correct_logp": empty if level is None else level,
        }
    )


def ar1(phi: float, n: int, seed: int, scale: float = 0.02) -> np.ndarray:
    """Stationary noise of the given correlation; its innovations have the given scale."""
    rng = np.random.default_rng(seed)
    noise, state = np.empty(n), rng.normal(0, scale / math.sqrt(1 - phi**2))
    for t in range(n):
        noise[t] = state = phi * state + rng.normal(0, scale)
    return noise


def dying_delta(n: int = 120, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(np.arange(n) < 60, 0.2, -0.4) + rng.normal(0, 0.3, n)


def test_with_delta_the_test_is_the_e_detector():
    delta = dying_delta()
    result = decay.test(frame(delta, np.full(120, -0.5)), ARL)
    expected = d.e_detector(d.loss_score(delta), ARL)
    np.testing.assert_array_equal(result.evidence, expected)
    assert result.basis == [None] * 10 + ["delta"] * 110
    np.testing.assert_array_equal(result.value[10:], expected[10:])
    assert (result.threshold[10:] == ARL).all()
    assert 60 <= np.flatnonzero(alarms(result))[0] < 100
    assert "at least 2,000 steps" in result.guarantee()
    assert "nothing is tested" in result.guarantee(5)


@pytest.mark.parametrize("length", [50, 200])
def test_at_most_a_twentieth_of_the_runs_of_the_planned_length_has_a_false_alarm(length):
    """On scores whose expectation is 0 at every step: the worst that the null hypothesis allows."""
    rng = np.random.default_rng(1)
    loss = rng.random((length, 4000)) < 1 / 6
    scores = np.where(loss, 5.0, -1.0)  # as skewed as they can be
    fires = d.e_detector(scores, length / decay.RUN_RATE) >= length / decay.RUN_RATE
    assert 0 < fires.any(axis=0).mean() <= decay.RUN_RATE


def test_without_delta_the_level_is_judged_by_its_own_noise():
    level = -0.5 + ar1(0.3, 160, 1, 0.01)
    level[80:] -= 0.01 * np.arange(80)
    result = decay.test(frame(level=level), ARL)
    assert result.basis == [None] * 40 + ["level"] * 120
    first = np.flatnonzero(alarms(result))[0]
    assert 80 < first < 100
    assert result.value[first] == result.level_fall[first] >= result.threshold[first]
    assert "no guarantee" in result.guarantee()
    assert "about 2,000 steps" in result.guarantee()


@pytest.mark.parametrize(("steps", "claimed"), [(40, False), (41, True)])
def test_a_level_is_tested_once_its_noise_is_known(steps, claimed):
    level = -0.5 + ar1(0.0, steps, 0) - 0.02 * np.arange(steps)  # falls from the first step on
    result = decay.test(frame(level=level), ARL)
    assert alarms(result).any() == claimed
    assert math.isnan(result.threshold[39])
    assert ("nothing is tested" in result.guarantee()) != claimed


def plain_drawdown(level) -> list[float]:
    means = [NAN if t < 4 else sum(level[t - 4 : t + 1]) / 5 for t in range(len(level))]
    return [NAN if t < 4 else max(means[4 : t + 1]) - means[t] for t in range(len(level))]


def plain_limit(level: list[float], means: list[float], t: int) -> float:
    """By the noise up to the best mean so far, BASELINE steps at least."""
    finite = [m for m in means[: t + 1] if not math.isnan(m)]
    best = max(means.index(max(finite)), decay.BASELINE - 1)
    noise = d.noise_of_means(np.array(level[: best + 1]), decay.TREND)[-1]
    pairs = (t + 1) / decay.SMOOTH + 1
    z = NormalDist().inv_cdf(1 - 1 / (ARL * pairs))
    size = abs(float(np.median(level[max(0, t - decay.BASELINE + 1) : t + 1])))
    return max(z * math.sqrt(2 * noise / decay.SMOOTH), decay.LEVEL_FLOOR * size)


def test_fall_and_limit_agree_with_a_loop():
    level = ar1(0.5, 90, 4)
    means = [NAN if t < 4 else sum(level[t - 4 : t + 1]) / 5 for t in range(90)]
    gaps = np.insert(level, [10, 30], NAN)
    result = decay.test(frame(level=gaps), ARL)
    measured = ~np.isnan(gaps)
    np.testing.assert_allclose(result.level_fall[measured], plain_drawdown(level), atol=1e-12)
    limits = result.level_limit[measured]
    assert np.isnan(limits[: decay.BASELINE]).all()
    for t in range(decay.BASELINE, 90):
        assert limits[t] == pytest.approx(plain_limit(level.tolist(), means, t)), t


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.0, 0.3, 0.6])
def test_levels_that_only_fluctuate_alarm_about_as_rarely_as_claimed(phi):
    """Run length, cut at 4·A."""
    arl, lengths = 200.0, []
    for seed in range(60):
        result = decay.test(frame(level=ar1(phi, 840, seed)), arl)
        rows = np.flatnonzero(alarms(result))
        lengths.append(rows[0] - 39 if len(rows) else 800)
    assert np.mean(lengths) >= 0.75 * arl


def test_a_level_that_rises_has_the_limit_of_its_noise():
    noise, rise = ar1(0.2, 100, 7), 0.02 * np.arange(100)
    flat, rising = (decay.test(frame(level=noise + x), ARL) for x in (0.0, rise))
    assert rising.level_limit[decay.BASELINE] <= 3 * flat.level_limit[decay.BASELINE]


def test_a_restart_resets_the_unit_and_the_baseline():
    level = -0.5 + ar1(0.2, 200, 5, 0.01)
    level[100:] -= 1.0  # the data has changed, and it is known
    undeclared, declared = (decay.test(frame(level=level), ARL, r) for r in ((), (100,)))
    assert alarms(undeclared)[101:110].any()
    assert not alarms(declared).any()
    assert declared.basis[100:140] == [None] * 40
    assert declared.basis[140:] == ["level"] * 60
    assert "nothing is tested" in declared.guarantee(100)

    delta = dying_delta(160)
    evidence = decay.test(frame(delta), ARL, [90]).evidence
    assert (evidence[90:100] == evidence[89]).all()  # not reset, and nothing added for ten steps
    assert evidence[100] != evidence[99]


def test_the_level_is_used_when_delta_is_no_longer_measured():
    delta = dying_delta(200)
    delta[50:] = NAN
    level = -0.5 + ar1(0.0, 200, 2, 0.01)
    result = decay.test(frame(delta, level), ARL)
    assert result.basis[50 + decay.STALE - 2] == "delta"
    assert result.basis[50 + decay.STALE] == "level"
    alone = decay.test(frame(delta), ARL)
    assert alone.basis[-1] == "delta"  # no level either: its last evidence stands
    sparse = dying_delta(200)
    sparse[np.arange(200) % 5 > 0] = NAN
    assert set(decay.test(frame(sparse, level), ARL).basis[100:]) == {"delta"}


def test_a_level_without_noise_and_a_constant_one():
    constant = decay.test(frame(level=np.full(80, -0.5)), ARL)
    assert not alarms(constant).any()
    assert constant.level_limit[-1] == pytest.approx(0.1)  # the floor
