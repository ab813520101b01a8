"""The dashboard in a real browser: what is seen, over live, long, broken, vanishing and many runs;
no other host is asked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import (
    CHARTS,
    DRAWN,
    Server,
    busy,
    drag,
    going_on,
    load_charts,
    open_page,
    ranges,
    refreshed,
    throttled,
    ticked,
    until,
)
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.data.run_summaries import RunSummaries
from made_up_runs import write_run

import lldscope
from lldscope.monitor.summary import Summary

pytestmark = pytest.mark.browser

STEPS = 20_000
CHART = "document.querySelector('.js-plotly-plot')"
SHARED = f"new Set({CHARTS}.map(c => c._fullLayout.xaxis.range.join())).size === 1"
LAST = f"Math.max(...{CHART}.data.map(t => t.x.length ? t.x[t.x.length - 1] : 0))"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One run of 20,000 steps, twenty short ones, and one that goes on; made-up numbers."""
    root = tmp_path_factory.mktemp("runs")
    write_long(root / "long")
    write_run(root / "some" / "r00", 140, dies=True)
    for i in range(1, 20):
        write_run(root / "some" / f"r{i:02}", 25)
    with going_on(root / "live", group="first tries"):
        yield root


def write_long(path: Path) -> None:
    """20,000 steps with a reward and a gradient norm, and one peak of each."""
    rng = np.random.default_rng(0)
    steps = np.arange(STEPS)
    reward, norm = rng.uniform(0.2, 0.4, STEPS), rng.gamma(9, 0.1, STEPS)
    reward[3_141], norm[2_718] = 0.99, 77.0
    with lldscope.Recorder(path) as recorder:
        for part in np.array_split(steps, 10):
            recorder.updates(
                step=part, update=0, grad_norm=norm[part], grad_finite=True, skipped=False
            )
            recorder.step(
                step=part, time=1e9 + part, n_responses=100, reward_sum=100 * reward[part]
            )
            recorder.flush()


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    cache = tmp_path_factory.mktemp("cache")
    # read here, because a loaded machine takes longer than a page of a test may
    registry = RunRegistry(root, cache=cache / "lldscope")
    assert all(isinstance(line, Summary) for line in RunSummaries(registry).now(600.0))
    server = Server(root, cache)
    yield server
    server.stop()


@pytest.fixture
def tab(chromium: Any, server: Server) -> Iterator[Any]:
    """A fresh tab; the test fails on console errors and on requests to other hosts."""
    with open_page(chromium, server.address, height=800) as tab:
        yield tab


def last_step(tab: Any) -> float:
    return tab.evaluate(f"Math.max(...{CHART}.data[0].x)")


@pytest.mark.slow
def test_list_shows_runs_and_leads_to_a_comparison(tab: Any) -> None:
    tab.goto("/")
    row = tab.locator("tr", has_text="some/r00")
    row.locator(".badge").wait_for()  # the list is there before its runs are read
    assert "critical" in row.inner_text()
    assert row.locator("img.spark").count() == 2
    for name in ("some/r00", "some/r01"):
        tab.locator("tr", has_text=name).locator("input").first.check()
    refreshed(tab, "list-tick", 1)  # must not take the choice away
    tab.get_by_text("Compare 2 runs").click()
    tab.wait_for_selector(DRAWN)
    assert tab.url.endswith("/compare?run=some%2Fr00&run=some%2Fr01")


def test_run_page_draws_charts_bands_and_alarms(tab: Any) -> None:
    tab.goto("/run/some/r00")
    tab.wait_for_selector(DRAWN)
    until(tab, "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 8 * 3")
    first = tab.locator(".js-plotly-plot").first
    labels = first.locator(
        ".shapelayer text, .shape-label text, .shape-group text"
    ).all_text_contents()
    assert any("collapse" in text for text in labels), labels
    names = first.locator(".annotation text").all_text_contents()
    assert any("lld-decay" in text for text in names), names
    assert any("lld-collapse" in text for text in names), names
    assert tab.locator(".alarm .rule").all_inner_texts()[0].startswith("lld-")
    status = tab.locator(".status").inner_text()
    assert "critical" in status
    assert "ago" in status
    assert tab.get_by_text("Retriever or tool outage").count() == 1


