"""What the first answer holds: the page as HTML, charts as pictures, and Dash's first answers."""

from __future__ import annotations

import json
import re
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dash import dcc, html
from lldscope_dashboard.app import make_app
from lldscope_dashboard.data import run_registry as registry
from lldscope_dashboard.figures.chart_figures import HEIGHT, make_chart, make_overlay
from lldscope_dashboard.figures.charts import CHARTS
from lldscope_dashboard.figures.picture import make_picture
from lldscope_dashboard.figures.ticks import auto_range, ticks
from lldscope_dashboard.figures.view import Subject, View
from lldscope_dashboard.pages.first_view import to_html
from made_up_runs import write_run

import lldscope

LOG = {"type": "log", "nticks": 5}


# Ranges and labels as plotly.js 4.1.1 drew them, read from its `_fullLayout` and its texts.
@pytest.mark.parametrize(
    ("values", "axis", "seen", "labels"),
    [
        ([-1.999, -0.7], {}, (-2.0711666666666666, -0.6278333333333332), ["−2", "−1.5", "−1"]),
        ([0.0, 0.9], {}, (-0.05, 0.95), ["0", "0.5"]),
        ([0.42605, 0.56411], {}, (0.41838, 0.57178), ["0.45", "0.5", "0.55"]),
        ([80.0], {}, (79.0, 81.0), ["79", "79.5", "80", "80.5", "81"]),
        ([0.0, 1.0], {"nticks": 4, "rangemode": "tozero"}, (0.0, 1.0526315789), ["0", "0.5", "1"]),
        (
            [0.44944, 10.33],
            LOG,
            (-0.4229632003459481, 1.0897352437230714),
            ["5", "1", "2", "5", "10"],
        ),
    ],
)
def test_axes_end_and_are_labelled_as_plotly_does(
    values: list[float], axis: dict[str, Any], seen: Any, labels: list[str]
) -> None:
    axis = {"nticks": 5} | axis
    found = auto_range([values], 174, axis.get("type") == "log", "rangemode" in axis)
    assert found == pytest.approx(seen, abs=1e-9)
    assert [t.text for t in ticks(axis, found, 7.375)] == labels


@pytest.mark.parametrize(
    ("top", "labels"),
    [
        (4999, ["0", "1000", "2000", "3000", "4000"]),
        (99_999, ["0", "20k", "40k", "60k", "80k"]),
        (12, ["0", "2", "4", "6", "8", "10", "12"]),
    ],
)
def test_steps_are_labelled_as_plotly_does(top: float, labels: list[str]) -> None:
    assert [t.text for t in ticks({}, (0.0, top), 7.375)] == labels


