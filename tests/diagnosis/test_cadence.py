"""Windows are said in steps of training, however often a log has a row."""

from __future__ import annotations

import numpy as np
import pytest
from rule_cases import frame

from lldscope.diagnosis.assess import Assessment, assess
from lldscope.diagnosis.cadence import Cadence
from lldscope.diagnosis.detectors import MedianWindow
from lldscope.diagnosis.outcome import outcome

STEPS = np.arange(1000)


def crashed(every: int) -> Assessment:
    """A reward that falls from step 600 to 640, logged every so many steps."""
    level = np.interp(STEPS, [0, 200, 600, 640, 1000], [0.1, 0.6, 0.6, 0.05, 0.05])
    reward = np.clip(level + np.random.default_rng(0).normal(0, 0.02, len(STEPS)), 0, None)
    rows = STEPS[every - 1 :: every]
    return assess(frame({"step": rows, "reward": reward[rows]}))


@pytest.mark.parametrize("every", [1, 5, 10])
def test_a_sparse_log_is_judged_over_the_same_steps(every):
    (alert,) = [a for a in crashed(every).alerts if a.rule == "reward-crash"]
    assert 620 <= alert.step <= 690
    assert f"over {max(10, 3 * every)} steps" in alert.message


@pytest.mark.parametrize("every", [5, 10])
def test_a_sparse_log_is_judged_live_as_it_is_afterwards(every):
    complete = crashed(every)
    for cut in (1, 2, 3, 5, 12, len(complete.phases) - 20):
        live = assess(complete.evidence.signals.iloc[:cut])
        assert live.phases == complete.phases[:cut]
        level = outcome(complete.evidence).level[:cut]
        np.testing.assert_array_equal(outcome(live.evidence).level, level)


@pytest.mark.parametrize(
    ("step", "stride"),
    [([], 1), ([7], 1), ([0, 10], 10), ([1, 10, 20], 9), ([0, 1, 11], 1), ([5, 10, 15, 16], 5)],
)
def test_the_stride_is_that_of_the_first_rows(step, stride):
    assert Cadence.of(np.array(step, dtype=np.int64)) == Cadence(stride)


def test_rows_are_never_more_than_the_steps_nor_fewer_than_a_few():
    window = MedianWindow(recent=2, gap=5, window=30, least=10)
    every, tenth = Cadence(1), Cadence(10)
    assert [every.rows(n) for n in (1, 2, 10, 40)] == [1, 2, 10, 40]
    assert [tenth.rows(n) for n in (1, 2, 10, 40)] == [1, 2, 3, 4]
    assert [tenth.spans(n) for n in (1, 10, 40)] == [10, 30, 40]
    assert every.median(window) == window
    assert tenth.median(window) == MedianWindow(recent=2, gap=3, window=10, least=10)