@pytest.mark.slow
def test_zoom_is_shared_and_survives_new_points(tab: Any) -> None:
    load_charts(tab, "/run/live")
    drag(tab)
    until(tab, f"{CHART}._fullLayout.xaxis.range[0] > 5")
    for _ in range(2):  # to where the next points come
        before = ranges(tab)[0][0]
        tab.keyboard.press("ArrowRight")
        until(tab, f"{CHART}._fullLayout.xaxis.range[0] > {before}")
    until(tab, SHARED)
    zoomed = ranges(tab)
    last = last_step(tab)
    until(tab, f"Math.max(...{CHART}.data[0].x) > {min(last, zoomed[0][1])}")
    assert ranges(tab) == zoomed
    assert "zoom=" in tab.url
    tab.locator(".js-plotly-plot .nsewdrag").first.dblclick()
    until(tab, f"{CHARTS}.every(c => c._fullLayout.xaxis.range[0] < 1)")
    until(tab, f"{CHART}._fullLayout.xaxis.range[1] > {last}")
    assert "zoom=" not in tab.url


def test_the_pointer_is_shown_in_all_charts(tab: Any) -> None:
    load_charts(tab, "/run/some/r00")
    box = tab.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    pointed = (
        f"{CHARTS}.filter(c => c.querySelector('.hoverlayer .legend, .hoverlayer .hovertext'))"
    )
    tab.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
    until(tab, f"{pointed}.length === 8")
    tab.mouse.move(5, 5)
    until(tab, f"{pointed}.length === 0")


@pytest.mark.slow
def test_pause_holds_the_page_still(tab: Any) -> None:
    load_charts(tab, "/run/live")
    tab.keyboard.press("p")
    tab.get_by_role("button", name="Resume").wait_for()
    until(tab, lambda: not tab.unanswered)
    ticked(tab, "clock", 1)
    until(tab, "!document.querySelector('.dash-graph--pending')")
    last = last_step(tab)
    ticked(tab, "clock", 2)
    assert last_step(tab) == last
    tab.get_by_role("button", name="Resume").click()
    until(tab, f"Math.max(...{CHART}.data[0].x) > {last}")


def test_comparison_overlays_runs_and_hides_one_in_all_charts(tab: Any) -> None:
    tab.goto("/compare?run=some/r00&run=some/r01&run=missing")
    tab.wait_for_selector(DRAWN)
    assert "no run “missing”" in tab.locator(".notice").inner_text()
    names = (
        "[...document.querySelectorAll('.js-plotly-plot')].map(c => c.data.map(t => t.name).join())"
    )
    assert tab.evaluate(names) == ["some/r00,some/r01"] * 8
    tab.locator(".shown input").first.uncheck()
    until(tab, f"({names}).every(n => n === 'some/r01')")


@pytest.mark.slow
def test_axis_smoothing_and_theme_are_kept_in_address_and_browser(tab: Any) -> None:
    tab.goto("/run/some/r00")
    tab.wait_for_selector(DRAWN)
    tab.locator("#x").get_by_text("time").click()
    tab.locator("#mean").get_by_text("25").click()
    until(tab, "location.search === '?x=time&mean=25'")
    until(
        tab, "document.querySelector('.js-plotly-plot').layout.xaxis.title.text.startsWith('time')"
    )
    dark = "getComputedStyle(document.body).backgroundColor === 'rgb(15, 19, 23)'"
    assert not tab.evaluate(dark)
    tab.locator("#theme").click()
    until(tab, dark)
    tab.reload()
    tab.wait_for_selector(DRAWN)
    assert tab.evaluate(dark)
    title = tab.evaluate("document.querySelector('.js-plotly-plot').layout.xaxis.title.text")
    assert title.startswith("time")


@pytest.mark.slow
def test_all_charts_take_a_zoom_at_once_and_keep_it_on_a_slow_machine(tab: Any) -> None:
    load_charts(tab, "/run/live")
    with throttled(tab, 8), busy(2):
        drag(tab)
        until(tab, f"{CHARTS}.every(c => c._fullLayout.xaxis.range[0] > 5)")
        zoomed = ranges(tab)
        until(tab, "location.search.startsWith('?zoom=')")
        refreshed(tab, "seen.data", 3)  # of the charts: they alone know what was drawn
        assert ranges(tab) == zoomed
        assert len(set(map(str, zoomed))) == 1
        tab.keyboard.press("0")
        until(tab, f"{CHARTS}.every(c => c._fullLayout.xaxis.range[0] < 1)")


