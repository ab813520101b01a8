"""The bounds that noise puts around means of the reward: plain twins, and how often they hold."""

from __future__ import annotations

import itertools
import math
import warnings
from statistics import NormalDist, median

import numpy as np
import pytest
from rule_cases import frame

from benchmarks import noise
from lldscope.diagnosis import detectors as d
from lldscope.diagnosis import outcome as o
from lldscope.diagnosis.assess import Judge, assess
from lldscope.diagnosis.evidence import gather


def slow_noise(values: list[float]) -> float:
    """The variance of a mean of n entries, times n, at the last of them: the upper bound."""

    def differences(lag: int) -> list[float]:
        all_of = {t: values[t] - values[t - lag] for t in range(lag, len(values))}
        out = []
        for t in range(max(lag, len(values) - d.NOISE_STEPS), len(values)):
            last = [all_of[i] for i in range(max(lag, t - o.TREND + 1), t + 1)]
            if len(last) >= d.NOISE_LEAST // 2:
                out.append(abs(all_of[t] - median(last)))
        return out

    near, far = differences(1), differences(d.NOISE_LAG)
    if len(near) < d.NOISE_LEAST:
        return math.nan
    variance = sum(x * x for x in near) / len(near) / 2
    if len(far) >= d.NOISE_LEAST:
        ratio = median(near) / median(far) if median(far) > 0 else 1.0
        phi = min(max(1 - ratio**2, 0.0), 0.9)
        correlated = (median(far) / 0.6745) ** 2 / 2 * (1 + phi) / (1 - phi)
        variance = max(variance, correlated)
    n = min(max(len(values) - 1, d.NOISE_LEAST), d.NOISE_STEPS)
    return variance / (1 - 2 / (9 * n) - 1.645 * math.sqrt(2 / (9 * n))) ** 3


def slow_swings(level: list[float]) -> list[float]:
    """The variance of a level about a straight line, at each entry; NaN where unknown."""
    out = [math.nan] * len(level)
    for lag in d.LAGS:
        bends: dict[int, float] = {}
        off: dict[int, float] = {}
        for t in range(2 * lag, len(level)):
            bend = level[t] - 2 * level[t - lag] + level[t - 2 * lag]
            if bend == bend:
                bends[t] = bend
            last = [bends[i] for i in range(t - d.NOISE_STEPS + 1, t + 1) if i in bends]
            if bend == bend and len(last) >= lag:
                off[t] = abs(bend - median(last))
            sizes = [off[i] for i in range(t - d.NOISE_STEPS + 1, t + 1) if i in off]
            if len(sizes) >= 2 * lag:
                out[t] = np.fmax(out[t], (median(sizes) / 0.6745) ** 2 / 6)
    return out


def slow_variances(values: list[float], noise: list[float]) -> dict[int, list[float]]:
    """Of the mean of each window, times its length, without the independence of steps."""
    longest = [
        x * (d.UNTESTED + (1 - d.UNTESTED) * min(t / (4 * max(d.LAGS)), 1))
        for t, x in enumerate(noise)
    ]
    out = {}
    for w in o.WINDOWS:
        mean = [
            sum(values[t - w + 1 : t + 1]) / w if t >= w - 1 else math.nan
            for t in range(len(values))
        ]
        if w <= max(d.LAGS):
            lags = [lag for lag in d.LAGS if lag >= w]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(d, "LAGS", lags)
                swings = slow_swings(mean)
            longest = [float(np.fmax(x, w * y)) for x, y in zip(longest, swings, strict=True)]
        out[w] = longest
    return out


