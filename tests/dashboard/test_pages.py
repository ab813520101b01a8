"""The pages without a browser: what they say, what they lead to, and which data they show."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from dash import dcc, html
from lldscope_dashboard.data.metrics import chart_of, keys_of
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.data.run_summaries import RunSummaries
from lldscope_dashboard.pages import list_page
from lldscope_dashboard.pages.batch import batch
from lldscope_dashboard.pages.drawing import DEFAULTS, charts_of, draw
from lldscope_dashboard.pages.frame import query_of, view_of
from lldscope_dashboard.pages.list_page import choice_of, run_rows
from lldscope_dashboard.pages.router import page
from lldscope_dashboard.pages.run_page import run_parts
from lldscope_dashboard.pages.step_bar import step_bar
from lldscope_dashboard.pages.story import answer, loud, tab_title, title_of_run
from made_up_runs import write_run, write_step
from page_content import ids, links, texts, walk

import lldscope
from lldscope.figures.view import View
from lldscope.storage.notes import write_note

SAMPLES = Path(__file__).parents[2] / "sample_runs"
STEPS = 30
FORMAT = "rewards/format <i>"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dying, a healthy and a nested run; made-up numbers."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "dying", 140, dies=True)
    write_run(root / "healthy", 60)
    write_run(root / "seeds" / "one", 5, ends="failed")
    return root


def test_the_list_is_sorted_filtered_and_grouped_as_the_address_says(root: Path) -> None:
    summaries = RunSummaries(RunRegistry(root))

    def names(**query: str) -> list[Any]:
        rows, _, _ = run_rows(summaries, choice_of({k: [v] for k, v in query.items()}), [])
        return [c.children for c in walk(rows) if getattr(c, "className", "") == "run-link"]

    summaries.now(60.0)
    assert names() == ["dying", "seeds/one", "healthy"], "what is critical comes first"
    assert names(sort="run") == ["dying", "healthy", "seeds/one"]
    assert names(sort="-run") == ["seeds/one", "healthy", "dying"]
    assert names(sort="step") == ["seeds/one", "healthy", "dying"]
    assert names(sort="-step") == ["dying", "healthy", "seeds/one"]
    assert names(sort="nonsense") == names()
    assert names(q="SEEDS") == ["seeds/one"]
    assert names(q="dying collapse") == ["dying"]
    assert names(verdict="critical") == ["dying"]
    assert names(q="nothing like that") == []
    assert names(by="group") == names()


@pytest.mark.parametrize(
    "path", ["/run/nope", "/run/..%2F..%2Fetc", "/run//etc/passwd", "/run/", "/nowhere", "/compare"]
)
def test_addresses_without_a_run_give_words(root: Path, path: str) -> None:
    text = texts(page(RunRegistry(root / "seeds"), path, "?run=../dying"))
    assert "All runs" in text
    assert "collapse" not in text, "a name must not lead outside the root"


def test_an_address_without_a_response_gives_words() -> None:
    runs = RunRegistry(SAMPLES)
    nowhere = ("", "?step=x&id=1", "?step=3&id=9999", "?step=99999999999&id=0",
               "?step=3&id=0&rank=7")
    for query in nowhere:
        assert "All runs" in texts(page(runs, "/response/grpo", query)), query
    for kind in ("responses", "response"):
        assert "Waiting for “nope”" in texts(page(runs, f"/{kind}/nope", "?step=1&id=1"))


def test_a_shared_address_gives_its_view_and_nonsense_the_usual_one() -> None:
    assert view_of({"x": ["time"], "mean": ["25"], "zoom": ["1.5,9"]}) == View(
        "time", 25, (1.5, 9.0)
    )
    assert view_of({"x": ["evil"], "mean": ["-1"], "zoom": ["9,1"]}) == View()
    assert view_of({"zoom": ["nan,inf,2"]}) == View()
    assert query_of({"hide": ["x" * 9999] * 9999}) == {"hide": ["x" * 400] * 200}


def test_damage_and_dropped_rows_are_said(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", 30)
    part = next((path / "steps").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-20])
    beat = next((path / "heartbeat").glob("*.json"))
    beat.write_text(
        json.dumps(json.loads(beat.read_text()) | {"dropped": {"actions: too late": 7}})
    )
    text = texts(page(RunRegistry(tmp_path), "/run/r", ""))
    assert part.name in text
    assert "7 × actions: too late" in text


def test_a_comparison_is_restored_by_its_address(root: Path) -> None:
    query = "?run=dying&run=healthy&hide=healthy&x=onset&mean=25&zoom=-5,9"
    content = page(RunRegistry(root), "/compare", query)
    stores = {c.id: getattr(c, "data", None) for c in walk(content) if isinstance(c, dcc.Store)}
    assert stores["view"] == {"hide": ["healthy"], "x": ["onset"], "mean": ["25"], "zoom": ["-5,9"]}
    assert stores["names"] == ["dying", "healthy"]
    (figure, *_) = [c.figure for c in walk(content) if isinstance(c, dcc.Graph)]
    assert [line["name"] for line in figure["data"]] == ["dying"]
    assert figure["layout"]["xaxis"]["range"] == [-5, 9]
    assert "differs from" in texts(content) or "stays within the noise" in texts(content)


def test_a_critical_run_begins_with_cause_action_and_the_way_to_the_evidence(root: Path) -> None:
    snapshot = RunRegistry(root).snapshot("dying")
    content = answer(snapshot)
    text = texts(content)
    assert "at step" in text or "since step" in text
    assert "go back to checkpoint" in text, "one before the decay"
    rule = snapshot.state.headline.rule
    assert links(content) == [f"/run/dying#alarm-{rule}"]
    anchors = [getattr(c, "id", None) for c in walk(run_parts(snapshot)["alarms"])]
    assert f"alarm-{rule}" in anchors
    assert title_of_run(snapshot) == "◆ critical · dying – lldscope"


def test_the_list_has_the_alarms_that_fire_and_counts_them_for_the_tab(root: Path) -> None:
    runs = RunRegistry(root)
    summaries = RunSummaries(runs)
    summaries.now(60.0)
    rows, _, title = run_rows(summaries, choice_of({}), [])
    dying, failed, healthy = rows
    worst = runs.snapshot("dying").state.firing[0].rule
    assert worst in texts(dying)
    assert f"/run/dying#alarm-{worst}" in links(dying)
    assert "stalled" in texts(failed)
    assert worst not in texts(healthy)
    assert title == "◆ 1 critical · Runs – lldscope"
    assert tab_title([], "Runs") == "Runs – lldscope"
    lines, _, _ = run_rows(summaries, choice_of({"q": [worst]}), [])
    assert len(lines) == 1


def test_an_acknowledged_alarm_is_marked_and_no_longer_news(tmp_path: Path) -> None:
    runs = RunRegistry(tmp_path)
    write_run(tmp_path / "dying", 140, dies=True)
    before = runs.snapshot("dying").state
    firing = {a.rule: a.episodes[-1][0] for a in before.firing if a.severity != "info"}
    assert len(firing) > 1
    assert loud(before) == "critical"
    until: float | None = time.time() + 3600
    for rule, step in firing.items():
        write_note(tmp_path / "dying", "snooze" if until else "acknowledge", rule, step, until)
        until = None
    fresh = RunRegistry(tmp_path).snapshot("dying")
    assert sorted(fresh.state.silenced) == sorted(firing)
    assert fresh.state.verdict == "critical", "the verdict stays what it is"
    assert title_of_run(fresh) == "dying – lldscope"
    text = texts(run_parts(fresh)["alarms"])
    assert "acknowledged" in text
    assert "snoozed until" in text


def test_a_long_list_shows_its_first_runs_and_says_how_many_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(5):
        with lldscope.Recorder(tmp_path / f"run-{i}", group="a" if i < 4 else "b"):
            pass
    summaries = RunSummaries(RunRegistry(tmp_path))
    summaries.now(60.0)
    monkeypatch.setattr(list_page, "MOST_ROWS", 3)

    def rows(**query: str) -> list[str]:
        choice = choice_of({k: [v] for k, v in query.items()})
        return [texts(row) for row in run_rows(summaries, choice, [])[0]]

    assert ["run-0" in rows()[0], "1–3 of 5" in rows()[-1]] == [True, True]
    last = rows(page="2")
    assert ["run-3" in last[0], "4–5 of 5" in last[-1]] == [True, True]
    assert rows(page="999999") == last
    assert rows(page="-1") == rows()
    assert "4 runs" in rows(by="group")[0]
    (only,) = rows(q="run-4")
    assert "run-4" in only


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
    assert {"entropy", "eval/em/nq", f"scalar/{FORMAT}"} < {*keys}
    assert "kl" not in keys, "not measured"
    assert all(chart_of(key, snapshot.columns) for key in keys)
    text = texts(page(runs, "/run/one", ""))
    assert "add charts" in text
    assert "eval/em/hotpot" in text


def test_scalars_and_evaluations_are_drawn_as_they_were_recorded(runs: RunRegistry) -> None:
    (line,) = figure(runs, f"scalar/{FORMAT}", window=1)["data"]
    assert line["y"] == pytest.approx([0.01 * s for s in range(STEPS)], abs=1e-6)
    assert figure(runs, "eval/em/hotpot")["data"][0]["x"] == [0, 10, 20]
    assert figure(runs, "eval/em/nq")["data"][0]["x"][-1] == STEPS + 5, "after the last step"


def test_the_address_adds_charts_to_a_run_and_to_a_comparison(runs: RunRegistry) -> None:
    for path, search in (("/run/one", "?chart=lr&chart=eval%2Fem%2Fnq"),
                         ("/compare", "?run=one&run=two&chart=eval%2Fem%2Fnq")):
        content = page(runs, path, search)
        charts = ids(content, "chart")
        assert [i for i in charts if i in DEFAULTS] == list(DEFAULTS)
        assert charts[-1] == "eval/em/nq"
        reward = next(c for c in walk(content) if isinstance(c, dcc.Graph)).figure["data"]
        held_out = {"held-out score"} if path == "/run/one" else set()
        assert {line["name"] for line in reward} >= held_out, "without being asked for"


# -- step bar, batch, story -----------------------------------------------------------------------


def test_the_step_bar_has_a_cell_per_step_with_the_alarms_that_fired_then(root: Path) -> None:
    snapshot = RunRegistry(root).snapshot("dying")
    (bar,) = step_bar(snapshot)
    props = bar.to_plotly_json()["props"]
    cells = json.loads(props["data-cells"])
    assert cells["step"] == list(range(140))
    for step, word_there in zip(cells["step"], cells["word"], strict=True):
        firing = [
            a.rule for a in snapshot.state.alerts for first, last in a.episodes
            if first <= step and (last is None or step < last)
        ]
        assert word_there.partition(": ")[2].split(", ") == firing or not firing, step
        assert firing or word_there in ("warm-up", "no alarm")
    picture = unquote(bar.children.src)
    heights = {int(h) for h in re.findall("height='([0-9]+)'", picture)}
    assert len(heights) > 2, "what is worse is higher, not only of another colour"
    assert picture.count("<rect") == 140
    assert (props["aria-valuemin"], props["aria-valuemax"]) == ("0", "139")


def test_the_batch_of_a_step_has_its_groups_by_what_they_lost(tmp_path: Path) -> None:
    with lldscope.Recorder(tmp_path / "r") as recorder:
        for step in (0, 1):
            recorder.responses(
                step=step, response_id=[0, 1, 2, 3], group_id=[7, 7, 8, 8],
                reward=[1.0, 0.0, 1.0, 0.0], correct=[True, False, True, False],
                text=[f"long <b>prompt</b> <answer> A{i} </answer>" for i in range(4)],
                question=["first?", "first?", "second <i>?", "second <i>?"],
                golden=['["gold", "or"]', None, "no json", None],
                reward_parts=['{"format": 0.5, "x": "no"}', None, "[1", None],
            )
            recorder.actions(
                step=step, response_id=[0, 1, 2, 3], action_index=0, n_tokens=5,
                logp_old_sum=-1.0, logp_post_sum=[-0.5, -1.0, -4.0, -1.0],
            )
            recorder.step(step=step, n_responses=4, n_correct=2, reward_sum=2.0)
    snapshot = RunRegistry(tmp_path).snapshot("r")
    content = batch(snapshot, 1)
    groups = [texts(c) for c in content if isinstance(c, html.Section)]
    assert ["second <i>?" in groups[0], "first?" in groups[1]] == [True, True]
    assert "Δ correct −3" in groups[0]
    assert "gold · or" in groups[1]
    assert "no json" in groups[0]
    assert "A0" in groups[1]
    assert "<answer>" not in groups[1], "the answer itself, not its tags or the prompt"
    assert "reward 1 · format 0.5" in groups[1]
    assert "/response/r?step=1&id=2" in links(content)
    assert "was not recorded" in texts(batch(snapshot, 9))
