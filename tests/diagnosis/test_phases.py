"""Phases: the paper's own curve, causality, collapse, logs that lack something, declared changes.

`PYTHONPATH=tests/helpers python tests/diagnosis/test_phases.py` prints the tables of
docs/phases.md.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from phase_runs import (
    CASE,
    CASES,
    DYING,
    HARDER,
    SAMPLES,
    WELL,
    frame,
    paper_figure,
    recorded_fault,
)
from rule_cases import simulate

import lldscope
from lldscope.core.schema import SIGNALS
from lldscope.diagnosis.alarms import condition_met, since_row
from lldscope.diagnosis.assess import Assessment, Judge, assess
from lldscope.diagnosis.causes import explained_elsewhere
from lldscope.diagnosis.conditions import accelerates
from lldscope.diagnosis.evidence import on_measured, restarts_of
from lldscope.diagnosis.phases import classify
from lldscope.diagnosis.registry import RULES
from lldscope.monitor.health import verdict
from lldscope.monitor.liveness import Liveness, liveness


def first_steps(result: Assessment) -> dict[str | None, int]:
    first: dict[str | None, int] = {}
    for span in result.spans():
        first.setdefault(span.phase, span.start_step)
    return first


def test_the_papers_curve_has_its_three_phases():
    """Decay between 60 and 95, collapse between 115 and 140, nothing earlier (§5.1, Fig. 2)."""
    result = assess(paper_figure())
    first = first_steps(result)
    assert list(first) == ["warmup", "stagnation", "decay", "collapse"]
    assert 60 <= first["decay"] <= 95
    assert 115 <= first["collapse"] <= 140
    assert result.phase == "collapse"  # latched through the rebound of steps 145–149
    assert result.grade == "level"
    assert all("nan" not in a.message for a in result.alerts)


@pytest.mark.parametrize("noise", [0.02, 0.04])
def test_the_papers_curve_with_noise(noise):
    steps = [first_steps(assess(paper_figure(noise=noise, seed=seed))) for seed in range(8)]
    assert all(f["decay"] >= 60 for f in steps)
    assert all(115 <= f["collapse"] < 145 for f in steps)  # the explosion
    assert sum(f["collapse"] <= 140 for f in steps) >= 7
    assert sum(f["decay"] <= 95 for f in steps) >= 7


def test_every_second_likelihood_of_the_papers_curve_is_enough_for_its_collapse():
    """It takes twice as long until the level is tested, so the decay is found later."""
    first = first_steps(assess(paper_figure(every=2)))
    assert 60 <= first["decay"] < 125 <= first["collapse"] <= 140


@cache
def recorded(name: str) -> pd.DataFrame:
    with lldscope.open_run(SAMPLES / name) as run:
        return run.signals()


SERIES = {
    "paper": paper_figure,
    "sample grpo": lambda: recorded("grpo"),
    "sample grpo-llds": lambda: recorded("grpo-llds"),
    **{name: lambda c=c: simulate(c, 1) for name, c in CASE.items()},
    **{p.stem: lambda p=p: recorded_fault(p.stem) for p in (CASES / "faults").glob("*.csv")},
}
LOST = ("delta_correct", "correct_logp", "reward", "entropy", "grad_norm")


@st.composite
def damaged_series(draw) -> tuple[pd.DataFrame, dict[int, str], int]:
    """A series with gaps, NaN and Inf, Δ from a step or up to a step on, declared changes and
    resumes, and a row to cut it at."""
    table = SERIES[draw(st.sampled_from(sorted(SERIES)))]().copy()
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = len(table)
    for name in draw(st.sets(st.sampled_from(LOST))):
        table.loc[rng.random(n) < draw(st.sampled_from([0.1, 0.5, 0.8])), name] = np.nan
    for name in draw(st.sets(st.sampled_from(LOST), max_size=2)):
        table.loc[rng.integers(0, n), name] = draw(st.sampled_from([np.inf, -np.inf]))
    start, end = sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    if draw(st.booleans()):
        mask = (table.index >= start) & (table.index < end)
        table.loc[~mask, "delta_correct"] = np.nan
    table.loc[table["delta_correct"].isna(), ["delta_correct_sum", "n_delta_correct"]] = np.nan
    table = table[rng.random(n) >= draw(st.sampled_from([0.0, 0.2]))].reset_index(drop=True)
    kinds = st.sampled_from(["data", "lr", "resume"])
    restarts = draw(st.dictionaries(st.sampled_from(table["step"].tolist()), kinds, max_size=3))
    return table, restarts, draw(st.integers(1, len(table)))


@given(damaged_series())
@settings(max_examples=15)
def test_live_and_replayed_answers_are_the_same(series):
    """Cut the series anywhere: the answers up to there do not change."""
    table, restarts, cut = series
    complete = assess(table, restarts=restarts)
    last = int(table["step"].iloc[cut - 1])
    live = assess(table.iloc[:cut], restarts={s: why for s, why in restarts.items() if s <= last})
    e, until = complete.evidence, live.evidence
    assert classify(until) == classify(e)[:cut]
    for name in ("has_delta", "has_level"):
        assert getattr(until, name).tolist() == getattr(e, name)[:cut].tolist()
    for name in ("value", "threshold", "evidence", "level_fall", "level_limit"):
        np.testing.assert_array_equal(getattr(until.decay, name), getattr(e.decay, name)[:cut])
    assert until.decay.guarantee() == e.decay.guarantee(cut - 1)
    assert explained_elsewhere(until).tolist() == explained_elsewhere(e)[:cut].tolist()
    alarms, expected = {a.rule: a for a in live.alerts}, {}
    for alert in complete.alerts:
        spans = [(a, b if b is not None and b <= last else None) for a, b in alert.episodes]
        if spans := tuple((a, b) for a, b in spans if a <= last):
            state = "firing" if spans[-1][1] is None else "resolved"
            expected[alert.rule] = replace(alert, state=state, episodes=spans)
    assert alarms.keys() == expected.keys()
    for rule, alert in expected.items():  # it may become worse later, and not at a step before
        alarm = alarms[rule]
        assert (alarm.state, alarm.episodes) == (alert.state, alert.episodes)
        is_same = repr(alarm) == repr(alert)  # NaN is not itself
        assert is_same if alert.step <= last else alarm.severity < alert.severity
    assert {a.rule for a in live.pending} == {
        rule.id for rule in RULES
        if condition_met(e, rule)[cut - 1] and since_row(e, rule)[cut - 1] < 0
    }
    assert all(a.state == "pending" and not a.episodes for a in live.pending)


@given(damaged_series(), st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(0, 100))
@settings(max_examples=10)
def test_answers_do_not_depend_on_when_somebody_looked(series, blocks, late):
    """Look after so many rows each, cut into other blocks, and have the last rows replaced once."""
    table, restarts, last = series
    judge, rows = Judge(), 0
    for number, block in enumerate(blocks):
        rows = min(rows + block, last)
        if number == late % len(blocks):
            wrong = table.iloc[:rows].copy()
            wrong.loc[max(rows - late, 0) :, list(LOST)] = 7.0
            judge.look(wrong, restarts)
        judge.look(table.iloc[:rows], restarts, replaced=max(rows - late, 0))
    live, whole = judge.look(table, restarts), assess(table, restarts=restarts)
    (words, numbers), (same_words, same_numbers) = parts(plain(live)), parts(plain(whole))
    assert words == same_words
    for number, same in zip(numbers, same_numbers, strict=True):
        # Sums of blocks round otherwise, and so may the last digit of a sentence.
        digit = 10.0 ** -len(number.partition(".")[2].partition("e")[0])
        assert float(number) == pytest.approx(float(same), rel=1e-9, abs=1.01 * digit)


def parts(answer: list) -> tuple[list[str], list[str]]:
    """The text of an answer and its decimals."""
    pieces = re.split(r"(\d+\.\d+(?:e-?\d+)?)", repr(answer))
    return pieces[::2], pieces[1::2]


def plain(result: Assessment) -> list:
    of = result.alerts, result.pending, result.spans(), result.look_alikes(), result.course
    return [*of, result.verdict, result.grade, result.account.boundaries]


@given(st.sampled_from(sorted(SERIES)), st.integers(0, 2**32 - 1))
@example("a run that is ruined before its twentieth row", 43637339)  # no entropy, and no trend yet
@settings(max_examples=10)
def test_steps_without_any_measurement_change_nothing(name, seed):
    table = SERIES[name]()
    rng = np.random.default_rng(seed)
    at = np.sort(rng.choice(len(table), 12, replace=False))
    empty = frame({"step": np.full(12, np.nan)})
    positions = np.concatenate([np.arange(len(table)), at - 0.5])
    padded = pd.concat([table, empty]).iloc[np.argsort(positions, kind="stable")]
    padded["step"] = np.arange(len(padded))  # before: NaN
    real = np.sort(positions) % 1 == 0
    phases = classify(assess(padded.reset_index(drop=True)).evidence)
    expected = classify(assess(table.assign(step=np.arange(len(table)))).evidence)
    assert np.array(phases, dtype=object)[real].tolist() == expected


# -- collapse --------------------------------------------------------------------------------------

DECAY = {
    "reward": [[0, 0.3], [60, 0.5], [200, 0.48]],
    "delta_correct": [[0, 0.3], [50, 0.2], [60, -0.2], [110, -0.4], [130, -1.5], [200, -1.5]],
    "entropy": [[0, 0.4], [200, 0.4]],
    "grad_norm": [[0, 0.4], [200, 0.4]],
}


def run_of(**signals: list) -> Assessment:
    case = {"signals": DECAY | signals, "noise": {"delta_correct": 0.1, "entropy": 0.005}}
    return assess(simulate(case, 0))


def test_a_decay_without_a_surge_is_no_collapse():
    assert run_of().phase == "decay"


@pytest.mark.parametrize(
    ("what", "signal"),
    [
        ("entropy", [[0, 0.4], [125, 0.4], [140, 1.2], [200, 1.5]]),
        ("grad_norm", [[0, 0.4], [125, 0.4], [130, 3.0], [200, 30.0]]),
    ],
)
def test_a_decay_that_accelerates_with_a_surge_is_a_collapse(what, signal):
    result = run_of(**{what: signal})
    assert 120 <= first_steps(result)["collapse"] <= 140
    assert result.phase == "collapse"


def test_a_surge_of_entropy_that_subsides_is_no_collapse():
    """Half as much again, as in a real run that lived on for 60 steps (entropy 0.25 to 0.39)."""
    surge = [[0, 0.4], [120, 0.4], [122, 0.7], [130, 0.7], [132, 0.4], [200, 0.4]]
    result = run_of(entropy=surge)
    assert "entropy-surge" in {a.rule for a in result.alerts}
    assert "collapse" not in first_steps(result)


def test_a_surge_while_the_fall_slows_down_is_no_collapse_yet():
    """The third condition of the death spiral is that the decay accelerates (Def. A.3)."""
    slowing = [[0, 0.3], [50, 0.2], [60, -1.5], [90, -1.2], [120, -0.4], [200, -0.2]]
    surges = [[0, 0.4], [122, 0.4], [130, 1.2], [200, 1.2]]
    assert first_steps(run_of(delta_correct=slowing, entropy=surges)).get("collapse", 200) > 160
    falls = [[0, 0.3], [60, 0.5], [120, 0.5], [140, 0.1], [200, 0.1]]
    crashed = run_of(delta_correct=slowing, entropy=surges, reward=falls)
    assert 125 <= first_steps(crashed)["collapse"] <= 140


def test_a_collapse_ends_only_when_reward_and_likelihood_have_recovered():
    surges = [[0, 0.4], [125, 0.4], [140, 1.2], [200, 0.4], [400, 0.4]]
    rebound = [*DECAY["delta_correct"][:-1], [150, -1.5], [160, 0.5], [400, 0.5]]
    for last, phase in ((0.2, "collapse"), (0.5, "recovered")):
        reward = [[0, 0.3], [60, 0.5], [130, 0.5], [150, 0.2], [200, last], [400, last]]
        assert run_of(entropy=surges, delta_correct=rebound, reward=reward).phase == phase


def test_a_number_that_is_not_finite_is_a_warning_at_once_and_critical_if_it_lasts():
    table = simulate(WELL, 0).iloc[:50]
    table.loc[49, "n_nonfinite"] = 1.0
    live = Liveness("live", None, 1.0)
    assert verdict(assess(table.iloc[:49]), live) == "healthy"
    assert verdict(assess(table), live) == "warning"
    table.loc[44:, "n_nonfinite"] = 1.0
    assert verdict(assess(table), live) == "critical"


def slow_median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2


def slow_acceleration(gain: list[float]) -> bool:
    """The last ten measured against the forty before, single ones cut to −5 and 1 of four times the
    median size of the forty."""
    values = [g for g in gain if g == g]
    then, now = values[-50:-10], values[-10:]
    if len(now) < 10 or len(then) < 10:
        return False
    unit = 4 * slow_median([abs(g) for g in then])
    losses = [sum(min(max(g, -5 * unit), unit) for g in x) / len(x) for x in (then, now)]
    return losses[1] < 0 and losses[1] < losses[0]


@pytest.mark.parametrize(("case", "signal"), [(DYING, "delta_correct"), (HARDER, "correct_logp")])
def test_acceleration_agrees_with_a_loop(case, signal):
    """By Δ, and without it by what the level gained since it was measured last."""
    table = simulate(case, 2)
    table.loc[np.random.default_rng(0).random(len(table)) < 0.3, signal] = np.nan
    if signal == "correct_logp":
        table = without(table, DELTA)
    gains = table[signal] if signal in DELTA else table[signal] - table[signal].ffill().shift()
    e = assess(table).evidence
    faster, mask = accelerates(e), e.has_delta if signal in DELTA else e.has_level
    for t in range(len(table)):
        expected = bool(mask[t]) and slow_acceleration(gains.tolist()[: t + 1])
        assert faster[t] == expected, t
    assert faster.any()


@given(
    st.lists(st.one_of(st.none(), st.integers(-9, 9)), max_size=30),
    st.lists(st.integers(0, 30), max_size=3),
)
def test_a_statistic_of_the_measured_rows_agrees_with_a_loop(values, edges):
    series = np.array([np.nan if v is None else v for v in values], dtype=float)
    parts = np.array(sorted(e for e in edges if e <= len(values)), dtype=np.int64)
    sums = on_measured(series, np.cumsum, parts, before=-1.0)
    total, last = 0, -1.0
    for t, v in enumerate(values):
        if t in parts:
            total, last = 0, -1.0
        if v is not None:
            total += v
            last = float(total)
        assert sums[t] == last


# -- logs that lack something ----------------------------------------------------------------------

DELTA = [n for n in SIGNALS.names if "delta" in n or n in ("lld_share", "displaced_share")]
LOGP = ["correct_logp", "incorrect_logp", "logp_gap", "logp_old", "engine_gap"]


def without(table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    return table.assign(**{c: np.nan for c in columns if c in table})


LOGS = {"everything": [], "levels, no Δ": DELTA, "no log-probabilities": DELTA + LOGP}
GRADES = {"everything": "delta", "levels, no Δ": "level", "no log-probabilities": "symptoms"}


def critical_at(result: Assessment) -> tuple[int | None, str]:
    """Step of the first critical alarm, and its rule."""
    worst = [(a.step, a.rule) for a in result.alerts if a.severity == "critical"]
    return min(worst, default=(None, ""))


@pytest.mark.parametrize("log", LOGS)
def test_a_real_collapse_is_seen_with_less_in_the_log(log):
    result = assess(without(recorded("grpo"), LOGS[log]))
    assert result.grade == GRADES[log]
    step, rule = critical_at(result)
    assert step is not None
    # From step 77 on the reward is under half of its best, whose noise has to be outweighed.
    assert 60 <= step <= (105 if log == "no log-probabilities" else 85)
    blind = log == "no log-probabilities"
    assert ({s.phase for s in result.spans()} <= {"warmup", None}) == blind
    assert rule == ("reward-crash" if blind else "lld-collapse")
    assert critical_at(assess(without(recorded("grpo-llds"), LOGS[log]))) == (None, "")


def test_the_grade_follows_what_is_measured():
    table = simulate(HARDER, 0)  # Δ and level, 200 steps
    late = table.copy()
    late.loc[:99, DELTA] = np.nan
    assert assess(late.iloc[:100]).grade == "level"
    assert assess(late).grade == "delta"
    partial = table.copy()
    partial.loc[60:, DELTA] = np.nan
    assert assess(partial.iloc[:100]).grade == "delta"  # a gap is no loss
    assert assess(partial.iloc[:115]).grade == "level"
    assert assess(without(table, [*DELTA, "correct_logp"])).grade == "symptoms"


def test_no_correct_response_left_is_not_a_log_without_log_probabilities():
    table = simulate(DYING, 0)
    table["success"] = table["reward"]
    died = table.copy()
    died.loc[140:, [*DELTA, "correct_logp"]] = np.nan
    died.loc[140:, "success"] = 0.0
    assert assess(died).grade == "delta"
    died.loc[140:, "success"] = 0.1
    assert assess(died).grade == "symptoms"
    died.loc[140:, "zero_signal_share"] = 1.0
    assert assess(died).grade == "delta", "without a mixed group there is no Δ"


def test_the_phase_is_warmup_until_the_level_has_a_baseline():
    phases = classify(assess(paper_figure()).evidence)
    assert phases[:40] == ["warmup"] * 40
    assert phases[41] != "warmup"


# -- declared changes ------------------------------------------------------------------------------


def test_a_declared_change_resets_the_baselines():
    """Sampling twice as hot from step 100 on: an entropy surge, unless it was declared."""
    case = WELL
    hot = case | {"signals": case["signals"] | {"entropy": [[0, 0.4], [99, 0.4], [100, 0.9]]}}
    table = simulate(hot, 0)
    table = pd.concat([table, table.iloc[[-1] * 40].assign(step=np.arange(101, 141))])
    table = table.reset_index(drop=True)
    assert "entropy-surge" in {a.rule for a in assess(table).alerts}
    assert "entropy-surge" not in {a.rule for a in assess(table, restarts={100: "lr"}).alerts}


def test_only_new_data_resets_the_best_reward():
    """A run that is resumed often cannot decline without an alarm."""
    harder = {"reward": [[0, 0.6], [99, 0.6], [100, 0.2], [160, 0.2]], "entropy": DECAY["entropy"]}
    table = simulate({"signals": harder, "noise": {"reward": 0.01}}, 0)
    results = {
        kind: "reward-crash" in {a.rule for a in assess(table, restarts={100: kind}).alerts}
        for kind in ("resume", "lr", "data")
    }
    assert results == {"resume": True, "lr": True, "data": False}


def test_declared_changes_are_read_from_events_and_attempts():
    events = [
        {"kind": "checkpoint", "step": 5, "attempt": 1},
        {"kind": "data_change", "step": 30, "attempt": 1},
        {"kind": "data_change", "step": 45, "attempt": 1},  # superseded: attempt 2 begins at 40
        {"kind": "lr_change", "step": 40, "attempt": 2},
        {"kind": "lr_change", "step": "soon", "attempt": 2},
        {"kind": "resume", "step": 40, "attempt": 2},
    ]
    assert restarts_of(events, {1: 0, 2: 40}) == {30: "data", 40: "lr"}
    assert restarts_of([], {1: 0, 2: 40, 3: 20}) == {20: "resume"}
    assert restarts_of([], {1: 0}) == {}


def test_the_assessment_of_a_resumed_run_has_its_restart(tmp_path):
    with lldscope.Recorder(tmp_path / "run") as recorder:
        for step in range(30):
            recorder.step(step=step, n_responses=4, reward_sum=2.0, n_tokens=8, entropy_sum=4.0)
        recorder.event("data_change", step=12)
    with lldscope.Recorder(tmp_path / "run", resume=True) as recorder:
        recorder.step(step=25, n_responses=4, reward_sum=2.0, n_tokens=8, entropy_sum=4.0)
    with lldscope.open_run(tmp_path / "run") as run:
        assert dict(run.assess().evidence.restarts) == {12: "data", 25: "resume"}


def test_means_of_delta_without_counts_are_averaged_by_step():
    table = frame({"reward": np.full(120, 0.4), "delta_correct": np.repeat([0.4, -1.5], 60)})
    table[["n_delta_correct", "delta_correct_sum"]] = np.nan
    (alarm,) = [a for a in assess(table).alerts if a.rule == "lld-decay"]
    assert "mean Δ " in alarm.message
    assert "nan" not in alarm.message
    assert assess(table).evidence.delta[-1] == pytest.approx(-1.5)


@pytest.mark.parametrize(
    ("ages", "since", "life"),
    [
        ([], 125, "live"),  # a model that loads, a first rollout
        ([], 3700, "stalled"),
        ([400, 100], 100, "live"),
        ([700, 400, 100], 700, "live"),  # steps of five minutes
        ([205, 200, 195], 400, "stalled"),  # steps of five seconds
        ([1005, 1000, 995], 200, "live"),  # resumed: this start has had no step yet
    ],
)
def test_the_time_limit_of_a_stall_follows_the_duration_of_steps(tmp_path, ages, since, life):
    now = time.time()
    with lldscope.Recorder(tmp_path / "run") as recorder:
        for step, age in enumerate(ages):
            recorder.step(step=step, time=now - age, n_responses=1, reward_sum=1.0)
        recorder.flush()
        with lldscope.open_run(tmp_path / "run") as run:
            run.info["attempts"][-1]["started"] = now - since
            assert liveness(run, run.assess(), run.heartbeats(), now).life == life


def test_verdicts_from_worst_to_best():
    dying = assess(simulate(DYING, 0))
    well = assess(simulate(WELL, 0))
    young = assess(simulate(WELL, 0).iloc[:5])
    live = Liveness("live", None, 1.0)
    dead = Liveness("stalled", "gone", 1e6)
    failed = Liveness("failed", "ValueError", 1.0)
    done = Liveness("finished", None, 1e9)
    assert verdict(dying, live) == verdict(dying, dead) == verdict(dying, done) == "critical"
    assert verdict(well, live) == "healthy"
    assert verdict(well, done) == "healthy"  # an ended run is not stalled for being old
    assert verdict(well, dead) == verdict(well, failed) == verdict(young, dead) == "stalled"
    assert verdict(young, live) == "insufficient"


def test_an_empty_run_has_no_phases_or_alarms():
    result = assess(frame({"reward": np.zeros(0)}))
    assert result.spans() == []
    assert result.alerts == []
    assert result.last_step is None


# -- the tables of docs/phases.md ------------------------------------------------------------------


def rows_of_logs() -> list[str]:
    rows = []
    for run, table in (("`sample_runs/grpo`", recorded("grpo")), ("Fig. 2", paper_figure())):
        for log, columns in LOGS.items():
            if (table["delta_correct"].isna().all(), log) == (True, "everything"):
                continue
            result = assess(without(table, columns))
            first = first_steps(result)
            rules = {a.rule: a.step for a in result.alerts}
            steps = [rules.get(r, "–") for r in ("entropy-surge", "grad-explosion")]
            step, rule = critical_at(result)
            cells = [result.grade, first.get("decay", "–"), first.get("collapse", "–"), *steps]
            rows.append(f"| {' | '.join(map(str, (run, log, *cells)))} | {step}, `{rule}` |")
    return rows


def test_the_table_of_logs_is_current():
    page = (Path(__file__).parents[2] / "docs" / "phases.md").read_text(encoding="utf-8")
    assert "\n".join(rows_of_logs()) in page


def main() -> None:
    print("\n".join(rows_of_logs()))
    for every, noise in ((1, 0.02), (1, 0.04), (1, 0.06), (1, 0.1), (2, 0.04), (5, 0.04)):
        tables = [paper_figure(every, noise, seed) for seed in range(100)]
        steps = [first_steps(assess(table)) for table in tables]
        decay = np.array([f.get("decay", np.inf) for f in steps])
        collapse = np.array([f.get("collapse", np.inf) for f in steps])
        inside = [(decay >= 60) & (decay <= 95), (collapse >= 115) & (collapse <= 140)]
        early = [decay < 60, collapse < 115]
        shares = [f"{100 * np.mean(x):.0f} %" for x in (*inside, *early)]
        middle = np.median(decay)
        cells = (every, noise, *shares, f"{middle:.0f}" if np.isfinite(middle) else "none")
        print("|", " | ".join(map(str, cells)), "|")


if __name__ == "__main__":
    main()