def slow_bounds(values: list[float]) -> list[tuple[float, bool]]:
    """(the best less its bias, whether it has fallen) at each entry, of positive values."""
    noise = [slow_noise(values[: t + 1]) for t in range(len(values))]
    first = next(x for x in noise if not math.isnan(x))
    complete = [first if math.isnan(x) else x for x in noise]
    variances = slow_variances(values, complete)
    out, steps = [], 0
    for t in range(len(values)):
        if math.isnan(noise[t]):
            out.append((math.nan, False))
            continue
        count = max((t + 1) // 10, 1) * len(o.WINDOWS)
        z = NormalDist().inv_cdf(1 - o.LEVEL / (count * (count - 1) / 2))
        best, fallen = -math.inf, False
        for window in o.WINDOWS:
            parts = [values[i - window + 1 : i + 1] for i in range(window - 1, t + 1)]
            if not parts:
                continue
            tops = [(sum(part) - max(part)) / (window - 1) for part in parts]
            row = tops.index(max(tops)) + window - 1
            before = complete[row]
            best = max(best, max(tops) - o.BIAS * math.sqrt(before / window))
            for recent in o.WINDOWS:
                if earlier := tops[: max(t + 2 - window - recent, 0)]:  # before the recent ones
                    before = variances[window][t - recent] / window
                    before += variances[recent][t - recent] / recent
                    last = values[t - recent + 1 : t + 1]
                    now = (sum(last) - min(last)) / (recent - 1)
                    margin = z * math.sqrt(before)
                    fallen |= max(earlier) - now > margin
        steps = steps + 1 if fallen else 0
        out.append((best, steps >= o.LASTS))
    return out


def series(kind: str) -> np.ndarray:
    rng = np.random.default_rng(4)
    line = np.interp(np.arange(260), [0, 60, 180, 200, 260], [0.1, 0.5, 0.5, 0.1, 0.1])
    if kind == "correlated":
        return np.clip(line + 0.1 * noise.correlated(rng, 0.6, 260), 0, None)
    return np.clip(line + rng.normal(0, 0.1, 260), 0, None)


@pytest.mark.parametrize("kind", ["correlated", "independent"])
def test_errors_and_bounds_agree_with_loops(kind):
    reward = series(kind)
    result = o.outcome(gather(frame({"reward": reward}), 2000.0))
    for t, (best, fallen) in enumerate(slow_bounds(reward.tolist())):
        assert result.best[t] == pytest.approx(best, nan_ok=True), t
        assert result.fallen[t] == fallen, t
    assert result.fallen.any()
    assert not result.fallen[:180].any()


def test_a_new_kind_of_data_forgets_the_best():
    reward = np.where(np.arange(200) < 100, 0.8, 0.2) + np.random.default_rng(0).normal(
        0, 0.02, 200
    )
    plain, declared = (
        gather(frame({"reward": reward}), 2000.0, restarts) for restarts in (None, {100: "data"})
    )
    assert o.outcome(plain).fallen[-1]
    assert not o.outcome(declared).fallen.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "phi", "most"),
    [(0.2, 0.0, 0), (0.33, 0.3, 1), (0.5, 0.0, 1)],
)
def test_healthy_noise_is_not_called_a_crash(share, phi, most):
    """Even with gradient spikes, which open the looser limits: of 20 runs, where the level is 1 %
    for independent steps."""
    make = noise.healthy(share, phi, 0.02)
    count = 0
    for seed in range(20):
        alerts = assess(make(np.random.default_rng([1, seed]))).alerts
        count += any(a.rule == "reward-crash" for a in alerts)
    assert count <= most


@pytest.mark.slow
def test_no_run_that_held_is_called_critical_at_32_rollouts_a_step(monkeypatch):
    monkeypatch.setattr(noise, "DRAWS", 1)
    runs = [(fall, s) for fall, s in noise.labelled(noise.BANK, "all") if fall is None]
    counts, _ = noise.measure(runs, noise.CONDITIONS["32 rollouts"])
    assert counts["held"].runs == len(runs)
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
        (np.linspace(0.2, 0.5, 99), None, True),
        (np.full(99, 0.3), None, None),
        (np.concatenate([np.full(100, 0.2), np.full(110, 0.5)]), {100: "data"}, False),
        (np.concatenate([np.full(100, 0.2), np.full(50, 0.5)]), {100: "data"}, None),
        (np.full(120, np.nan), None, None),
    ],
)
def test_whether_the_reward_has_risen(reward, restarts, risen):
    noise = np.random.default_rng(3).normal(0, 0.03, len(reward))
    signals = frame({"reward": reward + noise, "entropy": np.full(len(reward), 0.4)})
    result = o.rise(gather(signals, 2000.0, restarts))
    assert result == (None if risen is None else o.Rise(risen, 10, 40))


@pytest.mark.slow
def test_a_reward_that_stays_where_it_was_is_seldom_said_to_have_risen():
    rng = np.random.default_rng(4)
    rises = [
        o.rise(gather(frame({"reward": 0.4 + rng.normal(0, 0.05, 200)}), 2000.0))
        for _ in range(200)
    ]
    assert np.mean([rise.clear for rise in rises]) < 0.04  # 2.3 % if the noise were known


def test_a_log_with_a_row_every_tenth_step_is_compared_over_more_steps():
    step = np.arange(0, 400, 10)
    noise = np.random.default_rng(5).normal(0, 0.03, len(step))
    signals = frame({"step": step, "reward": np.linspace(0.2, 0.5, len(step)) + noise})
    assert o.rise(gather(signals, 2000.0)) == o.Rise(True, 30, 100)