@pytest.mark.slow
def test_a_zoom_made_before_all_charts_are_drawn_holds_for_all(tab: Any) -> None:
    with throttled(tab, 8):
        tab.goto("/run/live")
        tab.wait_for_selector(".js-plotly-plot .nsewdrag", state="attached")
        drag(tab)
        until(tab, f"{CHARTS}.length === 8 && {CHARTS}.every(c => c._fullLayout)")
        until(tab, f"{CHARTS}.every(c => c._fullLayout.xaxis.range[0] > 5)")
        refreshed(tab, "seen.data")
        assert len(set(map(str, ranges(tab)))) == 1


def test_a_refresh_adds_points_and_sends_little(tab: Any) -> None:
    load_charts(tab, "/run/live")
    sizes: list[int] = []
    tab.on(
        "response",
        lambda r: (
            sizes.append(int(r.headers.get("content-length", 0)))
            if "_dash-update-component" in r.url
            else None
        ),
    )
    before = tab.evaluate(LAST)
    until(tab, f"{LAST} > {before} + 5")
    assert tab.evaluate(f"{CHART}.data.every(t => t.x.every((v, i) => !i || v > t.x[i - 1]))")
    assert max(sizes) < 25_000


@pytest.mark.slow
def test_20_000_steps_are_thinned_with_their_peaks_and_asked_again_on_zoom(tab: Any) -> None:
    load_charts(tab, "/run/long?mean=1")
    foot = tab.locator(".foot").nth(2).inner_text()
    count, whole = (int(w.replace(",", "")) for w in foot.split(" points")[0].split(" of "))
    assert 1000 <= count <= 2000
    assert whole == STEPS
    reward = "document.querySelectorAll('.js-plotly-plot')[2].data[0]"
    assert tab.evaluate(f"Math.max(...{reward}.y)") == 0.99
    assert tab.evaluate(f"{reward}.x[{reward}.y.indexOf(0.99)]") == 3_141
    tab.goto("/run/long?mean=1&zoom=3130,3180")
    tab.wait_for_selector(DRAWN)
    until(tab, f"{reward} && {reward}.x.length === 53 || {reward}.x.length === 52")
    assert tab.locator(".foot").nth(2).inner_text() == ""


@pytest.mark.slow
def test_the_address_restores_a_comparison_of_twenty_runs(tab: Any) -> None:
    names = "&".join(f"run=some%2Fr{i:02}" for i in range(20))
    load_charts(tab, f"/compare?{names}&hide=some%2Fr19&x=time&mean=5")
    assert tab.evaluate(f"{CHART}.data.length") == 19
    tab.locator("#x").get_by_text("onset of decay").click()
    until(tab, f"{CHART}.layout.xaxis.title.text.includes('decay began')")
    tab.get_by_text("Not drawn, because no onset of decay was detected").wait_for()
    tab.locator(".shown input").nth(19).check()
    until(tab, f"{CHART}.data.length === 20")
    tab.keyboard.press("+")
    until(tab, "location.search.includes('zoom=')")
    address, zoomed = tab.url, ranges(tab)[0]
    assert "x=onset" in address
    assert "mean=5" in address
    assert "hide=" not in address
    load_charts(tab, address)
    assert tab.evaluate(f"{CHART}.data.length") == 20
    assert ranges(tab)[0] == pytest.approx(zoomed, rel=1e-6)


