"""Histograms by step: against a slow twin, on every axis, as a page, as CSV and in a browser."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from browsing import open_page
from lldscope_dashboard.app import make_app
from lldscope_dashboard.data import histograms
from lldscope_dashboard.data.histograms import HISTOGRAMS, read_bins
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.pages.drawing import charts_of, draw
from lldscope_dashboard.pages.router import page
from test_dashboard import texts, walk

import lldscope
from lldscope.core.errors import UsageError
from lldscope.figures.view import View

STEPS, ROLLOUTS = 260, 16
ADVANTAGE, LENGTH = HISTOGRAMS["histogram/advantage"], HISTOGRAMS["histogram/length"]


def write(path: Path) -> pd.DataFrame:
    """A run in which advantages and lengths drift; its responses as a table."""
    rng = np.random.default_rng(5)
    rows = []
    with lldscope.Recorder(path) as recorder:
        for step in range(3, 3 + STEPS):
            advantage = rng.normal(0.01 * step, 1.0, ROLLOUTS)
            advantage[0] = np.nan if step % 7 == 0 else advantage[0]
            length = rng.integers(10, 20 + step // 4, ROLLOUTS)
            one = {"advantage": advantage, "n_tokens": length}
            recorder.responses(step=step, response_id=list(range(ROLLOUTS)), group_id=0, **one)
            recorder.step(step=step, n_responses=ROLLOUTS, time=1e9 + 10 * step**1.5)
            rows.append(pd.DataFrame({"step": step, **one}))
    return pd.concat(rows, ignore_index=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def rows(root: Path) -> pd.DataFrame:
    with lldscope.Recorder(root / "other") as recorder:
        recorder.responses(step=0, response_id=0, n_tokens=7)
        recorder.step(step=0, n_responses=1)
    return write(root / "run")


@pytest.fixture
def registry(root: Path, rows: pd.DataFrame) -> RunRegistry:
    return RunRegistry(root)


@pytest.mark.parametrize(("chart", "column"), [(ADVANTAGE, "advantage"), (LENGTH, "n_tokens")])
@pytest.mark.parametrize("steps", [None, (100, 139)])
def test_bins_are_those_of_a_plain_count(
    registry: RunRegistry, rows: pd.DataFrame, chart: Any, column: str,
    steps: tuple[int, int] | None,
) -> None:
    bins = read_bins(registry.run("run"), chart, steps)
    values = rows[rows["step"].between(*(steps or (0, 9999)))].dropna(subset=[column])
    low, high = bins.cells["low"].min(), bins.cells["high"].max()
    for cell in bins.cells.itertuples():
        inside = values[values["step"].between(cell.first, cell.last)][column]
        below = -np.inf if cell.low == low else cell.low - 1e-9
        above = np.inf if cell.high == high else cell.high - 1e-9
        assert ((inside >= below) & (inside < above)).sum() == cell.n
    assert bins.cells["n"].sum() == bins.columns["n"].sum() == len(values)
    for one in bins.columns.itertuples():
        inside = values[values["step"].between(one.first, one.last)][column]
        assert one.median == pytest.approx(np.median(inside))
    assert len(bins.columns) <= histograms.ACROSS
    assert len(bins.cells) <= histograms.ACROSS * histograms.UP
    assert bins.every == 1


def test_of_many_rows_whole_steps_are_counted(
    registry: RunRegistry, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histograms, "MOST_ROWS", len(rows) // 5)
    bins = read_bins(registry.run("run"), LENGTH)
    assert bins.every == 5
    assert bins.columns["n"].sum() == STEPS // 5 * ROLLOUTS


@pytest.mark.parametrize("values", [[2.0], [0.0, 0.0], [1.0, 0.0], [-5.0, -5.0], []])
def test_few_or_equal_values_make_valid_bins(tmp_path: Path, values: list[float]) -> None:
    with lldscope.Recorder(tmp_path / "run") as recorder:
        recorder.responses(step=0, response_id=[0], reward=None)
        for step, value in enumerate(values):
            recorder.responses(step=step, response_id=1, reward=value, n_tokens=4)
            recorder.step(step=step, n_responses=1)
    registry = RunRegistry(tmp_path)
    for key in ("histogram/reward", "histogram/length"):
        chart = HISTOGRAMS[key]
        bins = read_bins(registry.run("run"), chart)
        assert bins.cells["n"].sum() == len(values)
        assert (bins.cells["high"] > bins.cells["low"]).all()
        if not values:
            continue
        snapshot = registry.snapshot("run")
        (figure,) = draw([snapshot], [chart], View())
        assert figure["layout"]["meta"]["measured"]
        go.Figure({k: figure[k] for k in ("data", "layout")})


@pytest.mark.parametrize("by", ["step", "time"])
def test_rectangles_meet_on_every_axis_and_zoom_reads_anew(registry: RunRegistry, by: str) -> None:
    snapshot = registry.snapshot("run")
    (chart,) = charts_of(["histogram/advantage"], [snapshot])
    (figure,) = draw([snapshot], [chart], View(by))
    assert json.loads(json.dumps(figure)) == figure
    bars, median = figure["data"]
    left = np.array(bars["x"]) - np.array(bars["width"]) / 2
    right = np.array(bars["x"]) + np.array(bars["width"]) / 2
    assert set(np.round(right, 6)) - {round(right.max(), 6)} <= set(np.round(left, 6))
    assert len(median["x"]) == len({round(v, 6) for v in bars["x"]})
    zoom = (50.0, 60.0) if by == "step" else (10 * (50**1.5 - 3**1.5), 10 * (60**1.5 - 3**1.5))
    (closer,) = draw([snapshot], [chart], View(by, 10, zoom))
    assert len(closer["data"][1]["x"]) == 11
    assert closer["layout"]["meta"]["remarks"].startswith("17")


def test_histograms_are_offered_of_what_was_recorded_and_not_in_comparisons(
    registry: RunRegistry,
) -> None:
    assert registry.snapshot("run").columns == ("histogram/advantage", "histogram/length")
    assert registry.snapshot("other").columns == ("histogram/length",)
    content = page(registry, "/run/run", "?chart=histogram%2Flength&chart=histogram%2Fdelta")
    ids = [c.id["index"] for c in walk(content) if isinstance(getattr(c, "id", None), dict)
           and c.id.get("type") == "chart"]
    assert ids[-1] == "histogram/length"
    for names in ("run=run", "run=run&run=other"):
        assert "histogram/" not in texts(
            page(registry, "/compare", f"?{names}&chart=histogram%2Flength")
        )


def test_a_histogram_that_takes_too_long_leaves_the_page(
    registry: RunRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lldscope_dashboard.pages import drawing

    def slow(*_: Any) -> None:
        raise UsageError("The query took longer than 20 s and was stopped.")

    monkeypatch.setattr(drawing, "read_bins", slow)
    text = texts(page(registry, "/run/run", "?chart=histogram%2Flength"))
    assert "took longer than 20 s" in text
    assert "cannot be shown" not in text


def test_the_bins_are_had_as_csv(registry: RunRegistry, rows: pd.DataFrame) -> None:
    client = make_app(registry).server.test_client()
    answer = client.get("/csv/run", query_string={"chart": "histogram/length"})
    table = pd.read_csv(io.StringIO(answer.text))
    assert list(table) == ["first", "last", "low", "high", "n"]
    assert table["n"].sum() == len(rows)
    missing = client.get("/csv/run", query_string={"chart": "histogram/ratio"})
    assert missing.status_code == 404


def test_ratio_and_delta_are_of_actions_and_of_correct_responses(tmp_path: Path) -> None:
    with lldscope.Recorder(tmp_path / "run") as recorder:
        recorder.responses(step=0, response_id=[0, 1], group_id=0, correct=[True, False])
        recorder.actions(
            step=0, response_id=[0, 1], action_index=0, n_tokens=[2, 4],
            logp_old_sum=[-4.0, -8.0], logp_inner_sum=[-4.0, -8.0 + 4 * np.log(2)],
            logp_post_sum=[-5.0, -1.0],
        )
        recorder.step(step=0, n_responses=2)
    run = RunRegistry(tmp_path).run("run")
    assert read_bins(run, HISTOGRAMS["histogram/delta"]).columns["median"].tolist() == [-1.0]
    (ratio,) = read_bins(run, HISTOGRAMS["histogram/ratio"]).columns["median"]
    assert ratio == pytest.approx(1.5)


@pytest.mark.browser
@pytest.mark.slow
def test_a_histogram_is_added_by_its_name_and_stays_in_the_address(
    chromium: Any, address: str, rows: pd.DataFrame
) -> None:
    bars = "document.querySelectorAll('.barlayer .point path').length"
    with open_page(chromium, address) as tab:
        tab.goto("/run/run")
        tab.get_by_role("button", name="Length, distribution").click()
        tab.wait_for_url("**chart=histogram%2Flength**")
        tab.locator(".barlayer .point path").first.wait_for(state="attached")
        assert tab.evaluate(bars) > 100
        card = tab.locator(".card.chart").last
        assert "Length, distribution" in card.inner_text()
        assert card.get_by_text("log y").count() == 0
        tab.locator("#x").get_by_text("time").click()
        tab.wait_for_url("**x=time**")
        tab.locator(".barlayer .point path").first.wait_for(state="attached")