@pytest.mark.parametrize(
    ("reward", "word"),
    [
        (np.zeros(120), "dead"),
        (np.ones(120), "constant"),
        (np.concatenate([np.linspace(0.1, 1, 90), np.ones(30)]), "constant"),
        (np.concatenate([np.linspace(0.1, 1, 90), np.zeros(30)]), "dead"),
        (np.concatenate([np.linspace(0.1, 1, 90), np.full(30, 0.2)]), "falling"),
        (np.linspace(0.1, 1, 120), "improving"),
        (np.concatenate([np.linspace(0.1, 1, 90), np.linspace(1, 0.95, 30)]), "improving"),
        (np.tile([0.1, 0.2], 60), "flat"),
        (np.zeros(19), ""),
    ],
)
def test_the_course_of_the_reward_in_a_word(reward, word):
    e = gather(frame({"reward": reward}), 2000.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert o.trend(e) == word
        assert len(o.outcome(e).share) == len(reward)


@pytest.mark.parametrize(
    ("columns", "solved"),
    [({"reward": 0.999}, True), ({"reward": 3.0}, False),
     ({"reward": 0.999, "success": 0.5}, False), ({"reward": 3.0, "success": 0.999}, True)],
)
def test_what_is_solved_is_said_by_correct_responses_or_else_by_rewards(columns, solved):
    table = frame({name: np.full(40, value) for name, value in columns.items()})
    assert o.solved(gather(table, 2000.0))[-1] == solved


@pytest.mark.parametrize(
    ("reward", "bonus", "never_paid"),
    [(0.5, [0.0] * 20, ["bonus"]), (0.5, [0.0] * 19, []), (0.5, [0.0] * 19 + [-0.1], []),
     (0.0, [0.0] * 20, [])],
)
def test_a_component_that_was_never_paid(reward, bonus, never_paid):
    columns = {"reward": np.full(40, reward), "component/bonus": np.full(40, np.nan)}
    columns["component/bonus"][: len(bonus)] = bonus
    assert assess(frame(columns)).course.unpaid == never_paid


@pytest.mark.parametrize(
    ("last", "reward", "without"),
    [(0.0301, 0.5, True), (0.0299, 0.5, False), (0.0301, 0.3, False), (0.0301, 0.8, False)],
)
def test_steps_that_grow_thirty_times_without_an_effect(last, reward, without):
    """The first ten steps of 0.001 nats a token, the last ten of `last`, the ten before the last
    of less than 0.03; the reward was 0.5."""
    columns = {
        "step_kl": np.fmax(last + 0.0003 * (np.arange(120) - 114.5), 0.001),
        "reward": np.repeat([0.5, reward], 60) + np.random.default_rng(1).normal(0, 0.02, 120),
    }
    assert assess(frame(columns)).course.is_without_effect == without


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**80])
def test_a_reward_of_any_size_is_judged_alike_and_its_messages_are_short(scale):
    reward = np.repeat([0.8, 0.2], 60) + np.random.default_rng(1).normal(0, 0.05, 120)
    usual, scaled = (assess(frame({"reward": x})).alerts for x in (reward, reward * scale))
    assert [(a.rule, a.episodes) for a in usual] == [(a.rule, a.episodes) for a in scaled] != []
    for alert in scaled:
        assert "0.00" not in alert.message
        assert len(alert.message) < 150


# -- what is critical, and what is not ------------------------------------------------------------


def verdicts(reward: np.ndarray) -> dict[str, str]:
    return {a.rule: str(a.severity) for a in assess(frame({"reward": reward})).alerts}


COURSES = {  # (step, reward) joined by lines, noise, and whether it is called a crash
    "lost at once, which enlarges no margin": ([(0, 0.8), (59, 0.8), (60, 0), (99, 0)], 0.05, True),
    "dead by step eight": ([(0, 0.4), (7, 0.4), (8, 0), (67, 0)], 0.02, True),
    "a hair under zero at first": (
        [(0, -0.002), (12, -0.002), (60, 0.31), (100, 0.31), (110, 0.07), (160, 0.07)], 0.01, True),
    "under zero, and far below": ([(0, -0.3), (80, -0.3), (90, -0.95), (140, -0.95)], 0.05, True),
    "the same once it has risen": ([(0, -0.3), (80, 0), (90, -0.95), (140, -0.95)], 0.05, True),
    "a small penalty that grows": ([(0, -0.5), (40, -0.5), (140, -0.65)], 0.02, False),
    "without noise": ([(0, 0.5), (79, 0.5), (80, 0.02), (119, 0.02)], 0.0, True),
}


