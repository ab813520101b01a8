"""Detectors: agreement with plain loops, and the false-alarm guarantee of the decay test."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest

from lldscope.diagnosis import detectors as d

NAN = math.nan


def test_the_example_detects_the_decay_at_the_step_it_prints():
    results = doctest.testmod(d)
    assert results.attempted > 0
    assert results.failed == 0


def series(seed: int, n: int = 60, missing: float = 0.2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < missing, NAN, rng.normal(0.3, 1.0, n))


def finite(values) -> list[float]:
    return [v for v in values if not math.isnan(v)]


@pytest.mark.parametrize("seed", range(4))
def test_trailing_statistics_agree_with_loops(seed):
    x = series(seed)
    mean = d.trailing_mean(x, 10, 4)
    t_value = d.trailing_t(x, 10, 4)
    step_up = d.rise(x, 10)
    middle = d.trailing_median(x, 20, 6)
    for t in range(len(x)):
        window = finite(x[max(0, t - 9) : t + 1])
        if len(window) < 4:
            assert math.isnan(mean[t])
            assert t_value[t] == 0
        else:
            assert mean[t] == pytest.approx(sum(window) / len(window))
            error = np.std(window, ddof=1) / math.sqrt(len(window))
            assert t_value[t] == pytest.approx(np.mean(window) / error, rel=1e-6)
        before, after = finite(x[max(0, t - 19) : max(0, t - 9)]), finite(x[max(0, t - 9) : t + 1])
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
        older = finite(x[max(0, t - 19) : t + 1])
        expected = np.median(older) if len(older) >= 6 else NAN
        assert middle[t] == pytest.approx(expected, nan_ok=True)


def test_medians_of_rows():
    rows = d.trailing(series(1), 7)[2:]
    np.testing.assert_allclose(d.row_medians(rows), np.nanmedian(rows, axis=1))


def test_consecutive_counts_runs_of_true():
    flags = np.array([1, 1, 0, 1, 1, 1, 0], dtype=bool)
    assert d.consecutive(flags).tolist() == [1, 2, 0, 1, 2, 3, 0]
    assert d.consecutive(np.zeros(0, dtype=bool)).tolist() == []


STATISTICS = {
    "consecutive": lambda x: d.consecutive(x > 0.5),
    "mean": lambda x: d.trailing_mean(x, 10, 4),
    "t": lambda x: d.trailing_t(x, 10, 4),
    "rise": lambda x: d.rise(x, 10),
    "median": lambda x: d.trailing_median(x, 20, 6),
    "loss score": d.loss_score,
    "on measured rows": lambda x: d.on_measured(x, d.total),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_of_blocks_is_that_of_the_whole(name):
    """Among them single rows, rows of which none is measured, and rows none of which is high."""
    x = series(2)
    x[40:50], x[50:55], x[55] = NAN, -0.1, 1.0
    tape, parts = d.Tape(), []
    for block in np.split(x, [3, 30, 31, 32, 40, 50, 55]):
        with tape:
            parts.append(STATISTICS[name](block))
    np.testing.assert_allclose(np.concatenate(parts), STATISTICS[name](x), rtol=1e-9)


def scores_in_a_loop(delta, restarts=()) -> list[float]:
    """Step by step: unit and correlation are those of up to a hundred measured steps before."""
    out, past = [], []
    for t, value in enumerate(delta):
        if t in restarts:
            past = []
        score = NAN
        if math.isfinite(value):
            n = len(past)
            if n >= 10:
                recent = past[-100:]
                sizes = [abs(x) for x in recent]
                unit = max(d.SIZE * float(np.median(sizes)), d.GAIN * sorted(recent[-20:])[-2])
                unit *= 1 + (d.FIRST_TIMES - 1) * max(0, 60 - n) / 50
                phi = correlation_in_a_loop(past)
                over = [min(max(x - unit, 0), 5 * unit) for x in recent]
                above = np.mean(over) + d.TAIL_ERRORS * np.std(over) / math.sqrt(len(over))
                score = -(min(value, unit) + above + phi * max(0, -past[-1]))
                score = min(6.0, max(-1.0, score / unit)) if unit > 0 else NAN
            past.append(value)
        out.append(score)
    return out


def correlation_in_a_loop(past) -> float:
    last = range(max(0, len(past) - 100), len(past))
    near, far = (
        float(np.mean([(past[j] - past[j - lag]) ** 2 for j in last if j >= lag])) for lag in (1, 5)
    )
    return min(0.95, max(0, 1 - near / far - d.PHI_ERRORS / math.sqrt(len(last)))) if far else 0.0


@pytest.mark.parametrize("seed", range(4))
def test_the_loss_score_agrees_with_a_loop(seed):
    delta = np.random.default_rng(seed).standard_t(1.5, 220)
    if seed % 2:
        delta = np.cumsum(delta)  # correlated
    delta[np.random.default_rng(seed + 9).random(220) < 0.2] = NAN
    delta[7] = math.inf
    for restarts in ((), (50,), (0, 50, 55, 219, 400)):
        np.testing.assert_allclose(d.loss_score(delta, restarts), scores_in_a_loop(delta, restarts))
    assert np.isnan(d.loss_score(np.zeros(40))).all()  # nothing moves: nothing to count in
    assert len(d.loss_score(np.zeros(0))) == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_e_detector_agrees_with_a_loop(seed):
    scores = np.clip(series(seed, 80), -1, 5)
    m = dict.fromkeys(d.MIXTURE, 0.0)
    for t, value in enumerate(d.e_detector(scores, arl=1e12)):
        if not math.isnan(scores[t]):
            for bet in m:
                m[bet] = (m[bet] + 1) * (1 + bet * scores[t])
        assert value == pytest.approx(sum(m.values()) / len(m))
    several = np.stack([scores, -np.clip(scores, -1, 1)], axis=1)
    expected = np.stack([d.e_detector(column, 50) for column in several.T], axis=1)
    np.testing.assert_allclose(d.e_detector(several, 50), expected)


ARL, SERIES, STEPS = 200.0, 120, 800


def scores_of(delta: np.ndarray) -> np.ndarray:
    return np.stack([d.loss_score(x) for x in delta.T], axis=1)


def run_lengths(scores: np.ndarray, arl: float = ARL) -> np.ndarray:
    """First step with an alarm in each column, counted from 1; cut at the end, so a low estimate
    of the mean run length."""
    fires = d.e_detector(scores, arl) >= arl
    return np.where(fires.any(axis=0), fires.argmax(axis=0) + 1, len(scores))


def null_series(name: str, rng: np.random.Generator) -> np.ndarray:
    """Δ̄ of steps, shape (STEPS, SERIES), with E[score | past] ≤ 0. Uniform noise is not cut once
    there are some steps (1.25 times a large gain is out of reach), so around 0 it is on the edge of
    the null."""
    shape = (STEPS, SERIES)
    edge = rng.uniform(-1, 1, shape)
    if name == "volatility that wanders":
        log_scale = np.cumsum(rng.normal(0, 0.02, shape), axis=0)
        return edge * np.exp(log_scale)
    if name == "few correct responses, and none":
        n = rng.integers(0, 4, shape)
        total = sum(np.where(n > i, rng.uniform(-1, 1, shape), 0) for i in range(3))
        return np.where(n > 0, total / np.maximum(n, 1), NAN)
    if name == "heavy tails, mean slightly positive":
        return 0.25 + rng.standard_t(2, shape)
    if name == "small gains and rare large losses":
        return np.where(rng.random(shape) < 0.1, -1.0, 0.2) + 0.02 * edge
    return edge


NULLS = [
    "independent", "volatility that wanders", "few correct responses, and none",
    "heavy tails, mean slightly positive", "small gains and rare large losses",
]


@pytest.mark.parametrize("null", NULLS)
def test_false_alarms_are_no_more_frequent_than_guaranteed(null):
    scores = scores_of(null_series(null, np.random.default_rng(11)))
    error = np.nanstd(scores) / math.sqrt(np.count_nonzero(~np.isnan(scores)))
    assert np.nanmean(scores) <= 3 * error  # the series are of the null hypothesis
    lengths = run_lengths(scores)
    assert lengths.mean() + 3 * lengths.std() / math.sqrt(SERIES) >= ARL


def test_the_guarantee_is_not_met_by_never_firing():
    """On the edge of the null alarms come about as often as they may, and off it far more often."""
    edge = null_series("independent", np.random.default_rng(3))
    assert run_lengths(scores_of(edge)).mean() < 1.5 * ARL
    assert run_lengths(scores_of(edge - 0.1)).mean() < 0.75 * ARL


@pytest.mark.parametrize(("drift", "latest"), [(0.3, 110), (0.5, 60), (1.0, 30)])
def test_a_decay_is_detected_within_a_known_time(drift, latest):
    """Drifts in units of the noise of a step, after 60 steps of gains, at the default rate."""
    rng = np.random.default_rng(5)
    noise = rng.standard_normal((400, 100))
    noise[:60] += 0.3
    noise[60:] -= drift
    delay = run_lengths(scores_of(noise), 2000) - 60
    assert (delay > 0).mean() >= 0.95  # no alarm before
    assert np.median(delay) <= latest


@pytest.mark.parametrize(("phi", "mean"), [(0.8, 0.5), (0.9, 1.0)])
def test_correlated_noise_around_a_gain_is_no_decay(phi, mean):
    """AR(1) around a positive mean is under 0 for many steps in a row, though nothing is wrong. At
    most a twentieth of the runs of a planned length has an alarm, as is promised."""
    steps = 300
    noise = np.random.default_rng(4).standard_normal((steps, 200))
    for t in range(1, steps):
        noise[t] = phi * noise[t - 1] + math.sqrt(1 - phi**2) * noise[t]
    fires = d.e_detector(scores_of(noise + mean), 20.0 * steps) >= 20.0 * steps
    assert fires.any(axis=0).mean() <= 0.05


def test_a_few_responses_that_lose_many_nats_are_seen_among_many_that_gain_a_little():
    rng = np.random.default_rng(2)
    healthy = rng.normal(0.2, 0.2, (60, 50))
    dying = np.where(rng.random((60, 50)) < 0.25, rng.uniform(-6, -2, (60, 50)), healthy)
    delay = run_lengths(scores_of(np.concatenate([healthy, dying])), 2000) - 60
    assert (delay > 0).all()
    assert np.median(delay) <= 25


def test_a_constant_has_the_shape_of_another_series_and_the_memory_of_a_number():
    x = d.constant(2, np.zeros(1000))
    assert (x.shape, x.dtype, x.strides) == ((1000,), np.float64, (0,))
    assert (x == 2.0).all()
    assert not x.flags.writeable


def test_floats_of_a_signal():
    """What is not finite is NaN; a signal that was never measured takes no memory."""
    columns = {"a": np.array([1.0, math.inf, NAN]), "b": np.full(3, NAN), "c": np.arange(3.0)}
    np.testing.assert_array_equal(d.floats(columns, "a"), [1.0, NAN, NAN])
    np.testing.assert_array_equal(d.floats(columns, "b"), [NAN] * 3)
    assert d.floats(columns, "b").strides == (0,)
    np.testing.assert_array_equal(d.floats(columns, "c"), [0.0, 1.0, 2.0])
