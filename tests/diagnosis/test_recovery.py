"""An alarm ends because what was lost is back, and not because time has passed; what shows from the
first rows on; and what several signs say together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from rule_cases import frame

from benchmarks import healthy
from benchmarks.noise import correlated
from lldscope.diagnosis.assess import assess

STEPS, ONSET = 280, 150
Columns = dict[str, np.ndarray]


def run(steps: int, seed: int = 0) -> Columns:
    """A healthy log that has learned what it can by the onset."""
    return healthy.plain(np.random.default_rng(seed), steps) | {
        "truncated_share": np.random.default_rng(seed).uniform(0, 0.02, steps),
        "n_nonfinite": np.zeros(steps),
    }


# Signal → the level that it goes to over so many steps; × what it was where that is `times`.
def times(factor: float, over: int = 1) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda x, elapsed: x * np.exp(np.log(factor) * np.clip((elapsed + 1) / over, 0, 1))


FAULTS: dict[str, tuple[dict[str, Callable], set[str]]] = {
    "the reward to nothing": ({"reward": times(1e-9)}, {"reward-crash", "reward-decline"}),
    "the reward to two thirds": ({"reward": times(0.6, 10)}, {"reward-decline"}),
    "the reward to 60 % beside the entropy × 5":
        ({"reward": times(0.6, 20), "entropy": times(5, 10)}, {"reward-crash", "entropy-surge"}),
    "a tenth of the length": ({"response_tokens": times(0.1, 60)}, {"length-collapse"}),
    "the length × 5": ({"response_tokens": times(5, 30)}, {"length-growth"}),
    "a thousandth of the entropy": ({"entropy": times(1e-3, 40)}, {"entropy-floor"}),
    "the entropy × 4": ({"entropy": times(4, 60)}, {"entropy-surge"}),
    "gradients × 30": ({"grad_norm": times(30, 5)}, {"grad-explosion"}),
    "gradients of a thousandth": ({"grad_norm": times(1e-3)}, {"grad-vanishing"}),
    "the KL × 100": ({"kl": times(100, 20)}, {"kl-explosion"}),
    "a seventeenth of the searches": ({"valid_searches": times(1 / 17, 80)}, {"tool-abandoned"}),
    "all of it": ({
        "response_tokens": times(0.01, 10), "kl": times(1e4, 10), "grad_norm": times(100, 10),
        "entropy": times(0.01, 10),
    }, {"policy-collapse", "length-collapse", "kl-explosion", "grad-explosion", "entropy-floor"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_alarm_of_a_fault_that_is_taken_back_resolves_and_none_begins(name):
    columns, step, back = run(STEPS), np.arange(STEPS), ONSET + 80
    for signal, change in FAULTS[name][0].items():
        changed = change(columns[signal], step - ONSET)
        columns[signal] = np.where(step < back, changed, columns[signal])
    alerts = assess(frame(columns)).alerts
    alarms = {a.rule: a.episodes for a in alerts if a.first_step >= ONSET}
    assert set(alarms) >= FAULTS[name][1], alarms
    for rule, spans in alarms.items():
        assert len(spans) == 1, (rule, spans)
        assert spans[0][0] < back, (rule, spans)
        assert spans[0][1] is not None, (rule, spans)
        assert spans[0][1] <= back + 30, (rule, spans)


@pytest.mark.slow
def test_a_slow_decline_is_found():
    """To 60 % of the best over 250 steps, with the noise of 32 questions a step."""
    count = 0
    for seed in range(10):
        columns = run(600, seed)
        decline = times(0.6, 250)(columns["reward"], np.arange(600) - ONSET)
        alerts = assess(frame(columns | {"reward": decline})).alerts
        count += any(a.rule == "reward-decline" and a.step >= ONSET for a in alerts)
    assert count >= 9


@pytest.mark.slow
@pytest.mark.parametrize(("period", "kind"), [(20, "noise"), (40, "noise"), (30, "cycle")])
def test_rewards_of_few_questions_in_the_order_of_the_data_are_no_crash(period, kind):
    """Four questions a step, whose difficulty swings with their place in the data. A rule that
    takes steps as independent calls most of these lost."""
    step, critical = np.arange(400), 0
    for seed in range(10):
        rng = np.random.default_rng([period, seed])
        hard = np.sin(2 * np.pi * (step / period + rng.random()))
        if kind == "noise":
            hard = correlated(rng, float(np.exp(-3 / period)), len(step)) * 0.7
        chance = np.clip(0.45 + 0.3 * hard, 0.02, 0.98)[:, None]
        right = rng.beta(2 * chance, 2 - 2 * chance, (len(step), 4))
        reward = rng.binomial(8, right).mean(axis=1) / 8
        alerts = assess(frame({"reward": reward})).alerts
        critical += any(a.severity == "critical" for a in alerts)
    assert critical <= 2


def test_what_breaks_in_the_first_rows_is_seen():
    """A KL of 686 nats within 60 steps, and a tenth of the length by row 15."""
    columns = run(60)
    step = np.arange(60)
    columns["kl"] = 1e-3 * np.exp(np.log(686e3) * np.clip((step - 20) / 35, 0, 1))
    columns["response_tokens"] = np.where(step < 15, columns["response_tokens"], 12.0)
    alarms = {a.rule: a.first_step for a in assess(frame(columns)).alerts}
    assert 40 <= alarms["kl-explosion"] <= 55
    assert 15 <= alarms["length-collapse"] <= 24
