"""What the server answers to a page that is open, asked as the browser asks, without a browser."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest
from lldscope_dashboard.app import make_app
from lldscope_dashboard.data import run_registry as registry
from lldscope_dashboard.pages.router import page
from made_up_runs import write_step
from recorded_steps import wait_until

import lldscope
from lldscope.figures import chart_figures, series
from lldscope.figures.chart_figures import make_chart, make_overlay
from lldscope.figures.view import Subject, View

CHARTS, WORDS = '"type":"chart"', '"type":"part"'  # in the outputs of the two callbacks


class Open:
    """An open page: what the browser holds of it, and its questions."""

    def __init__(self, root: Path, address: str) -> None:
        self.app = make_app(runs := registry.RunRegistry(root))
        url = urlsplit(address)
        parts = [*_walk(self.app.layout), *_walk(page(runs, url.path, url.query))]
        self.parts = {_key(c.id): c for c in parts}

    def __getitem__(self, part: str) -> Any:
        """The data of a store, or the value of a control."""
        item = self.parts[part]
        return item.value if hasattr(item, "value") else item.data

    def ask(self, output: str, **changed: Any) -> dict[str, Any]:
        """Change inputs, have the callback with this output called: id → what it answers."""
        for part, value in changed.items():
            setattr(self.parts[part], self._prop(part), value)
        call = next(c for c in self.app._callback_list if output in c["output"])
        targets = [o.rsplit(".", 1) for o in call["output"].strip(".").split("...")]
        outputs = [self._find(*one) for one in targets]
        body = {
            "output": call["output"],
            "outputs": outputs if len(outputs) > 1 else outputs[0],
            "inputs": [self._find(i["id"], i["property"]) for i in call["inputs"]],
            "state": [self._find(i["id"], i["property"]) for i in call["state"]],
            "changedPropIds": [f"{part}.{self._prop(part)}" for part in changed],
        }
        answer = self.app.server.test_client().post("/_dash-update-component", json=body)
        if answer.status_code == 204:
            return {}
        assert answer.status_code == 200, answer.text
        values = {k: next(iter(v.values())) for k, v in answer.json["response"].items()}
        for part in values.keys() & {"seen", "shown-versions"}:
            self.parts[part].data = values[part]
        return values

    def _prop(self, part: str) -> str:
        return "value" if part in ("x", "mean") or "{" in part else "data"

    def _find(self, one: str, prop: str) -> Any:
        """The part, or, of a pattern, all that there are, as the browser tells of them."""
        if "ALL" not in one:
            part = self.parts[one]
            return {"id": one, "property": prop, "value": getattr(part, prop, None)}
        kind = json.loads(one)["type"]
        parts = [p for k, p in self.parts.items() if k[0] == "{" and json.loads(k)["type"] == kind]
        props = ("value", "data")  # what callbacks are told of; outputs need no more
        return [
            {"id": p.id, "property": prop, "value": getattr(p, prop) if prop in props else None}
            for p in parts
        ]


def _key(one: Any) -> str:
    return one if isinstance(one, str) else json.dumps(one, sort_keys=True, separators=(",", ":"))


def _walk(component: Any) -> Any:
    if getattr(component, "id", None) is not None:
        yield component
    children = getattr(component, "children", None)
    for child in children if isinstance(children, list | tuple) else [children]:
        if hasattr(child, "to_plotly_json"):
            yield from _walk(child)


def answer_of(answer: dict[str, Any], part: str) -> Any:
    """What a part of the page was told; None if it was left out."""
    return answer.get(_key({"type": "part", "index": part}))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FRESH_SECONDS", -1.0)


def write(path: Path, steps: range) -> None:
    """Rows of a run, a step a second; a run that is there goes on."""
    with lldscope.Recorder(path, resume=path.exists(), trainer="made-up numbers") as recorder:
        for step in steps:
            write_step(recorder, step, dies=False, at=1e9 + step)


@pytest.mark.parametrize(
    ("address", "part"),
    [("/run/r", "alarms"), ("/run/r", "events"), ("/compare?run=r&run=other", "compared")],
)
def test_words_follow_new_rows_that_a_zoom_has_drawn(
    tmp_path: Path, address: str, part: str
) -> None:
    for name in ("r", "other"):
        write(tmp_path / name, range(3))
    tab = Open(tmp_path, address)
    assert answer_of(tab.ask(WORDS, tick=1), part) is None, "nothing is new"
    write(tmp_path / "r", range(3, 6))
    before = tab["seen"]["versions"]
    tab.ask(CHARTS, zoom={"x": "step", "range": [1, 4]})
    assert tab["seen"]["versions"] != before, "the charts have the new rows"
    assert answer_of(tab.ask(WORDS, tick=2), part) is not None
    assert answer_of(tab.ask(WORDS, tick=3), part) is None, "and nothing is new again"


@pytest.mark.parametrize("address", ["/run/r?x=time", "/compare?run=r&run=other&x=time"])
def test_a_zoom_on_time_stays_where_it_is_when_seconds_become_minutes(
    tmp_path: Path, address: str
) -> None:
    write(tmp_path / "r", range(177))  # 176 s
    write(tmp_path / "other", range(3))
    tab = Open(tmp_path, address)
    tab.ask(CHARTS, zoom={"x": "time", "range": [100, 170]})
    write(tmp_path / "r", range(177, 189))
    changes = next(iter(tab.ask(CHARTS, tick=1).values()))["operations"]
    set_to = {tuple(c["location"]): c["params"].get("value") for c in changes}
    assert set_to["layout", "meta"]["unit"] == 60, "by which the browser tells a zoom in seconds"
    assert set_to["layout", "xaxis"]["title"]["text"].endswith("(min)")
    assert set_to["layout", "xaxis"]["range"] == [100 / 60, 170 / 60]
    x = set_to["data", 0, "x"]
    assert (x[0], x[-1]) == pytest.approx((99 / 60, 171 / 60), abs=0.01)


@pytest.mark.parametrize(("by", "stretch"), [("time", (2000.0, 4000.0)), ("tokens", (3e4, 6e4))])
def test_a_zoom_means_the_same_in_every_unit(by: str, stretch: tuple[float, float]) -> None:
    reward = next(chart for chart in chart_figures.CHARTS if chart.lines[0].column == "reward")
    view, units = View(by, 1, stretch), set()
    for rows in (1000, 200_000):  # of 10 s and 150 tokens: min and h, thousands and millions
        step = np.arange(rows)
        table = {"step": step, "time": 10.0 * step, "tokens_seen": 150 * step, "reward": 1.0}
        run = Subject("r", pd.DataFrame(table), [], [], [], 2000)
        axis = series.x_axis([run.table], by)
        for figure in (make_chart(reward, run, view), make_overlay(reward, [run], {"r"}, view)):
            whole = [end * axis.divide for end in figure["layout"]["xaxis"]["range"]]
            assert whole == pytest.approx(stretch)
            x = figure["data"][0]["x"]
            assert (x[0] * axis.divide, x[-1] * axis.divide) == pytest.approx(stretch, rel=0.01)
        units.add(axis.divide)
    assert len(units) == 2


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.slow
def test_a_run_that_vanishes_leaves_the_others_of_a_comparison_alive(
    tmp_path: Path, restarted: bool
) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / name, range(3))
    tab = Open(tmp_path, "/compare?run=a&run=b&run=c&mean=1")
    chart = next(part for part in tab.parts if CHARTS in part)
    colors = {line["name"]: line["line"] for line in tab.parts[chart].figure["data"]}
    assert list(colors) == ["a", "b", "c"]
    shutil.rmtree(tmp_path / "b")
    if restarted:  # so that the run was never read
        tab.app, colors = (
            make_app(registry.RunRegistry(tmp_path)),
            {n: colors[n] for n in ("a", "c")},
        )
    write(tmp_path / "c", range(3, 6))
    answer = tab.ask(WORDS, tick=1)
    assert "There is no run “b”" in answer_of(answer, "unplaced")
    table = json.dumps(answer_of(answer, "compared"))
    assert [f'"/run/{name}"' in table for name in "abc"] == [True, not restarted, True]
    assert answer_of(tab.ask(WORDS, tick=2), "compared") is None, "nothing is new"
    assert tab.ask(CHARTS, tick=2), "the new rows"
    for changed in ({"mean": 5}, {"zoom": {"x": "step", "range": [1, 4]}}, {"x": "time"}):
        operations = tab.ask(CHARTS, **changed)[chart]["operations"]
        (data,) = (o["params"]["value"] for o in operations if o["location"] == ["data"])
        assert {line["name"]: line["line"] for line in data} == colors
    assert len(data[-1]["x"]) == 6
    write(tmp_path / "b", range(2))
    assert "There is no run" not in answer_of(tab.ask(WORDS, tick=3), "unplaced")
    assert tab.ask(CHARTS, tick=3)


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
        wait_until(lambda: place.snapshot is not None and place.snapshot.state.last_step == 1)
        monkeypatch.setattr(runs, "_renew", None)  # who asks now finds it read
        assert runs.snapshot("live").state.last_step == 1
        if place.ahead is not None:
            place.ahead.cancel()