def test_the_list_sorts_filters_groups_and_keeps_it_in_the_address(tab: Any) -> None:
    names = "[...document.querySelectorAll('.runs .run-link')].map(a => a.textContent)"
    tab.goto("/?by=group")
    until(tab, f"({names}).length === 22 && !document.body.innerText.includes('reading …')")
    until(tab, "document.querySelector('tr.run-group').innerText.startsWith('first tries')")
    tab.keyboard.press("/")
    tab.keyboard.type("r0")
    until(tab, f"({names}).length === 10")
    tab.get_by_role("button", name="run", exact=True).click()
    until(tab, f"({names})[0] === 'some/r09'")
    assert tab.locator("th[aria-sort=descending]").inner_text() == "run"
    for i in (9, 8):
        tab.locator("tr", has_text=f"some/r0{i}").locator("input").check()
    tab.locator("#find").fill("r01")
    until(tab, f"({names}).length === 1")
    assert tab.locator("#compare").inner_text() == "Compare 2 runs", "a filter hides, no more"
    assert "q=r01" in tab.url
    assert "sort=-run" in tab.url
    tab.goto("/?verdict=critical")
    until(tab, f"({names}).join() === 'some/r00'")


@pytest.mark.slow
def test_keys_and_their_list(tab: Any) -> None:
    load_charts(tab, "/run/long")
    tab.keyboard.press("?")
    tab.locator("dialog#keys").get_by_text("zoom in").wait_for()
    tab.keyboard.press("Escape")
    tab.keyboard.press("+")
    until(tab, f"{CHART}._fullLayout.xaxis.range[0] > 4000")
    until(tab, "location.search.startsWith('?zoom=')")
    left = ranges(tab)[0][0]
    tab.keyboard.press("ArrowLeft")
    until(tab, f"{CHART}._fullLayout.xaxis.range[0] < {left} - 2000")
    tab.keyboard.press("p")
    tab.get_by_role("button", name="Resume").wait_for()
    tab.keyboard.press("x")
    until(tab, "location.search.includes('x=tokens')")
    dark = "getComputedStyle(document.body).backgroundColor === 'rgb(15, 19, 23)'"
    tab.keyboard.press("t")
    until(tab, dark)
    tab.keyboard.press("Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
    assert tab.evaluate(f"document.activeElement !== document.body && {outline}")


@pytest.mark.slow
def test_a_hidden_tab_asks_nothing_and_one_that_is_seen_again_goes_on(tab: Any) -> None:
    load_charts(tab, "/run/live")
    requests: list[str] = []
    hide = "Object.defineProperty(document, 'hidden', {{get: () => {}, configurable: true}})"
    tab.evaluate(hide.format("true"))
    ticked(tab, "clock", 1)
    until(tab, lambda: not tab.unanswered)
    tab.on("request", lambda r: requests.append(r.url))
    ticked(tab, "clock", 3)
    assert requests == []
    tab.evaluate(hide.format("false"))
    before = tab.evaluate(LAST)
    until(tab, f"{LAST} > {before}")


@pytest.mark.slow
def test_a_run_whose_part_breaks_a_run_that_is_deleted_and_one_that_begins(
    tab: Any, root: Path
) -> None:
    tab.goto("/run/later")
    tab.get_by_text("Waiting for “later”").wait_for()
    path = write_run(root / "later", 12)
    tab.wait_for_selector(DRAWN)
    part = next((path / "actions").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-11])
    load_charts(tab, "/run/later")
    tab.locator(".notice").get_by_text(part.name).wait_for()
    tab.goto("/recording/later")
    tab.locator(".facts", has_text="Damage").get_by_text(part.name).wait_for()
    load_charts(tab, "/run/later")
    shutil.rmtree(path)
    tab.get_by_text("The last charts are shown.").wait_for()
    assert tab.locator(DRAWN).count() >= 8
    with lldscope.Recorder(path, name="begun anew"):
        pass
    load_charts(tab, "/run/later")
    tab.get_by_text("No step has been recorded yet").wait_for()


@pytest.mark.slow
def test_a_page_goes_on_after_the_server_was_restarted(tab: Any, server: Server) -> None:
    load_charts(tab, "/run/live")
    failed: list[str] = []
    tab.on("requestfailed", lambda r: failed.append(r.url))
    server.stop()
    before = tab.evaluate(LAST)
    until(tab, lambda: bool(failed))
    server.start()
    until(tab, f"{LAST} > {before}")
    until(tab, lambda: not tab.unanswered)  # also those that were under way in between
    # that nobody answered meanwhile is the browser's to say, and nothing else may be wrong
    meant = ("net::ERR_", "the server did not respond")
    tab.faults[:] = [f for f in tab.faults if not any(m in f for m in meant)]
