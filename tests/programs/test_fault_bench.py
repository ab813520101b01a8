"""A few logs of the benches `faults` and `healthy`: what is promised of them, and what they do.

A goal is asserted here once the rules reach it; the benches measure all of them.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import faults, healthy

LOGS = 2  # of each kind
SHARP = 15  # steps, the median delay of what happens at once

FOUND_AT_ONCE = [
    ("five signals", "reward to nothing at once"),
    ("five signals", "entropy × 5"),
    ("five signals", "gradient × 10"),
    ("five signals", "NaN"),
    ("recorded", "outage: reward × 0.5, length × 0.6 at once"),
    ("verl", "tools to 0"),
    ("TRL", "KL × 50"),
]
FOUND = [
    ("five signals", "reward to a third over 20 steps"),
    ("five signals", "reward down a third over 250 steps"),
    ("five signals", "entropy to 0.02"),
    ("five signals", "length × 4, cut"),
    ("a row every ten steps", "reward to a third over 20 steps"),
    ("a row every ten steps", "gradient × 10"),
]
NEVER_CRITICAL = [kind for kind in healthy.KINDS if "without gradient" not in kind]
NEVER_WARNED = ["256 rollouts", "64 rollouts", "rewards with penalties, under zero",
                "rewards a hair under zero at first", "learning-rate warm-up"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """Other packages are not asked, whether they are installed or not."""
    monkeypatch.setattr(healthy, "python_if_installed", lambda: None)


@pytest.mark.parametrize(("kind", "fault"), [*FOUND_AT_ONCE, *FOUND])
def test_a_fault_is_found(kind, fault):
    result = faults.measure(kind, fault, LOGS)["lldscope"]
    assert result.hits == result.total == LOGS
    if (kind, fault) in FOUND_AT_ONCE:
        assert np.median(result.delays) <= SHARP


@pytest.mark.parametrize("kind", ["five signals", "a row every ten steps", "verl", "TRL"])
def test_logs_without_a_fault_are_not_critical(kind):
    verdicts = faults.untouched(kind, False, LOGS)
    assert healthy.count(verdicts, "lldscope").startswith("0 / ")


@pytest.mark.parametrize("kind", [
    kind if kind in NEVER_WARNED else pytest.param(kind, marks=pytest.mark.slow)
    for kind in NEVER_CRITICAL
])
def test_a_healthy_log_is_not_critical(kind):
    logs = [healthy.made_up(kind, 200, seed) for seed in range(LOGS)]
    expected = "0 / 0" if kind in NEVER_WARNED else "0 / "
    assert healthy.count(healthy.judge(logs), "lldscope").startswith(expected)