@pytest.mark.parametrize("course", COURSES)
def test_what_is_called_a_crash(course):
    points, noise, crashes = COURSES[course]
    steps, values = zip(*points, strict=True)
    line = np.interp(np.arange(steps[-1] + 1), steps, values)
    line += np.random.default_rng(5).normal(0, noise, len(line))
    assert verdicts(line).get("reward-crash") == ("critical" if crashes else None)


def test_no_single_step_makes_a_fall_or_a_best():
    rng = np.random.default_rng(7)
    reward = 0.5 + rng.normal(0, 0.02, 200)
    reward[[60, 130]] = 0.0, 5.0
    assert verdicts(reward) == {}


def test_a_run_is_used_to_falls_that_it_has_come_back_from():
    step, rng = np.arange(600), np.random.default_rng(8)
    reward = 0.5 * (1 + 0.25 * np.sin(step * 2 * np.pi / 60)) + rng.normal(0, 0.02, 600)
    (alert,) = [a for a in assess(frame({"reward": reward})).alerts if a.rule == "reward-decline"]
    assert alert.episodes[-1][0] < 60, "the first cycle alone"
    dead = np.where(step < 400, reward, 0.1 * reward)
    assert verdicts(dead)["reward-crash"] == "critical"


def test_noise_seldom_makes_falls_that_a_run_is_used_to():
    levels = [
        d.trailing_mean(np.random.default_rng(seed).normal(0.5, 0.1, 150), 10, 10)
        for seed in range(40)
    ]
    error = np.full(150, 0.1 / np.sqrt(10))
    used = [
        sum(o._largest_recovered(level, times * error)[-1] > 0 for level in levels)
        for times in (0, 2 * o.BIAS)
    ]
    assert used[0] > 30
    assert used[1] < 16


@pytest.mark.parametrize(
    ("level", "by_noise", "largest"),
    [
        ([1.0, 0.5, 0.8], 0.0, [0.0, 0.0, 0.0]),  # 0.3 of 0.5 are back, less than RECOVERED
        ([1.0, 0.5, 0.9], 0.0, [0.0, 0.0, 0.5]),
        ([1.0, 0.5, 0.9], 0.5, [0.0, 0.0, 0.0]),
        ([1.0, 0.5, 0.9, 0.3, 0.8], 0.0, [0.0, 0.0, 0.5, 0.5, 0.6]),
        ([1.0, 0.5, 0.9, 0.6, 0.9], 0.0, [0.0, 0.0, 0.5, 0.5, 0.5]),
        ([1.0, 0.8, 0.5, 1.0], 0.0, [0.0, 0.0, 0.0, 0.5]),
        ([1.0, 1.0, 2.0], 0.0, [0.0] * 3),
    ],
)
def test_the_largest_fall_that_was_made_up_again(level, by_noise, largest):
    values = o._largest_recovered(np.array(level), np.full(len(level), by_noise))
    assert values.tolist() == pytest.approx(largest)


def test_another_sign_confirms_a_fall_at_once():
    rng, step = np.random.default_rng(9), np.arange(160)
    reward = np.interp(step, [0, 100, 140, 160], [0.6, 0.6, 0.1, 0.1]) + rng.normal(0, 0.03, 160)
    entropy = np.interp(step, [0, 95, 110, 160], [0.4, 0.4, 1.5, 1.5]) + rng.normal(0, 0.01, 160)
    first = {
        name: next(a.step for a in assess(frame(columns)).alerts if a.rule == "reward-crash")
        for name, columns in (
            ("alone", {"reward": reward}),
            ("beside", {"reward": reward, "entropy": entropy}),
        )
    }
    assert 100 < first["beside"] < first["alone"] - 5


@pytest.mark.parametrize("every", [1, 10])
def test_a_loss_of_a_third_over_250_steps_is_called(every):
    step = np.arange(0, 800, every)
    line = np.interp(step, [0, 200, 350, 600, 800], [0.2, 0.6, 0.6, 0.4, 0.4])
    reward = line + np.random.default_rng(3).normal(0, 0.03, len(step))
    alerts = assess(frame({"step": step, "reward": reward})).alerts
    assert any(a.rule == "reward-decline" for a in alerts)


