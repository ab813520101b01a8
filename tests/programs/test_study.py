"""The study's rules, statistics, driver, bank and report, without training."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lldscope import open_run
from lldscope.core.schema import SIGNALS
from lldscope.evaluation.bank import read_bank
from lldscope.evaluation.scoring import moving_mean
from study import arms, bank, judged, report, risk
from study.label import label
from study.outcome import collapse_row, outcome
from study.stats import T975, holm, paired

SAMPLES = Path(__file__).parents[2] / "sample_runs"


# -- the rule -------------------------------------------------------------------------------------


def plain_mean(reward: list[float], t: int) -> float:
    return sum(reward[t - 9 : t + 1]) / 10 if t >= 9 else math.nan


def plain_collapse(reward: list[float]) -> int | None:
    """For every row anew: are this one and the nine after it under half of the best so far?"""
    means = [plain_mean(reward, t) for t in range(len(reward))]

    def low(t: int) -> bool:
        best = max((m for m in means[: t + 1] if not math.isnan(m)), default=math.nan)
        return means[t] < 0.5 * best

    for t in range(len(reward) - 9):
        if all(low(s) for s in range(t, t + 10)):
            return t
    return None


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(1, 15)), max_size=8),
    st.lists(st.integers(0, 60), max_size=2),
)
def test_collapse_is_what_the_rule_says(pieces, gaps):
    reward = [level for level, steps in pieces for _ in range(steps)]
    for gap in gaps:
        if gap < len(reward):
            reward[gap] = math.nan
    assert collapse_row(reward) == plain_collapse(reward)
    np.testing.assert_allclose(
        moving_mean(reward), [plain_mean(reward, t) for t in range(len(reward))], atol=1e-12
    )


# -- statistics -----------------------------------------------------------------------------------


@cache
def student(freedom: int) -> float:
    """The 97.5 % point of Student's t, from its density."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    x = np.linspace(0.0, 20.0, 200_001)
    density = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    below = 0.5 + np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)]) * x[1]
    return float(np.interp(0.975, below, x))


@pytest.mark.parametrize("n", range(2, 11))
def test_t_points(n):
    assert T975[n - 2] == pytest.approx(student(n - 1), abs=2e-3)


@given(st.lists(st.integers(0, 997).map(lambda k: k / 997), min_size=1, max_size=8))
def test_holm_rejects_what_its_steps_reject(ps):
    alpha, rejects = 0.05, set()
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        if ps[i] > alpha / (len(ps) - rank):
            break
        rejects.add(i)
    corrected = holm(ps)
    assert {i for i, p in enumerate(corrected) if p <= alpha} == rejects
    assert all(p >= raw for p, raw in zip(corrected, ps, strict=True))


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=7))
def test_sign_flip_test_counts_sign_patterns(differences):
    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    out = paired(differences)
    assert out.p_above == sum(x >= sum(differences) for x in sums) / len(sums)
    assert out.p_below == sum(x <= sum(differences) for x in sums) / len(sums)
    assert out.p == min(out.p_above, out.p_below)
    d = [float(x) for x in differences]
    error = statistics.stdev(d) / math.sqrt(len(d))
    assert out.high - out.mean == pytest.approx(student(len(d) - 1) * error, rel=1e-3, abs=1e-12)
    assert out.mean - out.low == pytest.approx(out.high - out.mean, abs=1e-9)
    assert out.above == sum(d > 0 for d in differences)


# -- plan and bank --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample_bank(tmp_path_factory) -> Path:
    """The two sample runs, exported."""
    folder = tmp_path_factory.mktemp("bank")
    for name in ("grpo", "grpo-llds"):
        bank.export(SAMPLES / name, {"run": name, "arm": name, "seed": 0}, folder)
    return folder


