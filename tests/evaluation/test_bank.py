"""`lldscope evaluate` on a small bank, and the arithmetic behind its table."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.diagnosis.assess import DEFAULT_ARL, assess
from lldscope.evaluation.bank import LabelledRun, read_bank
from lldscope.evaluation.scoring import (
    ANY,
    EvaluatedRun,
    evaluate_run,
    fall_of,
    fall_row,
    poisson,
    score,
    wilson,
)

SAMPLES = Path(__file__).parents[2] / "sample_runs"


@pytest.fixture(scope="module")
def bank(tmp_path_factory) -> Path:
    """The sample runs under made-up labels: one as exported signals, the others as directories."""
    folder = tmp_path_factory.mktemp("bank")
    with lldscope.open_run(SAMPLES / "grpo") as run:
        run.signals().assign(run="exported").to_parquet(folder / "signals.parquet")
    grpo, llds = str(SAMPLES / "grpo"), str(SAMPLES / "grpo-llds")
    lines = [
        {"run": "exported", "outcome": "collapsed", "collapse_step": 90, "split": "development"},
        {"run": "good", "outcome": "held", "path": llds},
        {"run": "faulty", "outcome": "declined", "fault": "lr-jump", "path": grpo},
        {"run": "kept-back", "outcome": "held", "split": "test", "path": llds},
    ]
    (folder / "index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_evaluate_counts_the_alarms_of_the_rules(bank, lldscope_command):
    done = lldscope_command("evaluate", bank, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    with lldscope.open_run(SAMPLES / "grpo") as run:
        first_steps = {a.rule: a.episodes[0][0] for a in run.assess().alerts}
        dying, steps = first_steps, run.assess().rows
    with lldscope.open_run(SAMPLES / "grpo-llds") as run:
        good, healthy = {a.rule: a.episodes for a in run.assess().alerts}, run.assess().rows
    assert steps == healthy
    assert result["labels"] == {"collapsed": 1, "held": 1, "lr-jump": 1}  # the test run is not seen
    assert result["healthy_steps"] == healthy
    assert result["arl"] == DEFAULT_ARL
    first = next(r["first_alarm"] for r in result["runs"] if r["run"] == "exported")
    assert {rule: step for rule, step in first.items() if rule not in ANY} == dying
    assert [rule["rule"] for rule in result["rules"]][-len(ANY) :] == list(ANY)
    for rule in result["rules"][: -len(ANY)]:
        name = rule["rule"]
        assert rule["fired"]["collapsed"] == [int(name in dying), 1]
        assert rule["fired"]["lr-jump"] == [int(name in dying), 1]
        assert rule["fired"]["held"] == [int(name in good), 1]
        assert rule["false_alarms"] == len(good.get(name, ()))
        assert rule["warned"] == [int(dying.get(name, 90) < 90), 1]
        assert rule["missed"] == ([] if dying.get(name, 90) < 90 else ["exported"])
    decay = next(r for r in result["rules"] if r["rule"] == "lld-decay")
    assert decay["lead_median"] == 90 - dying["lld-decay"] > 0
    assert "\x1b" not in done.stderr


def evaluated(name, label, steps, alarms, collapse=None, fall=None) -> EvaluatedRun:
    return EvaluatedRun(
        LabelledRun(name, label, collapse, False, None, Path(name)), steps, alarms, fall
    )


def test_scores_agree_with_counting_by_hand():
    runs = [
        evaluated("a", "collapsed", 120, {"x": [30, 70]}, 100, 60),  # lead 70; 30 of 60
        evaluated("b", "collapsed", 120, {"x": [60]}, 80, 60),  # lead 20; not before the fall
        evaluated("c", "collapsed", 120, {"x": [100]}, 100),  # not before
        evaluated("d", "collapsed", 120, {}, 50),
        evaluated("e", "declined", 120, {"x": [5]}, None, 50),
        evaluated("f", "held", 300, {"x": [5, 90, 200]}),
        evaluated("h", "held", 300, {"x": [5]}, None, 20),  # recovered
        evaluated("g", "held", 200, {"y": [7]}),
    ]
    x, y = score(runs, ["x", "y"])
    assert x["fired"] == {
        "collapsed": [3, 4], "declined": [1, 1], "held": [1, 2], "recovered": [1, 1]
    }
    assert x["missed"] == ["c", "d"]
    assert x["false_alarms_per_1000_healthy_steps"] == pytest.approx(6.0)  # 3 in 500
    assert x["warned"] == [2, 4]
    assert (x["lead_median"], x["lead_range"]) == (45, [20, 70])
    assert x["lead_p10"] == pytest.approx(25)
    assert (y["false_alarms"], y["warned"], len(y["missed"])) == (1, [0, 4], 4)
    assert x["warned_of_fall"] == [3, 4]  # 0.5, 0.9 and 0.75 of the way before
    assert x["fall_lead_share_median"] == pytest.approx(0.75)
    # The median end is at step 90: x fired on f by then, y on g; h fell, and is no held run.
    assert (x["same_step"], x["false_by_same_step"]) == (90, [1, 2])
    assert y["false_by_same_step"] == [1, 2]
    assert score(runs[4:], ["x"])[0]["false_by_same_step"] == [0, 2]  # no end, no step
    nobody = score(runs[:1], ["x"])[0]
    assert math.isnan(nobody["false_alarms_per_1000_healthy_steps"])


def test_runs_labelled_by_evaluations_are_counted_by_them_alone(tmp_path):
    lines = [
        {"run": "a", "outcome": "degraded", "degraded_step": 50},
        {"run": "b", "outcome": "held", "degraded_step": None},
        {"run": "c", "outcome": "grey", "degraded_step": None},
    ]
    (tmp_path / "index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    a, b, c = read_bank(tmp_path)
    assert (a.end_step, b.end_step, c.end_step) == (50, None, None)
    falling = pd.DataFrame({"step": range(60), "reward": [1.0] * 30 + [0.1] * 30, "success": 0.5})
    assert fall_of(b, falling) is None
    judged = [EvaluatedRun(a, 100, {"x": [30]}), EvaluatedRun(b, 100, {"x": [60]}),
              EvaluatedRun(c, 100, {"x": [1]})]
    (x,) = score(judged, ["x"])
    assert x["fired"] == {"degraded": [1, 1], "held": [1, 1], "grey": [1, 1]}
    assert (x["lead_median"], x["healthy_steps"], x["false_by_same_step"]) == (20, 100, [0, 1])


@pytest.mark.parametrize(
    ("pieces", "row"),
    [
        ([(1.0, 20), (0.0, 30)], 22),  # (7 · 1 + 3 · 0) / 10 is the first mean under 0.75
        ([(1.0, 20), (0.0, 4), (1.0, 9)], None),  # nine means under it
        ([(1.0, 20), (0.0, 5), (1.0, 9)], 22),
        ([(0.5, 20), (1.0, 20), (0.7, 30)], 48),  # of the best so far
        ([(1.0, 20), (0.75, 40)], None),  # not under it
        ([(math.nan, 5), (1.0, 20), (0.0, 5), (math.nan, 1), (0.0, 30)], 40),  # ten with a mean
        ([(0.0, 50)], None), ([(-1.0, 20), (-2.0, 30)], None),  # of nothing there is no share
        ([(1.0, 5)], None), ([], None),
    ],
)
def test_a_reward_falls_where_ten_means_in_a_row_are_low(pieces, row):
    assert fall_row([level for level, steps in pieces for _ in range(steps)]) == row


def test_the_fall_of_a_run_is_reported(bank):
    exported = next(run for run in read_bank(bank) if run.name == "exported")
    result = evaluate_run(exported, DEFAULT_ARL)
    row = fall_row(exported.signals()["reward"])
    assert row is not None
    assert result.fall == exported.signals()["step"][row]
    grave = [a.step for a in assess(exported.signals()).alerts if a.severity == "critical"]
    assert min(result.fired["any critical"]) == min(grave)
    assert min(result.fired["any alarm"]) <= min(result.fired["any critical"])
    faulty = next(run for run in read_bank(bank) if run.name == "faulty")
    assert evaluate_run(faulty, DEFAULT_ARL).fall is None


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (1, 200)])
def test_wilson_intervals_agree_with_their_definition(k, n):
    """The limits of Wilson's interval are the shares at which k lies 1.96 standard errors away."""
    low, high = wilson(k, n)
    for p in (low, high):
        if 0 < p < 1:
            assert abs(k / n - p) / math.sqrt(p * (1 - p) / n) == pytest.approx(1.959964)
    assert low <= k / n <= high
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("k", [0, 1, 2, 5, 20])
def test_the_interval_of_a_count_is_close_to_the_exact_one(k):
    """At the limits, counts as far out as k have a probability of 2.5 %."""
    low, high = poisson(k)

    def at_most(count: int, mean: float) -> float:
        terms = (math.exp(-mean) * mean**i / math.factorial(i) for i in range(count + 1))
        return sum(terms)

    assert at_most(k, high) == pytest.approx(0.025, abs=0.004)
    if k:
        assert 1 - at_most(k - 1, low) == pytest.approx(0.025, abs=0.015)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "line 1 is not JSON"),
        ('{"outcome": "held"}', "has no run"),
        ('{"run": "a", "outcome": "died"}', "not one of held, declined, collapsed"),
        ('{"run": "a", "outcome": "collapsed"}', "has a collapse_step"),
        ('{"run": "a", "outcome": "held", "collapse_step": 4}', "has a collapse_step"),
        ('{"run": "a", "outcome": "degraded", "degraded_step": null}', "has a degraded_step"),
        ('{"run": "a", "outcome": "held"}\n{"run": "a", "outcome": "held"}', "more than one line"),
    ],
)
def test_errors_of_a_bank_are_explained(tmp_path, text, error):
    (tmp_path / "index.jsonl").write_text(text)
    with pytest.raises(LldscopeError, match=error):
        read_bank(tmp_path)
