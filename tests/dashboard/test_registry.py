"""Runs kept open: snapshots, the list's summaries, what is read once and what is read again."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from lldscope_dashboard.data import run_registry as registry
from lldscope_dashboard.data import run_summaries as lines
from lldscope_dashboard.pages.router import page
from made_up_runs import write_run
from page_content import texts
from recorded_steps import wait_until

from lldscope.figures.chart_figures import CHARTS, make_chart
from lldscope.figures.view import View


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for name in ("dying", "healthy", "seeds/one"):
        write_run(root / name, 5)
    return root


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


def test_a_list_read_in_no_time_names_runs_and_fills_one_by_one(
    root: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    summaries = lines.RunSummaries(registry.RunRegistry(root))
    names = ["dying", "healthy", "seeds/one"]
    assert summaries.now(-1.0) == [lines.Summary(name, name) for name in names]
    assert all(line.state for line in summaries.now(60.0))


def test_a_run_that_takes_long_to_open_is_announced_and_opens(
    tmp_path: Path, monkeypatch: Any
) -> None:
    write_run(tmp_path / "r", 3)
    go_on = threading.Event()
    original = registry.open_run
    monkeypatch.setattr(registry, "open_run", lambda *a: (go_on.wait(60), original(*a))[1])
    runs = registry.RunRegistry(tmp_path, patience=0.1)
    assert "Loading 225 rows for the first time" in texts(page(runs, "/run/r", ""))
    assert lines.RunSummaries(runs).now(0.5) == [lines.Summary("r", "r")]
    go_on.set()
    wait_until(lambda: "made-up numbers" in texts(page(runs, "/run/r", "")))


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
