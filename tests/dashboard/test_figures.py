"""Tables to figures: numbers made ready, charts of one run and of several."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import lldscope_dashboard
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.figures.action_map import ACTION_MAP, make_action_map
from lldscope_dashboard.pages import compare_page
from lldscope_dashboard.pages.components import card_class
from made_up_runs import write_run

import lldscope
from lldscope.diagnosis.rule import Alert, Severity
from lldscope.explore.responses import action_map
from lldscope.figures import series
from lldscope.figures.averages import lines_of, spread_of
from lldscope.figures.chart_figures import CHARTS, in_words, make_chart, make_overlay, run_style
from lldscope.figures.marks import alarm_labels, alarm_lines
from lldscope.figures.series import smooth, x_axis
from lldscope.figures.view import Subject, View

DELTA, REWARD = (next(c for c in CHARTS if c.id == name) for name in ("delta", "reward"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "dying", 140, dies=True)
    write_run(root / "healthy", 60)
    return root


@pytest.fixture(scope="module")
def dying(root: Path) -> Subject:
    return RunRegistry(root).snapshot("dying").subject


def test_thinning_keeps_every_extreme() -> None:
    y = np.sin(np.arange(50_000) / 7)
    y[31_415], y[27_182] = 9.0, -9.0
    thinned = series.thin(np.arange(50_000.0), y)
    assert len(thinned.x) <= series.MOST_POINTS
    assert thinned.total == 50_000
    points = dict(zip(thinned.x, thinned.y, strict=True))
    assert points[31_415] == 9
    assert points[27_182] == -9
    assert thinned.x == sorted(thinned.x)


def test_points_not_measured_or_not_finite_are_not_drawn_and_counted() -> None:
    y = np.array([1.0, np.nan, np.inf, 4.0])
    thinned = series.thin(np.arange(4.0), y)
    assert (thinned.x, thinned.y) == ([0, 3], [1, 4])
    assert (thinned.total, thinned.not_finite) == (2, 1)


def test_trailing_mean_has_no_value_where_nothing_was_measured() -> None:
    mean = smooth(np.array([1.0, np.nan, 3.0, np.inf, 5.0]), 2)
    assert mean[[0, 2, 4]].tolist() == [1.0, 3.0, 5.0]
    assert np.isnan(mean[[1, 3]]).all()


def test_a_weighted_trailing_mean_is_one_over_responses() -> None:
    values, weights = np.array([1.0, np.nan, -9.0, 2.0]), np.array([10.0, np.nan, 1.0, 0.0])
    mean = smooth(values, 3, weights)
    assert mean == pytest.approx([1.0, np.nan, (10 * 1 - 9) / 11, -9.0], nan_ok=True)
    unknown = np.full(4, np.nan)
    assert smooth(values, 3, unknown) == pytest.approx(smooth(values, 3), nan_ok=True)


def test_steps_lie_where_their_rows_do_on_every_axis() -> None:
    table = pd.DataFrame(
        {"step": [0, 10, 20], "time": [100.0, 160.0, 340.0], "tokens_seen": [5, 9, 30]}
    )
    for by, expected in (("step", 15.0), ("time", 150.0), ("tokens", 19.5)):
        axis = series.x_axis([table], by)
        assert series.at_steps(table, axis, [15])[0] * axis.divide == pytest.approx(expected)


@pytest.mark.parametrize("by", ["step", "tokens", "time"])
@pytest.mark.parametrize("chart", CHARTS, ids=lambda c: c.id)
@pytest.mark.slow
def test_every_figure_is_valid_and_made_of_lists(chart: Any, by: str, dying: Subject) -> None:
    figure = make_chart(chart, dying, View(by, 10, None))
    go.Figure({k: figure[k] for k in ("data", "layout")})  # Plotly's own check
    for trace in figure["data"]:
        assert type(trace["x"]) is list, "Plotly packs arrays so that patches cannot extend them"
        assert all(math.isfinite(v) for v in trace["y"])
    assert json.loads(json.dumps(figure)) == figure


def test_the_dying_run_shows_its_phases_and_alarms(dying: Subject) -> None:
    assert {s.phase for s in dying.spans} >= {"decay", "collapse"}, "the made-up run must die"
    shapes = make_chart(DELTA, dying, View())["layout"]["shapes"]
    labels = [s.get("label", {}).get("text", "") for s in shapes]
    names = [text for text, s in zip(labels, shapes, strict=True) if s["type"] == "rect" and text]
    assert names == ["warm-up", "no LLD", "II decay", "collapse"]
    zoomed = make_chart(DELTA, dying, View(zoom=(100.0, 139.0)))["layout"]["shapes"]
    assert "III collapse" in [s.get("label", {}).get("text") for s in zoomed], "where it has room"
    names = [note["text"] for note in make_chart(DELTA, dying, View())["layout"]["annotations"]]
    assert any("lld-collapse" in name for name in names), "the gravest one is named"
    step = next(a.step for a in dying.alerts if a.rule == "lld-decay")
    assert any(s["type"] == "line" and s["x0"] == s["x1"] == step for s in shapes)


def test_what_was_not_measured_is_said_in_words(dying: Subject) -> None:
    bare = Subject(
        "bare", dying.table.assign(delta_correct=np.nan, evidence=np.nan), [], [], [], 2000
    )
    figure = make_chart(DELTA, bare, View())
    (note,) = figure["layout"]["annotations"]
    assert note["text"] == in_words(figure) == "Not measured in this run"
    assert card_class(figure) == "card chart unmeasured"
    # One line of three was not measured: it is not in the legend.
    assert card_class(make_chart(DELTA, dying, View())) == "card chart without-1"
    table = dying.table.assign(retention_delta=0.1)
    figure = make_chart(DELTA, replace(dying, table=table), View())
    assert card_class(figure) == "card chart"
    style = (Path(lldscope_dashboard.__file__).parent / "assets/style.css").read_text("utf-8")
    for i in range(max(len(chart.lines) for chart in CHARTS)):
        assert f".without-{i} .entry:nth-child({i + 1})" in style


def test_an_overlay_has_a_line_per_shown_run_in_its_own_style(dying: Subject) -> None:
    other = Subject("<b>x</b>", dying.table, [], [], [], 2000)
    data = make_overlay(DELTA, [dying, other], {"dying", "<b>x</b>"}, View())["data"]
    assert [t["name"] for t in data] == ["dying", "&lt;b&gt;x&lt;/b&gt;"]
    assert data[0]["line"]["color"] != data[1]["line"]["color"]
    assert len(make_overlay(DELTA, [dying, other], {"dying"}, View())["data"]) == 1


def test_runs_are_aligned_where_decay_began_and_those_without_are_named(root: Path) -> None:
    looks = [RunRegistry(root).snapshot(name) for name in ("dying", "healthy")]
    dying, healthy = (look.subject for look in looks)
    began = next(s.start_step for s in dying.spans if s.phase in ("decay", "collapse"))
    traces = make_overlay(DELTA, [dying, healthy], {"dying", "healthy"}, View("onset", 1))["data"]
    assert traces[0]["x"] == [step - began for step in range(140)]
    assert traces[1]["x"] == []
    text = compare_page.unplaced(looks, "onset")
    assert "healthy" in text
    assert "dying" not in text
    assert compare_page.unplaced(looks, "step") == ""


def alert(rule: str, severity: str, step: int) -> Alert:
    state = ((step, None),)
    return Alert(rule, Severity(severity), "firing", step, 1.0, 0.5, "", "", "", "", "", state)


def test_the_gravest_alarms_are_named_first_and_no_name_overlaps_another() -> None:
    alerts = [
        alert("entropy-surge", "warning", 50),
        alert("lld-decay", "warning", 51),
        alert("lld-collapse", "critical", 52),
        alert("reward-crash", "critical", 53),
        alert("grad-explosion", "warning", 54),
        alert("truncation", "warning", 95),
    ]
    table = pd.DataFrame({"step": np.arange(100.0)})
    labels = alarm_labels(table, alerts, x_axis([table], "step"), (0.0, 99.0))
    names = [label["text"].strip("◆▲ ") for label in labels]
    assert names[:2] == ["lld-collapse", "reward-crash"]
    assert "truncation" in names, "where there is room every alarm is named"
    assert not any("+" in name for name in names)
    assert all(label["yref"] == "paper" and label["y"] > 1 for label in labels)
    rows = [label["yshift"] for label in labels if label["x"] < 60]
    assert len(set(rows)) == len(rows), "names this close are one above the other"


def test_an_alarm_that_became_worse_is_drawn_where_it_fired() -> None:
    """As in the timeline, which counts from there, too."""
    worse = replace(alert("lld-collapse", "critical", 77), episodes=((69, None),))
    table = pd.DataFrame({"step": np.arange(100.0)})
    axis = x_axis([table], "step")
    (line,) = alarm_lines(table, [worse], axis, (0.0, 99.0))
    (label,) = alarm_labels(table, [worse], axis, (0.0, 99.0))
    assert line["x0"] == label["x"] == 69


def test_x_axes_of_all_charts_line_up_and_shares_stay_above_0(dying: Subject) -> None:
    layouts = {c.id: make_chart(c, dying, View())["layout"] for c in CHARTS}
    assert len({tuple(layout["margin"].items()) for layout in layouts.values()}) == 1
    assert layouts["shares"]["yaxis"]["rangemode"] == "nonnegative"


@pytest.mark.parametrize(("by", "stretch"), [("time", (2000.0, 4000.0)), ("tokens", (3e4, 6e4))])
def test_a_zoom_means_the_same_in_every_unit(by: str, stretch: tuple[float, float]) -> None:
    view, units = View(by, 1, stretch), set()
    for rows in (1000, 200_000):  # of 10 s and 150 tokens: min and h, thousands and millions
        step = np.arange(rows)
        table = {"step": step, "time": 10.0 * step, "tokens_seen": 150 * step, "reward": 1.0}
        run = Subject("r", pd.DataFrame(table), [], [], [], 2000)
        axis = series.x_axis([run.table], by)
        for figure in (make_chart(REWARD, run, view), make_overlay(REWARD, [run], {"r"}, view)):
            whole = [end * axis.divide for end in figure["layout"]["xaxis"]["range"]]
            assert whole == pytest.approx(stretch)
            x = figure["data"][0]["x"]
            assert (x[0] * axis.divide, x[-1] * axis.divide) == pytest.approx(stretch, rel=0.01)
        units.add(axis.divide)
    assert len(units) == 2


def test_the_map_of_actions_has_a_bar_per_cell(root: Path, dying: Subject) -> None:
    with lldscope.open_run(root / "dying") as run:
        cells = action_map(run)
    axis = x_axis([dying.table], "step")
    figure = make_action_map(cells, dying, axis)
    go.Figure({k: figure[k] for k in ("data", "layout")})
    (bars,) = figure["data"]
    assert len(bars["x"]) == len(cells)
    cell = cells.iloc[0]
    assert bars["customdata"][0].endswith(f"Δ {cell['delta']:+.3g} nats")
    assert bars["marker"]["color"][0] == pytest.approx(cell["delta"])
    empty = make_action_map(cells.head(0), dying, axis)
    assert empty["layout"]["meta"]["remarks"] == "Not measured in this run"
    assert ACTION_MAP.id == "action-map"


# -- groups of runs as one line with a band --------------------------------------------------------

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
