"""Windows are said in steps of training, however often a log has a row."""

from __future__ import annotations

import numpy as np
import pytest
from phase_runs import CASE_FILES
from rule_cases import frame, simulate

from lldscope.diagnosis.assess import Assessment, assess
from lldscope.diagnosis.evidence import Cadence
from lldscope.diagnosis.registry import RULES
from lldscope.diagnosis.rule import Alert

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
    assert f"over {max(5, 3 * every)} steps" in alert.message


@pytest.mark.parametrize(
    ("step", "stride"),
    [([], 1), ([7], 1), ([0, 10], 10), ([1, 10], 9), ([1, 10, 20], 10), ([1, 10, 19], 9),
     ([0, 1, 11], 1), ([5, 10, 15, 16], 5)],
)
def test_the_stride_is_that_of_the_first_rows(step, stride):
    assert Cadence.of(np.array(step, dtype=np.int64)) == Cadence(stride)


def test_rows_are_never_more_than_the_steps_nor_fewer_than_a_few():
    every, tenth = Cadence(1), Cadence(10)
    assert [every.rows(n) for n in (1, 2, 10, 40)] == [1, 2, 10, 40]
    assert [tenth.rows(n) for n in (1, 2, 10, 40)] == [1, 2, 3, 4]
    assert [tenth.spans(n) for n in (1, 10, 40)] == [10, 30, 40]


# -- every rule -----------------------------------------------------------------------------------

EVERY, SLOWER = 5, 4  # steps between two rows; × the steps of a case, so that enough rows are left
# What is seen within a step of training, which a row every five steps does not show.
OF_SINGLE_STEPS = {"step-change", "reward-parsing", "nonfinite", "lr-jump"}
# The tests on Δ take evidence of each row, so a fifth of the rows takes longer.
OF_EVIDENCE = {"lld-stagnation", "lld-decay", "retention-loss", "lld-collapse"}
ROWS_LATE = {True: 16, False: 9}  # by which an alarm may differ, in rows of the sparse log
SLOW = {"score-flat": 32}  # a slow rise is clear of its noise after as many rows, however far apart
# Four times as slow the cases of these are no surge any more.
SURGES = {
    name: [{"name": name, "fires": {name: []}, "noise": {signal: level / 20},
            "signals": {signal: [[0, level], [100, level], [105, 6 * level], [200, 6 * level]]}}]
    for name, signal, level in (("entropy-surge", "entropy", 0.4), ("kl-explosion", "kl", 0.01))
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", sorted({r.id for r in RULES} - OF_SINGLE_STEPS))
def test_a_log_with_a_row_every_five_steps_gives_the_same_alarms_at_the_same_steps(rule):
    judged = 0
    for case in SURGES.get(rule, CASE_FILES[rule]):
        if rule not in case.get("fires", ()):
            continue
        slower = {n: [[SLOWER * t, v] for t, v in points] for n, points in case["signals"].items()}
        signals = simulate(case | {"signals": slower}, 0)
        restarts = {SLOWER * step: kind for step, kind in case.get("restarts", {}).items()}
        full, sparse = (
            _alert(rule, assess(table, restarts=restarts))
            for table in (signals, signals.iloc[EVERY - 1 :: EVERY].reset_index(drop=True))
        )
        if full is None:  # four times as slow it is no fault any more
            continue
        judged += 1
        assert sparse is not None, case["name"]
        assert sparse.severity == full.severity, case["name"]
        late = abs(sparse.step - full.step)
        rows = SLOW.get(rule, ROWS_LATE[rule in OF_EVIDENCE])
        assert late <= EVERY * rows, (case["name"], late)
    assert judged


def _alert(rule: str, assessment: Assessment) -> Alert | None:
    return next((a for a in assessment.alerts if a.rule == rule), None)