@pytest.mark.parametrize("name", ["grpo", "grpo-llds"])
def test_an_exported_run_is_judged_like_the_recorded_one(sample_bank, name):
    with open_run(SAMPLES / name) as run:
        recorded, assessed, actions = run.signals(), run.assess(), run.action_signals()
    recorded = recorded[: assessed.rows]  # the last evaluation is in the index
    stored = bank.exported_signals(name, sample_bank)
    for column in SIGNALS.names:
        np.testing.assert_allclose(
            stored[column].to_numpy(float), recorded[column].to_numpy(float), rtol=1e-6
        )
    again = bank.assess_exported(name, bank=sample_bank)
    assert again.spans() == assessed.spans()
    assert [(a.rule, a.episodes) for a in again.alerts] == [
        (a.rule, a.episodes) for a in assessed.alerts
    ]
    sizes = {f.stem: f.stat().st_size for f in sample_bank.glob("*.parquet")}
    assert sizes.keys() == {"signals", "windows"}
    assert sum(sizes.values()) < 2 * 40_000
    line = bank.index(sample_bank)[name]
    assert line["settings"]["seed"] == 0
    assert line["steps"] == len(recorded)
    assert line["outcome"] == outcome(recorded["reward"].to_numpy())
    # Δ by action and window, against the view of the recorded run
    windows = bank.exported_windows(name, sample_bank)
    row = windows.query("breakdown == 'action' and first_step == 20 and key == 1 and correct").iloc[
        0
    ]
    same = actions.query("20 <= step < 30 and action_index == 1 and correct")
    assert row["n"] == same["n_actions"].sum()
    assert row["delta_sum"] == pytest.approx((same["delta"] * same["n_delta"]).sum(), rel=1e-5)


# -- the report -----------------------------------------------------------------------------------


def test_pages_repeat_what_the_page_of_rates_says_in_short(tmp_path):
    summary = block(report.RATES.read_text("utf-8"), judged.BLOCKS[0])
    for page in report.SUMMARIES:
        assert block(page.read_text("utf-8"), judged.BLOCKS[0]) == summary, page
    other = tmp_path / "other.md"
    other.write_text(
        "a\n<!-- judged-summary -->\nold\n<!-- end of judged-summary -->\nb\n", "utf-8"
    )
    report.write_summaries(report.RATES, [other])
    assert other.read_text("utf-8") == (
        f"a\n<!-- judged-summary -->\n{summary}\n<!-- end of judged-summary -->\nb\n"
    )


def block(page: str, name: str) -> str:
    return page.split(f"<!-- {name} -->\n")[1].split(f"\n<!-- end of {name} -->")[0]


def by_run(folder: Path, table: str, *columns: str) -> dict[str, pd.DataFrame]:
    """The rows of a file of the bank, read at once."""
    rows = pd.read_parquet(folder / f"{table}.parquet", columns=["run", *columns])
    return dict(iter(rows.groupby("run")))


def test_every_line_of_the_index_has_its_files():
    """The bank in the repository is whole, and its outcomes are those of the rule."""
    signals, windows = by_run(arms.BANK, "signals", "reward"), by_run(arms.BANK, "windows")
    for name, line in bank.index().items():
        reward = signals[name]["reward"].to_numpy(float)
        assert line["outcome"] == outcome(reward), name
        assert len(reward) == line["steps"]
        assert name in windows
        assert line["split"] == arms.split(line["seed"])
        assert json.dumps(line["settings"])


@pytest.mark.parametrize(
    ("folder", "snapshots"), [(arms.ALARM_BANK, 1), (arms.SEED_BANK, arms.SNAPSHOTS)]
)
def test_runs_judged_by_evaluations_have_their_label(folder, snapshots):
    signals, evaluations = by_run(folder, "signals"), by_run(folder, "evaluations", "step", "right")
    for name, line in bank.index(folder).items():
        data = evaluations[name]
        expected = label(data["step"], np.stack(data["right"]), snapshots)
        assert (line["outcome"], line["degraded_step"]) == (expected.verdict, expected.step), name
        exact = {str(s): float(np.mean(r)) for s, r in zip(data["step"], data["right"],
                 strict=True)}
        assert line["em_greedy"] == pytest.approx(exact, abs=5.1e-5)  # kept to four digits
        assert len(signals[name]) == line["steps"]


def test_frozen_risk_score_is_causal_and_never_falls() -> None:
    run = next(r for r in read_bank(risk.ALARM_BANK) if r.label == "degraded")
    signals = run.signals()
    whole = risk.score(signals)
    assert (np.diff(whole) >= 0).all()
    assert whole[-1] > whole[0]
    half = len(signals) // 2
    np.testing.assert_array_equal(risk.score(signals.head(half)), whole[:half])
