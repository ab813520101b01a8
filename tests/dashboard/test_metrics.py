"""Any metric as a chart: found, drawn, kept in the address, as CSV."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lldscope_dashboard.app import make_app
from lldscope_dashboard.data.metrics import chart_of, keys_of
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.pages.drawing import DEFAULTS, charts_of, draw
from lldscope_dashboard.pages.router import page
from made_up_runs import write_step
from test_dashboard import texts, walk

import lldscope
from lldscope.figures.series import translated
from lldscope.figures.view import View

STEPS = 30
FORMAT = "rewards/format <i>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> RunRegistry:
    root = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        with lldscope.Recorder(root / name) as recorder:
            for step in range(STEPS):
                write_step(recorder, step, dies=False, at=1e9 + 2 * step)
                recorder.scalars(step=step, name=FORMAT, value=0.01 * step)
                if step % 10 == 0:
                    for source, value in (("nq", 0.1), ("hotpot", 0.2)):
                        recorder.evals(
                            step=step, data_source=source, metric="em", value=value + step, n=9
                        )
            recorder.evals(step=STEPS + 5, data_source="nq", metric="em", value=0.9, n=9)
            recorder.probes(step=3, probe="drift", value=7.0)
    return RunRegistry(root)


def figure(runs: RunRegistry, key: str, **view: Any) -> dict[str, Any]:
    snapshot = runs.snapshot("one")
    (chart,) = charts_of([key], [snapshot])
    return draw([snapshot], [chart], View(**view))[0]


def test_every_metric_that_was_recorded_is_offered_and_nothing_else(runs: RunRegistry) -> None:
    snapshot = runs.snapshot("one")
    keys = keys_of(snapshot.columns, snapshot.subject.table)
    assert {"entropy", "step_seconds", "eval/em", f"scalar/{FORMAT}", "probe/drift"} <= set(keys)
    assert "kl" not in keys, "not measured"
    assert all(chart_of(key, snapshot.columns) for key in keys)
    text = texts(page(runs, "/run/one", ""))
    assert "add a chart" in text
    assert "eval/em" in text


def test_scalars_evaluations_and_step_times_are_drawn_as_they_were_recorded(
    runs: RunRegistry,
) -> None:
    (line,) = figure(runs, f"scalar/{FORMAT}", window=1)["data"]
    assert line["y"] == pytest.approx([0.01 * s for s in range(STEPS)], abs=1e-6)
    traces = {t["name"]: t for t in figure(runs, "eval/em")["data"]}
    assert set(traces) == {"hotpot", "nq"}
    assert traces["hotpot"]["x"] == [0, 10, 20]
    assert traces["nq"]["x"][-1] == STEPS + 5, "an evaluation after the last step"
    assert traces["nq"]["mode"] == "lines+markers"
    seconds = figure(runs, "step_seconds", window=1)["data"][0]
    assert set(seconds["y"]) == {2}


def test_charts_that_are_added_share_the_axis_of_the_others(runs: RunRegistry) -> None:
    snapshot = runs.snapshot("one")
    charts = charts_of([*DEFAULTS, "eval/em", "no-such", "scalar/no-such"], [snapshot])
    assert [c.id for c in charts] == [*DEFAULTS, "eval/em"]
    ranges = [f["layout"]["xaxis"]["range"] for f in draw([snapshot], charts, View())]
    assert len(set(map(str, ranges))) == 1


def test_the_address_adds_charts_to_a_run_and_to_a_comparison(runs: RunRegistry) -> None:
    for path, search in (("/run/one", "?chart=lr&chart=eval%2Fem"),
                         ("/compare", "?run=one&run=two&chart=eval%2Fem")):
        content = page(runs, path, search)
        ids = [c.id["index"] for c in walk(content) if isinstance(getattr(c, "id", None), dict)
               and c.id.get("type") == "chart"]
        reward = ids.index("reward")
        assert ids[reward + 1] == "eval/em", "the held-out score is there without being asked for"
        assert [i for i in ids if i in DEFAULTS] == list(DEFAULTS)
        # Of several data sources a comparison draws the first, and says which it is.
        assert ("over the questions of hotpot; " in texts(content)) == (path == "/compare")


def test_a_chart_is_had_as_csv_with_every_row(runs: RunRegistry) -> None:
    client = make_app(runs).server.test_client()
    answer = client.get("/csv/one", query_string={"chart": "likelihood"})
    table = pd.read_csv(io.StringIO(answer.text))
    assert list(table) == ["step", "correct_logp", "incorrect_logp"]
    with lldscope.open_run(runs.names()["one"]) as run:
        expected = run.signals()["correct_logp"].astype(float)
    np.testing.assert_allclose(table["correct_logp"], expected, rtol=1e-12)
    evals = client.get("/csv/one", query_string={"chart": "eval/em"})
    assert list(pd.read_csv(io.StringIO(evals.text))["step"]) == [0, 10, 20, STEPS + 5]
    assert 'filename="one-eval-em.csv"' in evals.headers["Content-Disposition"]
    assert client.get("/csv/one", query_string={"chart": "nix"}).status_code == 404
    assert client.get("/csv/nowhere", query_string={"chart": "lr"}).status_code == 404


def test_a_range_is_the_same_rows_on_another_axis() -> None:
    table = pd.DataFrame(
        {"step": np.arange(5.0), "time": [100.0, 110, 120, 140, 180], "tokens_seen": np.nan}
    )
    assert translated(table, (1.0, 3.0), "step", "time") == (10.0, 40.0)
    assert translated(table, (10.0, 40.0), "time", "step") == (1.0, 3.0)
    assert translated(table, (1.0, 3.0), "step", "tokens") is None


def test_small_numbers_are_written_with_powers_and_large_ones_without_exponents(
    runs: RunRegistry,
) -> None:
    assert figure(runs, "entropy")["layout"]["yaxis"]["exponentformat"] == "SI"
    table = pd.DataFrame({"step": [0.0, 1.0], "lr": [1e-6, 2e-6]})
    from lldscope.figures.chart_figures import make_chart
    from lldscope.figures.view import Subject

    small = make_chart(chart_of("lr"), Subject("r", table, [], [], [], 2000), View())
    assert small["layout"]["yaxis"]["exponentformat"] == "power"
    assert small["data"][0]["hovertemplate"] == "%{y:,.4~r}"


def test_the_recording_page_says_where_attempts_ran_and_how_they_ended(tmp_path: Path) -> None:
    path = tmp_path / "run"
    recorder = lldscope.Recorder(path)
    write_step(recorder, 0, dies=False, at=1e9)
    recorder.close("failed", "RuntimeError: out of memory")
    with lldscope.Recorder(path, resume=True) as recorder:
        write_step(recorder, 1, dies=False, at=1e9 + 1)
    with lldscope.open_run(path) as run:
        first, second = run.info["attempts"]
        assert (first["status"], second["status"]) == ("failed", "finished")
        assert math.isfinite(first["ended"])
        assert repr(run).startswith("<Run 'run': too few steps to judge, step 1, finished")
    text = texts(page(RunRegistry(tmp_path), "/recording/run", ""))
    assert "failed: RuntimeError: out of memory" in text
    assert first["host"] in text


def test_the_system_page_has_step_times_and_what_else_is_of_the_machine(tmp_path: Path) -> None:
    with lldscope.Recorder(tmp_path / "run") as recorder:
        for step in range(5):
            write_step(recorder, step, dies=False, at=1e9 + step)
            for name in ("perf/gpu_memory_gb", "rewards/format", "actor/mfu"):
                recorder.scalars(step=step, name=name, value=1.0)
    runs = RunRegistry(tmp_path)
    content = page(runs, "/system/run", "")
    ids = [c.id["index"] for c in walk(content) if isinstance(getattr(c, "id", None), dict)
           and c.id.get("type") == "chart"]
    assert ids == ["step_seconds", "scalar/actor/mfu", "scalar/perf/gpu_memory_gb"]


def test_configurations_are_shown_and_what_differs_comes_first(tmp_path: Path) -> None:
    for name, lr in (("a", 1e-6), ("b", 2e-6)):
        config = {"lr": lr, "model": {"layers": 2}, "html": "<b>x</b>"}
        with lldscope.Recorder(tmp_path / name, config=config):
            pass
    with lldscope.Recorder(tmp_path / "bare"):
        pass
    runs = RunRegistry(tmp_path)
    text = texts(page(runs, "/config/a", ""))
    assert "model.layers" in text
    both = texts(page(runs, "/config/a", "?with=b"))
    assert "1 setting differs" in both
    assert both.index("1e-06") < both.index("model.layers")
    assert "no configuration" in texts(page(runs, "/config/bare", ""))
    links = [getattr(c, "href", "") for c in walk(page(runs, "/run/bare", ""))]
    assert "/config/bare" not in links
    compared = [getattr(c, "href", "") for c in walk(page(runs, "/compare", "?run=a&run=b"))]
    assert "/config/a?with=b" in compared
