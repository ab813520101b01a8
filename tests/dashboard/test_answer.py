"""The answer at the top of a page: what is wrong, what to do, and what a tab tells."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest
from dash import html
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.data.run_summaries import RunSummaries
from lldscope_dashboard.pages import list_rows
from lldscope_dashboard.pages.answer import answer, loud, news_of, news_of_run
from lldscope_dashboard.pages.list_rows import choice_of, run_rows
from lldscope_dashboard.pages.run_page import alarms
from made_up_runs import write_run
from test_dashboard import texts, walk

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.storage import json_files, layout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> RunRegistry:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "dying", 140, dies=True)
    write_run(root / "healthy", 100)
    return RunRegistry(root)


def test_a_critical_run_begins_with_cause_action_and_the_way_to_the_evidence(
    runs: RunRegistry,
) -> None:
    snapshot = runs.snapshot("dying")
    content = html.Div(answer(snapshot))
    text = texts(content)
    assert "at step" in text or "since step" in text
    assert "go back to the checkpoint of step 79" in text, "the last one well before the decay"
    (link,) = [c for c in walk(content) if getattr(c, "href", None)]
    rule = snapshot.state.headline.rule
    assert link.href == f"/run/dying#alarm-{rule}"
    ids = [getattr(c, "id", None) for c in walk(html.Div(alarms(snapshot)))]
    assert f"alarm-{rule}" in ids
    news = news_of_run(snapshot)
    assert news["title"] == "◆ critical · dying – lldscope"
    assert "◆" in unquote(news["icon"])
    assert f"dying: {rule}" in news["alarms"]


def test_a_healthy_run_says_so_and_has_no_alarm(runs: RunRegistry) -> None:
    snapshot = runs.snapshot("healthy")
    assert "No alarm fires" in texts(html.Div(answer(snapshot)))
    assert news_of_run(snapshot)["alarms"] == {}
    assert news_of_run(snapshot)["title"] == "healthy – lldscope"


def test_the_list_has_the_alarms_that_fire_and_counts_them_for_the_tab(runs: RunRegistry) -> None:
    summaries = RunSummaries(runs)
    summaries.now(60.0)
    rows, _, news = run_rows(summaries, choice_of({}), [])
    dying, healthy = rows
    worst = runs.snapshot("dying").state.firing[0].rule
    assert worst in texts(dying)
    assert f"/run/dying#alarm-{worst}" in [getattr(c, "href", None) for c in walk(dying)]
    assert worst not in texts(healthy)
    assert news["title"] == "◆ 1 critical · Runs – lldscope"
    assert news_of(["unread"])["alarms"] == {}
    lines, _, _ = run_rows(summaries, choice_of({"q": worst}), [])
    assert len(lines) == 1


def test_an_acknowledged_alarm_is_marked_and_no_longer_news(tmp_path: Path) -> None:
    runs = RunRegistry(tmp_path)
    write_run(tmp_path / "dying", 140, dies=True)
    before = runs.snapshot("dying").state
    firing = [a.rule for a in before.firing if a.severity != "info"]
    assert len(firing) > 1
    assert loud(before) == "critical"
    for rule in firing:
        runs.note("dying", "snooze" if rule == firing[0] else "acknowledge", rule, 8)
    runs.note("dying", "acknowledge", "not-firing", 8)  # nothing to note
    fresh = RunRegistry(tmp_path).snapshot("dying")
    assert sorted(fresh.state.silenced) == sorted(firing)
    assert fresh.state.verdict == "critical", "the verdict stays what it is"
    assert news_of_run(fresh)["alarms"] == {}
    text = texts(html.Div(alarms(fresh)))
    assert "acknowledged" in text
    assert "snoozed until" in text
    assert "Unmute" in text
    lines, damaged = json_files.read_lines(tmp_path / "dying" / layout.NOTES_FILE)
    assert [line["rule"] for line in lines] == firing
    assert damaged == {}


def test_what_cannot_be_noted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "dying", 140, dies=True)
    runs = RunRegistry(tmp_path)
    rule = runs.snapshot("dying").state.firing[0].rule

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json_files, "append_line", full)
    with pytest.raises(LldscopeError, match="No space left on device"):
        runs.note("dying", "acknowledge", rule, 8)


def test_a_run_has_one_name_everywhere(tmp_path: Path) -> None:
    with lldscope.Recorder(tmp_path / "folder"):
        pass
    with lldscope.Recorder(tmp_path / "seeds" / "one", name="Seed one"):
        pass
    runs = RunRegistry(tmp_path)
    assert runs.snapshot("folder").title == lldscope.open_run(tmp_path / "folder").name == "folder"
    snapshot = runs.snapshot("seeds/one")
    assert snapshot.title == snapshot.state.run == "Seed one"
    (tmp_path / "folder").rename(tmp_path / "renamed")
    assert lldscope.open_run(tmp_path / "renamed").name == "renamed"


def test_nothing_links_to_responses_that_were_not_recorded(tmp_path: Path) -> None:
    with lldscope.Recorder(tmp_path / "means") as recorder:
        for step in range(120):
            recorder.step(step=step, n_responses=8, reward_sum=8.0 if step < 60 else 0.5)
    from lldscope_dashboard.pages.router import page

    runs = RunRegistry(tmp_path)
    links = [getattr(c, "href", None) or "" for c in walk(page(runs, "/run/means", ""))]
    assert runs.snapshot("means").state.alerts, "an alarm fires in it"
    assert not [href for href in links if href.startswith(("/responses", "/actions"))]
    assert "/recording/means" in links


def test_a_long_list_shows_its_first_runs_and_says_how_many_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(5):
        with lldscope.Recorder(tmp_path / f"run-{i}", group="a" if i < 4 else "b"):
            pass
    summaries = RunSummaries(RunRegistry(tmp_path))
    summaries.now(60.0)
    monkeypatch.setattr(list_rows, "MOST_ROWS", 3)
    rows, has, _ = run_rows(summaries, choice_of({}), [])
    assert [name for name, _ in has] == ["run-0", "run-1", "run-2", "pages"]
    assert "runs 1–3 of 5" in texts(rows[-1])
    rows, has, _ = run_rows(summaries, choice_of({"page": "2"}), [])
    assert [name for name, _ in has] == ["run-3", "run-4", "pages"]
    assert "runs 4–5 of 5" in texts(rows[-1])
    assert run_rows(summaries, choice_of({"page": "999999"}), [])[1] == has
    assert run_rows(summaries, choice_of({"page": "-1"}), [])[1][0][0] == "run-0"
    grouped, _, _ = run_rows(summaries, choice_of({"by": "group"}), [])
    assert "4 runs" in texts(grouped[0])
    assert "runs 1–3 of 5" in texts(grouped[-1])
    lines, _, _ = run_rows(summaries, choice_of({"q": "run-4"}), [])
    assert len(lines) == 1
    assert "run-4" in texts(lines[0])