NULLS = {
    "constant": lambda rng: 0.5 + 0.1 * rng.standard_normal(200),
    "rising": lambda rng: np.linspace(0.1, 0.6, 200) + 0.05 * rng.standard_normal(200),
    "8 rollouts": lambda rng: rng.binomial(8, 0.4, 200) / 8,
    "256 rollouts": lambda rng: rng.binomial(256, 0.4, 200) / 256,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", NULLS)
def test_independent_steps_seldom_seem_to_fall(kind):
    """At LEVEL of 1 % two or more of 30 have a probability of 4 %; the seeds are fixed."""
    make = NULLS[kind]
    rewards = (make(np.random.default_rng([8, seed])) for seed in range(30))
    outcomes = [o.outcome(gather(frame({"reward": r}), 2000.0)) for r in rewards]
    assert sum(x.fallen.any() for x in outcomes) <= 1


@pytest.mark.parametrize(("rollouts", "chance"), [(8, 0.3), (64, 0.1)])
def test_a_small_run_that_dies_early_is_critical(rollouts, chance):
    """From step 20 of 80 on every group is wrong and the entropy is nearly gone."""
    delays = []
    for seed in range(6):
        rng, dead = np.random.default_rng(seed), np.arange(80) >= 20
        reward = rng.binomial(rollouts, np.where(dead, 0.0, chance)) / rollouts
        entropy = np.where(dead, 5e-4, 0.4) * np.exp(0.1 * rng.standard_normal(80))
        zero_signal = np.where(reward > 0, 0.3, 1.0)
        signals = {"reward": reward, "entropy": entropy, "zero_signal_share": zero_signal}
        critical = [a.step for a in assess(frame(signals)).alerts if a.severity == "critical"]
        delays.append(min(critical, default=math.inf) - 20)
    assert max(delays) < 60, delays
    assert sorted(delays)[3] <= 30, delays


def gathered(reward: np.ndarray):
    return gather(frame({"reward": reward}), 2000.0)


def test_a_reward_that_was_noisy_and_few_is_gone_once_it_stays_at_its_lowest() -> None:
    """Twelve steps of 16 rollouts, of which means cannot say that they were above 0, and then 0."""
    first = [0.38, 0.12, 0.06, 0.56, 0.06, 0.88, 0.25, 0.12, 0.0, 0.25, 0.0, 0.0, 0.06]
    reward = np.array([*first, *[0.0] * 40])
    e, judge = gathered(reward), Judge()
    live = [judge.look(frame({"reward": reward[:n]})) for n in (20, len(reward))]
    assert live[1].alerts == assess(frame({"reward": reward})).alerts
    crashed = np.flatnonzero(o.halved(e))
    assert len(first) + 5 <= crashed[0] <= len(first) + 15
    assert o.halved(e)[crashed[0] :].all()
    assert not o.halved(gathered(np.array(first * 4))).any()
    rare = gathered(np.array([0.0, 0.0, 0.06, 0.0, 0.0, 0.0, 0.0, 0.06, *[0.0] * 40]))
    assert not o.halved(rare).any()
    solved = np.repeat([1.0, 0.984, 1.0, 1.0, 1.0, 0.984], 10)  # each value logged for ten steps
    assert not o.halved(gathered(solved)).any()


def test_correlated_steps_count_as_fewer() -> None:
    noise = np.random.default_rng(2).random(60)
    assert [o._alike(x) for x in (np.tile([0.0, 1.0], 20), np.full(9, 0.5), noise)] == [1.0] * 3
    line = np.arange(60.0)  # is no correlation
    assert o._alike(noise + line) == 1.0
    assert 7 < o._alike(np.repeat(noise, 10)) < 13  # each value logged for ten steps


@pytest.mark.parametrize("n", [6, 8])
def test_the_chance_of_a_stretch_at_the_lowest_is_that_of_all_orders(n: int) -> None:
    for k in range(n - 1):
        for start in range(k, n):
            orders = list(itertools.combinations(range(n), k))  # of the steps above the lowest
            late = sum(all(step < start for step in order) for order in orders)
            chance = np.exp(o._log_choose(start, k) - o._log_choose(n, k))
            assert chance == pytest.approx(late / len(orders))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.03, 0.1, 0.3])
def test_rewards_in_any_order_are_seldom_gone(share: float) -> None:
    rng = np.random.default_rng(3)
    series = (rng.random((400, 200)) < share).astype(float)
    assert np.mean([o._stays_lowest(values).any() for values in series]) <= o.LEVEL