def test_powers_of_ten_are_written_as_such() -> None:
    assert [(t.text, t.power) for t in ticks(LOG, (-2.5, 4.2), 7.375)] == [
        ("10", "−2"), ("1", ""), ("10", "2"), ("10", "4"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    path = write_run(tmp_path_factory.mktemp("runs") / "dying", 140, dies=True)
    return registry.RunRegistry(path.parent).snapshot("dying").subject


@pytest.mark.parametrize("chart", CHARTS, ids=lambda c: c.id)
@pytest.mark.parametrize("zoom", [None, (20.0, 60.0)])
def test_a_picture_shows_the_lines_of_its_figure(chart: Any, zoom: Any, subject: Subject) -> None:
    figure = make_chart(chart, subject, View(zoom=zoom))
    picture = ET.fromstring(make_picture(figure))
    paths = [p for p in picture.iter() if p.tag.endswith("path")]
    lines = [t for t in figure["data"] if t["x"] and t["mode"] == "lines"]
    assert len(paths) == len(lines)
    low, high = figure["layout"]["xaxis"]["range"]
    for path, line in zip(paths, lines, strict=True):
        assert path.get("stroke") == line["line"]["color"]
        steps = [int(n) for n in re.findall(r"-?\d+", path.get("d") or "")]
        points = np.cumsum(np.reshape(steps, (-1, 2)), axis=0)
        across = 1000 * (np.array(line["x"]) - low) / (high - low)
        assert points[:, 0].tolist() == np.rint(across).tolist()
        rise = -np.array(line["y"], dtype=float)
        assert points[rise.argmin(), 1] == points[:, 1].min()
        assert points[rise.argmax(), 1] == points[:, 1].max()
        assert points[:, 1].min() >= 0
        if (np.array(line["y"]) > 0).all():  # on a logarithmic axis the others lie far below
            assert points[:, 1].max() <= 4 * (HEIGHT - 56)


def test_runs_of_a_group_are_a_band_and_a_line(subject: Subject) -> None:
    other = replace(subject, name="other", table=subject.table.iloc[:100])
    view = View(groups={"dying": "g", "other": "g"})
    figure = make_overlay(CHARTS[2], [subject, other], {"dying", "other"}, view)
    paths = [p for p in ET.fromstring(make_picture(figure)).iter() if p.tag.endswith("path")]
    assert [p.get("d", "").endswith("z") for p in paths] == [True, False]
    assert "rgba(" in (paths[0].get("style") or "")


def test_a_run_with_one_step_is_a_dot(subject: Subject) -> None:
    one = replace(subject, table=subject.table.iloc[:1])
    drawn = [p.tag for p in ET.fromstring(make_picture(make_chart(CHARTS[2], one, View()))).iter()]
    assert drawn.count("circle") == 2
    assert "path" not in drawn


def test_a_live_run_is_read_ahead_of_who_asks_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(registry, "AHEAD_SECONDS", 0.2)
    monkeypatch.setattr(registry, "FRESH_SECONDS", 0.0)
    with lldscope.Recorder(tmp_path / "live") as recorder:
        recorder.step(step=0, time=time.time(), n_responses=1, reward_sum=1.0)
        recorder.flush()
        runs = registry.RunRegistry(tmp_path, patience=60.0)
        runs.snapshot("live")
        runs.snapshot("live")  # the first one opened it; this one has the next read ahead
        recorder.step(step=1, time=time.time(), n_responses=1, reward_sum=1.0)
        recorder.flush()
        monkeypatch.setattr(registry, "FRESH_SECONDS", 1000.0)
        place = runs._places["live"]
        monkeypatch.setattr(place, "at", -1000.0)
        end = time.monotonic() + 30
        while place.snapshot is None or place.snapshot.state.last_step != 1:
            assert time.monotonic() < end, "nobody has read it"
            time.sleep(0.05)
        monkeypatch.setattr(runs, "_renew", None)  # who asks now finds it read
        assert runs.snapshot("live").state.last_step == 1
        if place.ahead is not None:
            place.ahead.cancel()


def test_a_page_is_written_out_without_names_of_parts_and_with_text_as_text() -> None:
    page = html.Div(
        [
            html.H1("<script>alert(1)</script> & more", id="title", title='"quoted"'),
            html.Td("x", colSpan=2, style={"--sign": "#123", "marginTop": 3, "height": 4}),
            html.Img(src="data:,", alt=""),
            dcc.Store(id="seen", data={"secret": 1}),
            dcc.RadioItems({"step": "step", "time": "<b>"}, "time", className="segments"),
        ],
        className="all",
    )
    told = to_html(page)
    assert told.startswith('<div class="all"><h1 title="&quot;quoted&quot;">&lt;script&gt;')
    assert '<td colspan="2" style="--sign:#123;margin-top:3;height:4px">x</td>' in told
    assert '<img alt="" src="data:,">' in told
    assert "secret" not in told
    assert "id=" not in told
    assert told.count("<input") == 2
    assert re.search(r"selected.*checked.*&lt;b&gt;", told)


def test_the_first_answer_holds_page_and_layout_and_nothing_a_run_could_break_out_with(
    tmp_path: Path,
) -> None:
    name = "</script><script>alert(1)</script>{%scripts%}"
    with lldscope.Recorder(tmp_path / "evil", name=name) as recorder:
        recorder.step(step=0, n_responses=1, reward_sum=1.0)
    client = make_app(registry.RunRegistry(tmp_path)).server.test_client()
    answer = client.get("/run/evil", headers={"Host": "127.0.0.1"})
    text = answer.get_data(as_text=True)
    assert "<script>alert" not in text
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;{%scripts%}" in text
    assert text.count('class="picture"') == len(CHARTS)
    assert answer.headers["Cache-Control"] == "no-cache"
    for kind in ("layout", "dependencies"):
        found = re.search(f'<script type="application/json" id="_dash-{kind}">(.*?)</script>', text)
        assert found is not None
        given = json.loads(found[1])
        assert given
        if kind == "layout":
            assert name in json.dumps(given)
    assert 'id="first"' not in client.get("/", headers={"Host": "127.0.0.1"}).get_data(as_text=True)
