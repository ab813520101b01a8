"""Groups of runs as one line with a band: against a slow twin, on the page and in a browser."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lldscope.figures.averages import lines_of, spread_of
from lldscope.figures.chart_figures import CHARTS, make_overlay, run_style
from lldscope.figures.series import smooth, x_axis
from lldscope.figures.view import Subject, View

REWARD = next(c for c in CHARTS if c.id == "reward")
GROUPS = {"a-0": "a", "a-1": "a", "b-0": "b"}


def subject(name: str, steps: range, seed: int) -> Subject:
    """A run with a gap, a NaN and an infinite number."""
    reward = np.random.default_rng(seed).normal(size=len(steps))
    reward[3], reward[5] = np.nan, np.inf
    table = pd.DataFrame({"step": steps, "reward": reward, "time": 10.0 * np.arange(len(steps))})
    return Subject(name, table, [], [], [], 2000)


@pytest.fixture
def three() -> list[Subject]:
    return [subject("a-0", range(40), 0), subject("a-1", range(10, 60, 2), 1),
            subject("b-0", range(30), 2)]


def test_a_group_is_the_mean_of_the_runs_that_have_a_step(three: list[Subject]) -> None:
    data = make_overlay(REWARD, three, set(GROUPS), View("step", 5, None, GROUPS))["data"]
    low, high, mean = data[:3]
    values: dict[int, list[float]] = {}
    for run in three[:2]:
        y = smooth(run.table["reward"].to_numpy(), 5)
        for step, value in zip(run.table["step"], y, strict=True):
            if np.isfinite(value):
                values.setdefault(step, []).append(value)
    steps = sorted(values)
    for trace, of in ((low, min), (high, max), (mean, np.mean)):
        assert trace["x"] == steps
        assert trace["y"] == pytest.approx([of(values[s]) for s in steps], rel=1e-4)
    assert [t["name"] for t in data] == [
        f"{g}, {what}" for g in "ab" for what in ("lowest run", "highest run", "mean")
    ]
    assert (mean["line"]["color"], mean["line"]["dash"]) == run_style(0)


def test_a_hidden_run_leaves_the_mean_and_a_run_without_group_stays_a_line(
    three: list[Subject],
) -> None:
    view = View("step", 1, None, {"a-0": "a", "a-1": "a"})
    data = make_overlay(REWARD, three, {"a-1", "b-0"}, view)["data"]
    assert [t["name"] for t in data][2:] == ["a, mean", "b-0"]
    assert lines_of(["a", "x"], {"x": "a"}) == {"a": ["a"], "a/": ["x"]}


def test_runs_are_met_by_step_also_where_the_axis_counts_time(three: list[Subject]) -> None:
    tables = [s.table for s in three[:2]]
    ys = [t["reward"].to_numpy() for t in tables]
    of = spread_of(tables, ys, x_axis(tables, "time"))
    step = sorted(set(tables[0]["step"]) & set(tables[1]["step"]))[0]
    times = [float(t.loc[t["step"] == step, "time"].iloc[0]) for t in tables]
    assert of["x"][step] * x_axis(tables, "time").divide == pytest.approx(np.mean(times))
