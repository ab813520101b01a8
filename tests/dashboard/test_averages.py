"""Groups of runs as one line with a band: against a slow twin, on the page and in a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.pages.compare_page import averaged_by, choice, compare_page, groups_of
from made_up_runs import write_step

import lldscope
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


def test_the_figure_is_valid_also_without_a_point(three: list[Subject]) -> None:
    for by in ("step", "time", "onset"):
        for chart in CHARTS:
            figure = make_overlay(chart, three, set(GROUPS), View(by, 10, None, GROUPS))
            go.Figure({k: figure[k] for k in ("data", "layout")})
            assert json.loads(json.dumps(figure)) == figure


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for group, dies in (("with <b>", False), ("without", True)):
        for seed in range(2):
            config = {"optim": {"lr": 1e-6 * (1 + dies)}, "seed": seed, "size": "0.5B <i>"}
            name = f"{group[:7]}-{seed}"
            with lldscope.Recorder(root / name, group=group, config=config) as recorder:
                for step in range(100 + 20 * seed):
                    write_step(recorder, step, dies=dies, at=1.7e9 + step)
    return root


def test_groups_are_offered_where_there_are_some(root: Path, tmp_path: Path) -> None:
    with lldscope.Recorder(tmp_path / "alone") as recorder:
        write_step(recorder, 0, dies=False, at=1.7e9)

    def page_of(place: Path) -> str:
        registry = RunRegistry(place)
        snapshots = [registry.snapshot(name) for name in sorted(registry.names())]
        content = compare_page(snapshots, {"average": ["group"]}, [])
        return json.dumps(content.to_plotly_json(), default=lambda c: c.to_plotly_json())

    assert "one line for" in page_of(root)
    assert "one line for" not in page_of(tmp_path)


def test_any_setting_makes_groups_and_a_run_without_it_stays_a_line(root: Path) -> None:
    registry = RunRegistry(root)
    snapshots = [registry.snapshot(name) for name in sorted(registry.names())]
    assert set(groups_of(snapshots, "config/optim.lr").values()) == {"lr 1e-06", "lr 2e-06"}
    assert set(groups_of(snapshots, "config/size").values()) == {"size 0.5B <i>"}
    assert groups_of(snapshots, "config/none") == groups_of(snapshots, "") == {}
    bare = replace(snapshots[0], info={})
    assert set(groups_of([bare, *snapshots[1:]], "config/seed")) == {
        s.subject.name for s in snapshots[1:]
    }
    assert averaged_by({"average": ["lr"]}) == ""
    (label,) = choice(snapshots, "config/seed")
    offered = json.loads(json.dumps(label, default=lambda c: c.to_plotly_json()["props"]))
    select = offered["children"][1]
    assert [(o["value"], o.get("selected")) for o in select["children"]] == [
        ("", None), ("group", None), ("config/optim.lr", None), ("config/seed", "selected"),
    ]
