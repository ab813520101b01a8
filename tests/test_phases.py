"""Phases and alarms: cases as data, the paper's own curve, and causality."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from lldscope.assess import Assessment, assess
from lldscope.check import Liveness, verdict
from lldscope.rules import RULES
from lldscope.rules.states import episodes
from lldscope.schema import SIGNALS

CASES = Path(__file__).parent / "cases"
RULE_CASES = yaml.safe_load((CASES / "rules.yaml").read_text(encoding="utf-8"))


def frame(signals: dict[str, np.ndarray]) -> pd.DataFrame:
    """A signals frame with the given columns; everything else was not measured."""
    n = len(next(iter(signals.values())))
    empty = {name: np.full(n, np.nan) for name in SIGNALS.names}
    table = pd.DataFrame({**empty, "step": np.arange(n), **signals})
    if "delta_correct" in signals:
        table["n_delta_correct"] = np.where(table["delta_correct"].isna(), 0, 10)
        table["delta_correct_sum"] = table["delta_correct"] * 10
    return table


def drawn(case: dict, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    end = max(point[0] for points in case["signals"].values() for point in points)
    steps = np.arange(end + 1)
    made = {}
    for name, points in case["signals"].items():
        line = np.interp(steps, *zip(*points, strict=True))
        made[name] = line + rng.normal(0, case.get("noise", {}).get(name, 0.0), len(steps))
    return frame(made)


@pytest.mark.parametrize("case", RULE_CASES, ids=[c["name"] for c in RULE_CASES])
@pytest.mark.parametrize("seed", range(3))
def test_case(case, seed):
    result = assess(drawn(case, seed))
    fired = {a.rule: a.step for a in result.alerts}
    for rule, (earliest, latest) in case.get("fires", {}).items():
        assert rule in fired, f"{rule} did not fire; {fired}"
        assert earliest <= fired[rule] <= latest, f"{rule} fired at {fired[rule]}"
    assert not set(case.get("quiet", ())) & set(fired), fired
    seen = [s.phase for s in result.spans()]
    assert not set(case.get("never", ())) & set(seen), seen
    remaining = iter(seen)
    assert all(phase in remaining for phase in case.get("phases", ())), seen
    for name, answer in case.get("look_alikes", {}).items():
        assert result.look_alikes()[name].answer == answer, name


def test_every_rule_has_a_case_that_fires_and_one_that_stays_quiet():
    fires = {rule for c in RULE_CASES for rule in c.get("fires", ())}
    quiet = {rule for c in RULE_CASES for rule in c.get("quiet", ())}
    assert {r.id for r in RULES} - fires == {"lld-stagnation"}  # fires on the paper's curve below
    assert quiet <= {r.id for r in RULES}


@pytest.fixture(scope="module")
def paper_curve() -> pd.DataFrame:
    """Figure 2, every step of it by interpolation; the gradient norm on its logarithm."""
    points = pd.read_csv(CASES / "paper_fig2.csv", comment="#")
    steps = np.arange(1, points["step"].max() + 1)
    return frame(
        {
            "step": steps,
            "reward": np.interp(steps, points["step"], points["reward_mean"]),
            "correct_logp": np.interp(steps, points["step"], points["correct_logp_per_token"]),
            "grad_norm": 10 ** np.interp(steps, points["step"], np.log10(points["grad_norm"])),
        }
    )


def test_the_papers_curve_has_its_three_phases(paper_curve):
    """Decay between 60 and 95, collapse between 115 and 140, nothing earlier (§5.1, Fig. 2)."""
    result = assess(paper_curve)
    first = {}
    for span in result.spans():
        first.setdefault(span.phase, span.start_step)
    assert 60 <= first["decay"] <= 95
    assert 115 <= first["collapse"] <= 140
    assert first["stagnation"] < first["decay"]
    assert result.phase == "collapse"  # latched through the rebound of steps 145–149
    assert result.grade == "level"
    assert all("nan" not in a.message for a in result.alerts)


def answers(result: Assessment) -> tuple:
    last = [(a.rule, a.state, a.step, a.value, a.episodes) for a in result.alerts]
    return result.phases, last, result.grade


@pytest.mark.parametrize("index", [0, 1, 3, 6, 7])
def test_live_and_replayed_answers_are_the_same(index):
    """Cut the series anywhere: what was said then is what the replay says of that step."""
    rng = np.random.default_rng(index)
    table = drawn(RULE_CASES[index], 1)
    if "delta_correct" in RULE_CASES[index]["signals"]:
        holes = rng.random(len(table)) < 0.2
        table.loc[holes, ["delta_correct", "delta_correct_sum"]] = np.nan
    whole = assess(table)
    for cut in rng.integers(1, len(table), 12):
        live = assess(table.iloc[:cut])
        assert live.phases == whole.phases[:cut]
        last_step = int(table["step"].iloc[cut - 1])
        known = {a.rule: a.step for a in whole.alerts if a.step <= last_step}
        assert {a.rule: a.step for a in live.alerts} == known


def test_alarm_states_go_through_pending_and_resolve():
    holds = np.array([0, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1, 1], dtype=bool)
    assert episodes(holds, for_steps=3, clear_steps=3) == [(5, 10)]
    assert episodes(holds, for_steps=2, clear_steps=3) == [(4, 10), (12, None)]
    assert episodes(holds[:7], for_steps=3, clear_steps=3) == [(5, None)]


def test_verdicts_from_worst_to_best():
    dying = assess(drawn(RULE_CASES[0], 0))
    well = assess(drawn(RULE_CASES[1], 0))
    young = assess(drawn(RULE_CASES[1], 0).iloc[:5])
    live = Liveness("live", None, 1.0)
    dead = Liveness("stalled", "gone", 1e6)
    failed = Liveness("failed", "ValueError", 1.0)
    done = Liveness("finished", None, 1e9)
    assert verdict(dying, live) == verdict(dying, dead) == verdict(dying, done) == "critical"
    assert verdict(well, live) == "healthy"
    assert verdict(well, done) == "healthy"  # an ended run is not stalled for being old
    assert verdict(well, dead) == verdict(well, failed) == verdict(young, dead) == "stalled"
    assert verdict(young, live) == "insufficient"


def test_an_empty_run_says_that_it_is_empty():
    result = assess(frame({"reward": np.zeros(0)}))
    assert result.spans() == []
    assert result.alerts == []
    assert not result.enough
    assert result.last_step is None
