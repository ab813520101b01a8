"""The bounds that noise puts around means of the reward: plain twins, and how often they hold."""

from __future__ import annotations

import math
from statistics import NormalDist, median

import numpy as np
import pytest
from bench import noise

from lldscope.diagnosis import detectors as d
from lldscope.diagnosis import reward_noise as rn
from lldscope.diagnosis.assess import assess
from lldscope.diagnosis.evidence import gather
from lldscope.user_rules.rule_cases import frame


def slow_error(values: list[float], window: int) -> float:
    """The standard error of a mean at the last entry."""
    recent = range(max(0, len(values) - d.NOISE_STEPS), len(values))
    near = [abs(values[t] - values[t - 1]) for t in recent if t >= 1]
    far = [abs(values[t] - values[t - d.NOISE_LAG]) for t in recent if t >= d.NOISE_LAG]
    if len(near) < d.NOISE_LEAST:
        return math.nan
    variance = sum(x * x for x in near) / len(near) / 2
    if len(far) >= d.NOISE_LEAST:
        ratio = median(near) / median(far) if median(far) > 0 else 1.0
        phi = min(max(1 - ratio**2, 0.0), 0.9)
        correlated = (median(far) / 0.6745) ** 2 / 2 * (1 + phi) / (1 - phi)
        variance = max(variance, correlated)
    return math.sqrt(variance / window)


def slow_bounds(values: list[float]) -> list[tuple[float, float]]:
    """(upper bound of the last mean, lower bound of the best) at each entry."""
    best, out = -math.inf, []
    for t in range(len(values)):
        past, upper = values[: t + 1], math.inf
        z = NormalDist().inv_cdf(1 - rn.LEVEL / (max(len(past) // 10, 1) * len(rn.WINDOWS)))
        for window in rn.WINDOWS:
            error = slow_error(past, window)
            if len(past) >= window and not math.isnan(error):
                mean = sum(past[-window:]) / window
                upper, best = min(upper, mean + z * error), max(best, mean - z * error)
        out.append((upper, best))
    return out


def series(kind: str) -> np.ndarray:
    rng = np.random.default_rng(4)
    line = np.interp(np.arange(260), [0, 60, 180, 200, 260], [0.1, 0.5, 0.5, 0.1, 0.1])
    if kind == "correlated":
        return np.clip(line + 0.1 * noise.correlated(rng, 0.6, 260), 0, None)
    return np.clip(np.round(line + rng.normal(0, 0.1, 260), 1), 0, None)  # many ties


@pytest.mark.parametrize("kind", ["correlated", "rounded"])
def test_errors_and_bounds_agree_with_loops(kind):
    reward = series(kind)
    e = gather(frame({"reward": reward}), 2000.0)
    values = e.normalized_reward.tolist()
    error = rn.error(e, 10)
    low, fallen = rn.best_at_least(e), rn.has_fallen(e)
    for t, (upper, best) in enumerate(slow_bounds(values)):
        assert error[t] == pytest.approx(slow_error(values[: t + 1], 10), nan_ok=True), t
        assert np.isnan(low[t]) == math.isinf(best), t
        if math.isfinite(best):
            assert low[t] == pytest.approx(best), t
        assert fallen[t] == (upper < best), t
    assert fallen.any()
    assert kind == "correlated" or not fallen[:180].any()


def test_a_new_kind_of_data_forgets_the_best():
    reward = np.where(np.arange(200) < 100, 0.8, 0.2) + np.random.default_rng(0).normal(
        0, 0.02, 200
    )
    plain, declared = (
        gather(frame({"reward": reward}), 2000.0, restarts) for restarts in (None, {100: "data"})
    )
    assert rn.has_fallen(plain)[-1]
    assert not rn.has_fallen(declared).any()


@pytest.mark.parametrize(("share", "phi", "most"), [(0.2, 0.0, 0), (0.33, 0.3, 2), (0.5, 0.0, 0)])
def test_healthy_noise_is_not_called_a_crash(share, phi, most):
    """Even with gradient spikes, which open the looser limits."""
    make = noise.healthy(share, phi, 0.02)
    fired = 0
    for seed in range(40):
        alerts = assess(make(np.random.default_rng([1, seed]))).alerts
        fired += any(a.rule == "reward-crash" for a in alerts)
    assert fired <= most


def test_no_run_that_held_is_called_critical_at_32_rollouts_a_step():
    runs = [(fall, s) for fall, s in noise.labelled(noise.BANK, "all") if fall is None]
    counts, _ = noise.measure(runs, noise.CONDITIONS["32 rollouts"])
    assert counts["held"].runs == noise.DRAWS * len(runs)
    assert counts["held"].critical == 0


def test_the_thinned_bank_is_as_noisy_as_fewer_rollouts_make_it():
    _, signals = next(noise.labelled(noise.BANK, "development"))
    full, rng = signals["reward"].to_numpy(float), np.random.default_rng(0)
    rollouts = float(signals["n_responses"].median())
    square = np.mean([np.mean(np.diff(noise.thinned(signals, rng, 16)) ** 2) for _ in range(50)])
    assert square / np.mean(np.diff(full) ** 2) == pytest.approx(rollouts / 16, rel=0.35)


@pytest.mark.parametrize(
    ("reward", "restarts", "risen"),
    [
        (np.linspace(0.2, 0.5, 120), None, True),
        (np.full(120, 0.3), None, False),
        (np.linspace(0.2, 0.5, 99), None, None),
        (np.concatenate([np.full(100, 0.2), np.full(110, 0.5)]), {100: "data"}, False),
        (np.concatenate([np.full(100, 0.2), np.full(50, 0.5)]), {100: "data"}, None),
        (np.full(120, np.nan), None, None),
    ],
)
def test_whether_the_reward_has_risen(reward, restarts, risen):
    noise = np.random.default_rng(3).normal(0, 0.03, len(reward))
    signals = frame({"reward": reward + noise, "entropy": np.full(len(reward), 0.4)})
    found = rn.rise(gather(signals, 2000.0, restarts))
    assert found == (None if risen is None else rn.Rise(risen, 10, 40))


def test_a_reward_that_stays_where_it_was_is_seldom_said_to_have_risen():
    rng = np.random.default_rng(4)
    found = [
        rn.rise(gather(frame({"reward": 0.4 + rng.normal(0, 0.05, 200)}), 2000.0))
        for _ in range(200)
    ]
    assert np.mean([rise.clear for rise in found]) < 0.04  # 2.3 % if the noise were known


def test_a_log_with_a_row_every_tenth_step_is_compared_over_more_steps():
    step = np.arange(0, 400, 10)
    noise = np.random.default_rng(5).normal(0, 0.03, len(step))
    signals = frame({"step": step, "reward": np.linspace(0.2, 0.5, len(step)) + noise})
    assert rn.rise(gather(signals, 2000.0)) == rn.Rise(True, 30, 100)
