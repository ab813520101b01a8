"""What the server answers to a page that is open, asked as the browser asks, without a browser."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from lldscope_dashboard import callbacks
from lldscope_dashboard.data import run_registry as registry
from made_up_runs import write_step
from open_page import Open, key

import lldscope

REFRESH, CHARTS = "seen.data", '"type":"chart"'  # in the outputs of a callback, and in ids


def answer_of(answer: dict[str, Any], part: str) -> Any:
    """What a part of the page was told; None if it was left out."""
    return answer.get(key({"type": "part", "index": part}))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FRESH_SECONDS", -1.0)


def write(path: Path, steps: range) -> None:
    """Rows of a run, a step a second; a run that is there goes on."""
    with lldscope.Recorder(path, resume=path.exists(), trainer="made-up numbers") as recorder:
        for step in steps:
            write_step(recorder, step, dies=False, at=1e9 + step)


@pytest.mark.parametrize(
    ("address", "part"), [("/run/r", "alarms"), ("/compare?run=r&run=other", "compared")]
)
def test_charts_and_words_follow_new_rows_and_nothing_else_is_sent(
    tmp_path: Path, address: str, part: str
) -> None:
    for name in ("r", "other"):
        write(tmp_path / name, range(3))
    tab = Open(tmp_path, address)
    chart = next(one for one in tab.parts if CHARTS in one)
    answer = tab.ask(REFRESH, tick=1)
    assert chart not in answer, "nothing is new"
    write(tmp_path / "r", range(3, 6))
    answer = tab.ask(REFRESH, tick=2)
    assert answer[chart]["data"][0]["x"][-1] == 5, "the charts have the new rows"
    assert answer_of(answer, part) is not None
    assert chart not in tab.ask(REFRESH, tick=3), "and nothing is new again"
    write(tmp_path / "r", range(6, 9))
    answer = tab.ask(REFRESH, drawing={"zoom": ["1,4"]})
    assert answer[chart]["layout"]["xaxis"]["range"] == [1, 4]
    assert answer_of(answer, part) is not None, "words follow rows that a zoom has drawn"


def test_charts_are_added_and_removed_by_the_metrics_that_are_chosen(tmp_path: Path) -> None:
    write(tmp_path / "r", range(12))
    tab = Open(tmp_path, "/run/r")

    def cards(*more: str) -> list[str]:
        answer = tab.ask("cards.children", more=[*more])["cards"]
        return [card["props"]["id"]["index"] for card in answer]

    before = [json.loads(key)["index"] for key in tab.parts if '"type":"card"' in key]
    assert cards("success", "no-such", "entropy") == [*before, "success"], "that there are, once"
    assert cards() == before


def test_a_run_that_vanishes_leaves_the_others_of_a_comparison_alive(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / name, range(3))
    tab = Open(tmp_path, "/compare?run=a&run=b&run=c&mean=1")
    chart = next(part for part in tab.parts if CHARTS in part)
    colors = {line["name"]: line["line"] for line in tab.parts[chart].figure["data"]}
    assert list(colors) == ["a", "b", "c"]
    shutil.rmtree(tmp_path / "b")
    colors = {n: colors[n] for n in ("a", "c")}
    write(tmp_path / "c", range(3, 6))
    answer = tab.ask(REFRESH, tick=1)
    assert "There is no run “b”" in json.dumps(answer_of(answer, "notices"), ensure_ascii=False)
    table = json.dumps(answer_of(answer, "compared"))
    assert [f'"/run/{name}"' in table for name in "abc"] == [True, False, True]
    for drawing in ({"mean": ["5"]}, {"zoom": ["1,4"]}, {"x": ["time"]}):
        data = tab.ask(REFRESH, drawing=drawing)[chart]["data"]
        assert {line["name"]: line["line"] for line in data} == colors
    assert len(data[-1]["x"]) == 6
    write(tmp_path / "b", range(2))
    answer = tab.ask(REFRESH, tick=3)
    assert answer_of(answer, "notices") == []


def test_browsers_that_ask_the_same_get_one_answer(tmp_path: Path, monkeypatch: Any) -> None:
    write(tmp_path / "r", range(3))
    monkeypatch.setattr(registry, "FRESH_SECONDS", 1e6)
    drawings: list[int] = []

    def draw(*what: Any) -> Any:
        drawings.append(1)
        return drawing(*what)

    drawing = callbacks.draw
    monkeypatch.setattr(callbacks, "draw", draw)
    tab = Open(tmp_path, "/run/r")

    def tick(number: int, *before: str, **view: Any) -> Any:
        tab.parts["seen"].data = [*before]
        tab.parts["drawing"].data = view
        return tab.ask(REFRESH, tick=number)

    first = tick(1, "older", "story")
    assert tick(2, "oldest", "story") == first
    assert len(drawings) == 1
    assert tick(3, "older", "story", x=["time"]) != first, "another view"
    assert len(drawings) == 2
    now = first["seen"]
    assert tick(4, *now) != first, "one that has seen it is told less"
    assert len(drawings) == 2
    monkeypatch.setattr(registry, "FRESH_SECONDS", -1.0)
    write(tmp_path / "r", range(3, 5))
    assert tick(5, "older", "story")["seen"] != now, "new rows"
    assert len(drawings) == 3
