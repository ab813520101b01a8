"""The dashboard without a browser: numbers made ready, figures, pages, words for errors."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import lldscope_dashboard
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from dash import dcc
from lldscope_dashboard import server
from lldscope_dashboard.app import make_app
from lldscope_dashboard.data import run_registry as registry
from lldscope_dashboard.data import run_summaries as lines
from lldscope_dashboard.figures.increments import has, patch
from lldscope_dashboard.pages import compare_page, list_rows
from lldscope_dashboard.pages.components import card_class
from lldscope_dashboard.pages.frame import view_of
from lldscope_dashboard.pages.links import address
from lldscope_dashboard.pages.router import page
from made_up_runs import write_run

import lldscope
from lldscope.core.charts import select_charts
from lldscope.core.errors import LldscopeError, NewerSchema, RunNotFound, UsageError
from lldscope.core.schema import SIGNALS
from lldscope.diagnosis.rule import Alert, Severity
from lldscope.figures import series
from lldscope.figures.chart_figures import (
    CHARTS,
    make_chart,
    make_overlay,
    remarks,
    run_style,
)
from lldscope.figures.labels import alarm_labels
from lldscope.figures.series import smooth, x_axis
from lldscope.figures.view import Subject, View

DELTA = next(c for c in CHARTS if c.id == "delta")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dying, a healthy and a nested run; made-up numbers."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "dying", 140, dies=True)
    write_run(root / "healthy", 60)
    write_run(root / "seeds" / "one", 5, ends="failed")
    return root


@pytest.fixture(scope="module")
def dying(root: Path) -> Subject:
    return registry.RunRegistry(root).snapshot("dying").subject


def texts(component: Any) -> str:
    """Everything a page says, as one string."""
    return json.dumps(
        component.to_plotly_json(), default=lambda c: c.to_plotly_json(), ensure_ascii=False
    )


# -- numbers ------------------------------------------------------------------------------------


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


def test_zoom_sends_its_stretch_and_a_point_beyond_each_end() -> None:
    thinned = series.thin(np.arange(100.0), np.arange(100.0), (10.5, 20.5))
    assert thinned.x == list(range(10, 22))


def test_rounding_keeps_five_digits_of_any_size() -> None:
    y = np.array([0.0, 1.23456789e-12, -123456.789, 3e30])
    values = series.thin(np.arange(4.0), y).y
    assert values == pytest.approx([0.0, 1.2346e-12, -123460.0, 3e30], rel=1e-12)
    assert len(json.dumps(values[1])) <= len("1.2346e-12")


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


def test_an_axis_without_any_value_still_has_an_extent() -> None:
    table = pd.DataFrame({"step": [0, 1], "tokens_seen": [np.nan, np.nan]})
    low, high = series.x_axis([table], "tokens").extent
    assert low < high


# -- figures ------------------------------------------------------------------------------------


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


def test_charts_name_declared_signals_and_give_units() -> None:
    added = {"evidence", *(f"delta_of_action_{i}" for i in range(4))}
    for chart in CHARTS:
        assert chart.unit
        assert {line.column for line in chart.lines} <= {*SIGNALS.names, *added}


def test_the_dying_run_shows_its_phases_and_alarms(dying: Subject) -> None:
    assert {s.phase for s in dying.spans} >= {"decay", "collapse"}, "the made-up run must die"
    shapes = make_chart(DELTA, dying, View())["layout"]["shapes"]
    labels = [s.get("label", {}).get("text", "") for s in shapes]
    names = [text for text, s in zip(labels, shapes, strict=True) if s["type"] == "rect" and text]
    assert names == ["warm-up", "no LLD", "II decay", "collapse"]
    zoomed = make_chart(DELTA, dying, View(zoom=(100.0, 139.0)))["layout"]["shapes"]
    assert "III collapse" in [s.get("label", {}).get("text") for s in zoomed], "where it has room"
    names = [note["text"] for note in make_chart(DELTA, dying, View())["layout"]["annotations"]]
    assert any("lld-decay" in name for name in names)
    step = next(a.step for a in dying.alerts if a.rule == "lld-decay")
    assert any(s["type"] == "line" and s["x0"] == s["x1"] == step for s in shapes)


def test_bands_cover_the_run_without_gaps(dying: Subject) -> None:
    shapes = make_chart(DELTA, dying, View())["layout"]["shapes"]
    bands = [s for s in shapes if s["type"] == "rect" and s["y0"] == 0.0]
    assert bands[0]["x0"] == 0
    assert bands[-1]["x1"] == 139
    assert all(a["x1"] == b["x0"] for a, b in itertools.pairwise(bands))


def test_raw_values_stay_visible_behind_the_mean(dying: Subject) -> None:
    names = [t["name"] for t in make_chart(DELTA, dying, View(window=10))["data"]]
    assert "Δ, raw" in names
    assert "Δ, raw" not in [t["name"] for t in make_chart(DELTA, dying, View(window=1))["data"]]


def test_what_was_set_is_drawn_as_it_was_set(dying: Subject) -> None:
    ramp = np.linspace(0.0, 1e-3, len(dying.table))
    subject = replace(dying, table=dying.table.assign(lr=ramp))
    (chart,) = select_charts("rate")
    (line,) = make_chart(chart, subject, View(window=10))["data"]
    grouped = View("step", 10, None, {"dying": "a"})
    for view in (View(window=10), grouped):
        overlay = make_overlay(chart, [subject], {"dying"}, view)["data"]
        assert overlay[-1]["y"] == pytest.approx(ramp, abs=1e-8)
    assert line["y"] == pytest.approx(ramp, abs=1e-8)


def test_every_chart_shares_x_and_keeps_the_zoom(dying: Subject) -> None:
    view = View("step", 10, (20.0, 90.0))
    assert all(make_chart(c, dying, view)["layout"]["xaxis"]["range"] == [20, 90] for c in CHARTS)


def test_checkpoints_give_way_to_named_events_when_there_are_many(dying: Subject) -> None:
    def ticks(n: int) -> list[str]:
        saved = [{"kind": "checkpoint", "step": i} for i in range(n)]
        events = [*saved, {"kind": "lr <i>", "step": 3}, {"kind": "no step"}]
        busy = Subject("busy", dying.table, [], [], events, 2000)
        shapes = make_chart(CHARTS[0], busy, View())["layout"]["shapes"]
        return [s.get("label", {}).get("text", "").strip() for s in shapes]

    assert ticks(5) == [""] * 5 + ["lr &lt;i&gt;"]
    assert ticks(100) == ["lr &lt;i&gt;"]


def test_what_was_not_measured_is_said_in_words(dying: Subject) -> None:
    bare = Subject(
        "bare", dying.table.assign(delta_correct_trim=np.nan, evidence=np.nan), [], [], [], 2000
    )
    figure = make_chart(DELTA, bare, View())
    (note,) = figure["layout"]["annotations"]
    assert note["text"] == remarks(figure) == "Not measured in this run"
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


def test_twenty_runs_have_twenty_styles() -> None:
    assert len({run_style(i) for i in range(20)}) == 20


# -- increments -----------------------------------------------------------------------------------


def applied(figure: dict[str, Any], patch: Any) -> dict[str, Any]:
    """The figure after the operations of a patch, done one by one as the browser does them."""
    figure = json.loads(json.dumps(figure))
    for operation in patch.to_plotly_json()["operations"]:
        *way, last = operation["location"]
        place = figure
        for key in way:
            place = place[key]
        if operation["operation"] == "Assign":
            place[last] = operation["params"]["value"]
        elif operation["operation"] == "Extend":
            place[last] += operation["params"]["value"]
        else:
            assert operation["operation"] == "Delete"
            del place[last]
    return figure


def long_table(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    values = {c: rng.normal(size=rows) for c in SIGNALS.names if c not in ("step", "time")}
    values |= {c: np.ceil(np.abs(v)) for c, v in values.items() if c.startswith("n_")}  # counts
    values["reward"][rng.random(rows) < 0.1] = np.nan
    return pd.DataFrame({"step": np.arange(rows), "time": 10.0 * np.arange(rows), **values})


@pytest.mark.parametrize("rows", [0, 1, 2, 900, 2000, 2001, 9000])
@pytest.mark.parametrize("zoom", [None, (100.0, 5000.0)])
def test_increments_give_the_figure_that_would_be_drawn_anew(rows: int, zoom: Any) -> None:
    whole = long_table(rows + 40)
    for chart in (CHARTS[0], DELTA, CHARTS[2], CHARTS[4]):
        current, view = None, View("step", 10, zoom)
        for n in (rows, rows + 1, rows + 2, rows + 7, rows + 40):
            subject = Subject("r", whole[:n].assign(evidence=1.0), [], [], [], 2000)
            figure = make_chart(chart, subject, view)
            if current is not None:
                change = patch(figure, has(current))
                result = applied(current, change) if change else current
                for line, target in zip(result["data"], figure["data"], strict=True):
                    assert (line["x"], line["y"]) == (target["x"], target["y"])
                for part in ("shapes", "annotations", "xaxis", "yaxis"):
                    assert result["layout"][part] == figure["layout"][part]
            current = json.loads(json.dumps(figure))


def test_an_increment_is_small_and_no_whole_figure(dying: Subject) -> None:
    whole = long_table(50_001).assign(evidence=1.0)
    before, after = (
        make_chart(DELTA, Subject("r", whole[:n], [], [], [], 2000), View())
        for n in (50_000, 50_001)
    )
    operations = patch(after, has(before)).to_plotly_json()["operations"]
    assert len(json.dumps(operations)) < 3000 < len(json.dumps(after)) / 15
    operations = patch(make_chart(DELTA, dying, View())).to_plotly_json()["operations"]
    assert {next(iter(o["location"])) for o in operations} == {"data", "layout"}
    assert all(len(o["location"]) == 2 for o in operations if o["location"][0] == "layout")


def test_rows_that_a_resumed_attempt_replaces_are_sent_again() -> None:
    whole = long_table(300).assign(evidence=1.0)
    trim = whole["delta_correct_trim"].where(whole["step"] < 200, 5.0)
    other = whole.assign(delta_correct_trim=trim)
    before, after = (
        make_chart(DELTA, Subject("r", t, [], [], [], 2000), View("step", 1))
        for t in (whole, other)
    )
    assert applied(before, patch(after, has(before)))["data"][0]["y"] == after["data"][0]["y"]


def test_bins_stay_when_rows_are_added() -> None:
    y = np.random.default_rng(0).normal(size=9000)
    short, longer = (series.thin(np.arange(n, dtype=float), y[:n]) for n in (8100, 9000))
    assert short.settled > 1000
    assert longer.x[: short.settled] == short.x[: short.settled]
    assert len(longer.x) <= series.MOST_POINTS


# -- comparison -----------------------------------------------------------------------------------


def test_runs_are_aligned_where_decay_began_and_those_without_are_named(root: Path) -> None:
    looks = [registry.RunRegistry(root).snapshot(name) for name in ("dying", "healthy")]
    dying, healthy = (look.subject for look in looks)
    began = next(s.start_step for s in dying.spans if s.phase in ("decay", "collapse"))
    traces = make_overlay(DELTA, [dying, healthy], {"dying", "healthy"}, View("onset", 1))["data"]
    assert traces[0]["x"] == [step - began for step in range(140)]
    assert traces[1]["x"] == []
    text = compare_page.unplaced(looks, "onset")
    assert "healthy" in text
    assert "dying" not in text
    assert compare_page.unplaced(looks, "step") == ""


def test_many_runs_share_the_points_of_a_chart() -> None:
    runs = [Subject(f"r{i}", long_table(5000), [], [], [], 2000) for i in range(20)]
    figure = make_overlay(DELTA, runs, {r.name for r in runs}, View())
    assert sum(len(t["x"]) for t in figure["data"]) <= 8 * series.MOST_POINTS
    assert "of 5,000 points" in figure["layout"]["meta"]["remarks"]


def test_a_comparison_is_restored_by_its_address(root: Path) -> None:
    query = "?run=dying&run=healthy&hide=healthy&x=alarm&mean=25&zoom=-5,9"
    content = page(registry.RunRegistry(root), "/compare", query)
    stores = {c.id: getattr(c, "data", None) for c in walk(content) if isinstance(c, dcc.Store)}
    assert stores["seen"]["view"] == ["alarm", 25, [-5.0, 9.0], ["dying"]]
    assert stores["names"] == ["dying", "healthy"]


def walk(component: Any) -> Any:
    yield component
    children = getattr(component, "children", None)
    for child in children if isinstance(children, list | tuple) else [children]:
        if hasattr(child, "to_plotly_json"):
            yield from walk(child)


# -- the list -------------------------------------------------------------------------------------


def test_the_list_is_sorted_filtered_and_grouped_as_the_address_says(root: Path) -> None:
    summaries = lines.RunSummaries(registry.RunRegistry(root))

    def names(**query: str) -> list[Any]:
        _, has, _ = list_rows.run_rows(summaries, list_rows.choice_of(query), [])
        return [name for name, _ in has]

    summaries.now(60.0)
    assert names() == ["dying", "healthy", "seeds/one"]
    assert names(sort="-run") == ["seeds/one", "healthy", "dying"]
    assert names(sort="verdict")[0] == "dying"
    assert names(sort="step") == ["seeds/one", "healthy", "dying"]
    assert names(sort="-step") == ["dying", "healthy", "seeds/one"]
    assert names(sort="nonsense") == names()
    assert names(q="SEEDS") == ["seeds/one"]
    assert names(q="dying collapse") == ["dying"]
    assert names(verdict="critical") == ["dying"]
    assert names(q="nothing like that") == ["none"]
    assert names(by="group") == ["group", "dying", "healthy", "seeds/one"]


# -- recording -----------------------------------------------------------------------------------


def test_the_system_page_says_what_lies_on_disk_and_what_recording_costs(tmp_path: Path) -> None:
    with lldscope.Recorder(tmp_path / "r") as recorder:
        for step in range(3):
            recorder.step(
                step=step, time=1e9 + 10 * step, reward_sum=1.0, n_responses=2, seconds_record=0.5
            )
    text = texts(page(registry.RunRegistry(tmp_path), "/recording/r", ""))
    size = sum(p.stat().st_size for p in (tmp_path / "r" / "steps").glob("*.parquet"))
    for expected in (
        "500.0 ms, median",
        "5.00 %",
        "rows dropped",
        f"{size / 1e3:.1f} kB",
        "closed",
    ):
        assert expected in text
    part = next((tmp_path / "r" / "steps").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-7])
    text = texts(page(registry.RunRegistry(tmp_path), "/recording/r", ""))
    assert part.name in text
    assert "All runs" in texts(page(registry.RunRegistry(tmp_path), "/recording/nope", ""))


# -- pages --------------------------------------------------------------------------------------


def test_the_list_says_verdict_phase_and_age(root: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(list_rows, "READ_SECONDS", 60.0)
    text = texts(page(registry.RunRegistry(root), "/", ""))
    for expected in ("dying", "critical", "collapse", "healthy", "seeds/one", "stalled", "ago"):
        assert expected in text


def test_the_run_page_says_alarm_meaning_and_advice(root: Path) -> None:
    text = texts(page(registry.RunRegistry(root), "/run/dying", ""))
    for expected in (
        "lld-collapse",
        "firing since step",
        "means",
        "false alarms",
        "look-alikes",
        "Retriever",
    ):
        assert expected in text


def test_an_empty_root_says_so_and_fills_by_itself(tmp_path: Path) -> None:
    runs = registry.RunRegistry(tmp_path)
    assert "no runs here yet" in texts(page(runs, "/", ""))
    write_run(tmp_path / "first", 3)
    assert "/run/first" in texts(page(runs, "/", ""))


@pytest.mark.parametrize("name", ["a%41b", "50%", "a b/ü?#", "ä%2Fb"])
@pytest.mark.slow
def test_a_run_is_found_under_any_name(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / name, 3)
    listed = texts(page(registry.RunRegistry(tmp_path), "/", ""))
    for kind in ("run", "responses", "recording"):
        href = address(kind, name)
        assert kind != "run" or f'"{href}"' in listed
        assert "There is no run" not in texts(page(registry.RunRegistry(tmp_path), href, "")), href


def test_a_folder_whose_name_is_not_utf_8_takes_no_page_down(tmp_path: Path) -> None:
    write_run(tmp_path / "good", 3)
    write_run(tmp_path / "bad", 3)
    (tmp_path / "bad").rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    assert list(registry.RunRegistry(tmp_path).names()) == ["caf\\xe9", "good"]
    for path, phrase in (
        ("/", "/run/good"), ("/run/caf%5Cxe9", "is not UTF-8"), ("/run/caf%E9", "There is no run"),
        ("/compare?run=good&run=caf%5Cxe9", "is not UTF-8"),
    ):
        answer = client(tmp_path).get(path, headers={"Host": "localhost:8050"})
        assert answer.status_code == 200, path
        there, _, query = path.partition("?")
        assert phrase in texts(page(registry.RunRegistry(tmp_path), there, query)), path


@pytest.mark.parametrize(
    "path", ["/run/nope", "/run/..%2F..%2Fetc", "/run//etc/passwd", "/run/", "/nowhere", "/compare"]
)
def test_addresses_without_a_run_give_words(root: Path, path: str) -> None:
    text = texts(page(registry.RunRegistry(root / "seeds"), path, "?run=../dying"))
    assert "All runs" in text
    assert "collapse" not in text, "a name must not lead outside the root"


def test_a_shared_address_gives_its_view_and_nonsense_the_usual_one() -> None:
    assert view_of({"x": ["time"], "mean": ["25"], "zoom": ["1.5,9"]}) == View(
        "time", 25, (1.5, 9.0)
    )
    assert view_of({"x": ["evil"], "mean": ["-1"], "zoom": ["9,1"]}) == View()
    assert view_of({"zoom": ["nan,inf,2"]}) == View()


def test_untrusted_names_stay_text(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    with lldscope.Recorder(tmp_path / "r", name=name) as recorder:
        recorder.event("<b>odd</b>", step=1)
        recorder.step(step=1, reward_sum=1.0, n_responses=2)
    look = registry.RunRegistry(tmp_path).snapshot("r")
    figure = json.dumps([make_chart(c, look.subject, View()) for c in CHARTS])
    assert "<b>" not in figure
    app = make_app(registry.RunRegistry(tmp_path))
    assert "dangerously" not in json.dumps(app.layout.to_plotly_json(), default=str)


# -- registry --------------------------------------------------------------------------------------


def test_the_version_changes_with_rows_and_only_then(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(registry, "FRESH_SECONDS", 0.0)
    runs = registry.RunRegistry(tmp_path)
    with lldscope.Recorder(tmp_path / "r") as recorder:
        recorder.step(step=0, reward_sum=1.0, n_responses=2)
        _until(lambda: runs.snapshot("r").state.last_step == 0)
        first = runs.snapshot("r")
        assert runs.snapshot("r").version == first.version
        recorder.step(step=1, reward_sum=1.0, n_responses=2)
        _until(lambda: runs.snapshot("r").state.last_step == 1)
        assert runs.snapshot("r").version != first.version


def test_a_deleted_run_and_another_in_its_place(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(registry, "FRESH_SECONDS", 0.0)
    write_run(tmp_path / "r", 30)
    runs = registry.RunRegistry(tmp_path)
    assert runs.snapshot("r").state.last_step == 29
    shutil.rmtree(tmp_path / "r")
    with pytest.raises(RunNotFound, match="no run"):
        runs.snapshot("r")
    write_run(tmp_path / "r", 4)
    assert runs.snapshot("r").state.last_step == 3


def test_a_run_of_a_newer_schema_is_named_in_words(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", 3)
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"schema": 99}))
    with pytest.raises(NewerSchema):
        registry.RunRegistry(tmp_path).snapshot("r")
    runs = registry.RunRegistry(tmp_path)
    assert "Upgrade lldscope" in texts(page(runs, "/", ""))
    assert "Upgrade lldscope" in texts(page(runs, "/run/r", ""))


def test_damage_and_dropped_rows_are_said(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", 30)
    part = next((path / "steps").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-20])
    beat = next((path / "heartbeat").glob("*.json"))
    beat.write_text(
        json.dumps(json.loads(beat.read_text()) | {"dropped": {"actions: too late": 7}})
    )
    text = texts(page(registry.RunRegistry(tmp_path), "/run/r", ""))
    assert part.name in text
    assert "7 × actions: too late" in text


@pytest.mark.slow
def test_no_more_than_a_bounded_number_of_runs_stays_open(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(registry, "MOST_OPEN", 2)
    for name in "abcd":
        write_run(tmp_path / name, 2)
    runs = registry.RunRegistry(tmp_path)
    summaries = lines.RunSummaries(runs)
    assert len(summaries.now(60.0)) == 4
    assert not runs._places, "the list keeps nothing of short runs open"
    for name in "abcd":
        runs.snapshot(name)
    assert len(runs._places) == 2
    looked: list[str] = []
    monkeypatch.setattr(runs, "snapshot", looked.append)
    assert len(summaries.now(60.0)) == 4
    assert looked == [], "finished runs that have not changed are not read again"


def test_a_list_read_in_no_time_names_runs_and_fills_one_by_one(root: Path) -> None:
    shutil.rmtree(root / ".lldscope", ignore_errors=True)
    summaries = lines.RunSummaries(registry.RunRegistry(root))
    assert summaries.now(-1.0) == ["dying", "healthy", "seeds/one"]
    assert all(isinstance(line, lines.Summary) for line in summaries.now(60.0))


def test_a_run_that_takes_long_to_open_is_announced_and_opens(
    tmp_path: Path, monkeypatch: Any
) -> None:
    write_run(tmp_path / "r", 3)
    go_on = threading.Event()
    original = registry.open_run
    monkeypatch.setattr(registry, "open_run", lambda *a: (go_on.wait(60), original(*a))[1])
    runs = registry.RunRegistry(tmp_path, patience=0.1)
    assert "Loading 225 rows for the first time" in texts(page(runs, "/run/r", ""))
    assert lines.RunSummaries(runs).now(0.5) == ["r"]
    go_on.set()
    _until(lambda: "made-up numbers" in texts(page(runs, "/run/r", "")))


def test_a_look_is_kept_until_a_file_of_the_run_changes(tmp_path: Path, monkeypatch: Any) -> None:
    path = write_run(tmp_path / "runs" / "r", 140, dies=True)
    first = registry.RunRegistry(path.parent, cache=tmp_path / "cache").snapshot("r")
    calls: list[Any] = []
    real = registry.open_run
    monkeypatch.setattr(registry, "open_run", lambda *a: calls.append(a) or real(*a))
    again = registry.RunRegistry(path.parent, cache=tmp_path / "cache")
    look = again.snapshot("r")
    assert calls == []
    pd.testing.assert_frame_equal(look.subject.table, first.subject.table)
    age = look.state.last_row_age_seconds
    assert look.state == replace(first.state, last_row_age_seconds=age)
    assert age > first.state.last_row_age_seconds
    figures = [[make_chart(c, x.subject, View()) for c in CHARTS] for x in (look, first)]
    assert figures[0] == json.loads(json.dumps(figures[1]))
    assert len(again.run("r").sql("SELECT * FROM steps")) == 140
    part = next((path / "actions").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-7])
    snapshot = registry.RunRegistry(path.parent, cache=tmp_path / "cache").snapshot("r")
    damaged = snapshot.state.damaged
    assert f"actions/{part.name}" in damaged


# -- server -------------------------------------------------------------------------------------


def client(root: Path, token: str | None = None) -> Any:
    app = make_app(registry.RunRegistry(root))
    server.guard(app.server, "127.0.0.1", 8050, token)
    return app.server.test_client()


def test_pages_name_no_other_host(root: Path) -> None:
    answer = client(root).get("/run/dying", headers={"Host": "localhost:8050"})
    assert answer.status_code == 200
    body = answer.get_data(as_text=True).replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in body
    assert "https://" not in body
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]


def test_without_token_only_local_names_are_answered(root: Path) -> None:
    assert client(root).get("/", headers={"Host": "127.0.0.1:8050"}).status_code == 200
    assert client(root).get("/", headers={"Host": "[::1]:8050"}).status_code == 200
    assert client(root).get("/", headers={"Host": "evil.example:8050"}).status_code == 403


@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/_dash-dependencies", "/assets/style.css"])
def test_with_token_every_request_needs_it(root: Path, path: str) -> None:
    visitor = client(root, "s3cret")
    assert visitor.get(path).status_code == 401
    assert visitor.get(f"{path}?token=wrong").status_code == 401
    response = visitor.get(f"{path}?token=s3cret")
    assert response.status_code == 200
    cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert visitor.get(path).status_code == 200, "afterwards the cookie is enough"


def test_what_cannot_be_served_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Leave --no-token out"):
        server.serve(tmp_path, host="0.0.0.0")
    with pytest.raises(LldscopeError, match="no folder"):
        server.serve(tmp_path / "nope")
    with pytest.raises(UsageError, match="0 to 65535"):
        server.serve(tmp_path, port=70_000)


@pytest.mark.slow
def test_command_serves_a_root_and_ends_quietly(root: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lldscope", "dash", str(root), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    try:
        assert process.stderr is not None
        output = [process.stderr.readline() for _ in range(3)]
        address = output[0].split()[-1]
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.status == 200
        port = address.rsplit(":", 1)[1].partition("/")[0]
        busy = subprocess.run(
            [sys.executable, "-m", "lldscope", "dash", str(root), "--port", port],
            capture_output=True, text=True, timeout=60,
        )
        assert (busy.returncode, busy.stdout) == (1, "")
        assert busy.stderr.strip().count("\n") == 0
        assert f"ort {port} is in use" in busy.stderr
        assert "--port" in busy.stderr
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "ssh -L" in output[1]
    assert err == ""


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['dash'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'dash' else find(name, *a)\n"
        "sys.argv = ['lldscope', 'dash', '.']\n"
        "from lldscope.cli import main; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert result.returncode == 1
    assert "pip install 'lldscope[dash]'" in result.stderr
    assert result.stderr.strip().count("\n") == 0


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from lldscope_dashboard.cli import dash\n"
        "assert not {'dash', 'plotly', 'flask', 'pandas', 'duckdb'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ, timeout=60)


def _until(holds: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if holds():
                return
        except RunNotFound:
            pass
        time.sleep(0.1)
    raise AssertionError("waited in vain")


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


def test_the_axis_of_the_first_chart_fits_the_correct_responses(dying: Subject) -> None:
    table = dying.table.assign(incorrect_logp=np.linspace(-0.5, -9.0, len(dying.table)))
    figure = make_chart(CHARTS[0], replace(dying, table=table), View())
    low, high = figure["layout"]["yaxis"]["range"]
    correct = table["correct_logp"].dropna()
    assert low < correct.min() < correct.max() < high
    assert low > -5, "incorrect responses do not press the correct ones flat"
    assert "incorrect to −" in remarks(figure)
    assert "out of sight" in remarks(figure)


def test_x_axes_of_all_charts_line_up_and_shares_stay_above_0(dying: Subject) -> None:
    layouts = {c.id: make_chart(c, dying, View())["layout"] for c in CHARTS}
    assert len({tuple(layout["margin"].items()) for layout in layouts.values()}) == 1
    assert layouts["shares"]["yaxis"]["rangemode"] == "nonnegative"
