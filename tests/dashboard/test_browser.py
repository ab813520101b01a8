"""The dashboard in a real browser: what is seen, zoom under live data, no other host asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import DRAWN, WAIT, drag, going_on, opened, ranges, served, until
from made_up_runs import write_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Finished runs and one that goes on while the tests run; made-up numbers."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "dying", 140, dies=True)
    write_run(root / "healthy", 100)
    write_run(root / "short-lived", 3)
    with going_on(root / "live"):
        yield root


@pytest.fixture(scope="module")
def address(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(root, tmp_path_factory.mktemp("cache")) as address:
        yield address


@pytest.fixture
def tab(chromium: Any, address: str) -> Iterator[Any]:
    """A fresh tab; the test fails on console errors and on requests to other hosts."""
    with opened(chromium, address) as tab:
        yield tab


FIRST = "document.querySelector('.js-plotly-plot')"
SHARED = (
    "new Set([...document.querySelectorAll('.js-plotly-plot')]"
    ".map(c => c._fullLayout.xaxis.range.map(v => v.toFixed(3)).join())).size === 1"
)


def last_step(tab: Any) -> float:
    return tab.evaluate(f"Math.max(...{FIRST}.data[0].x)")


def test_list_shows_runs_and_leads_to_a_comparison(tab: Any) -> None:
    tab.goto("/")
    row = tab.locator("tr", has_text="dying")
    row.locator(".badge").wait_for(timeout=WAIT)  # the list is there before its runs are read
    assert "critical" in row.inner_text()
    assert row.locator("img.spark").count() == 2
    for name in ("dying", "healthy"):
        tab.locator("tr", has_text=name).locator("input").first.check()
    tab.wait_for_timeout(2500)  # a refresh must not take the choice away
    tab.get_by_text("Compare 2 runs").click()
    tab.wait_for_selector(DRAWN, timeout=WAIT)
    assert tab.url.endswith("/compare?run=dying&run=healthy")


def test_run_page_draws_charts_bands_and_alarms(tab: Any) -> None:
    begun = time.monotonic()
    tab.goto("/run/dying")
    tab.wait_for_selector(DRAWN, timeout=WAIT)
    print(f"first chart visible after {time.monotonic() - begun:.2f} s")
    until(tab, "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 8 * 3")
    first = tab.locator(".js-plotly-plot").first
    drawn = first.locator(
        ".shapelayer text, .shape-label text, .shape-group text"
    ).all_text_contents()
    assert any("collapse" in text for text in drawn), drawn
    assert any("lld-decay" in text for text in drawn), drawn
    assert tab.locator(".alarm .rule").all_inner_texts()[0].startswith("lld-")
    status = tab.locator(".status").inner_text()
    assert "critical" in status
    assert "ago" in status
    assert tab.get_by_text("Retriever or tool outage").count() == 1


def test_pictures_come_first_and_lie_where_the_charts_are_drawn(
    chromium: Any, address: str
) -> None:
    # what lies below a chart is not seen: evidence of 0 on its logarithmic axis
    boxes = """(lines => lines.map(l => { const b = l.getBoundingClientRect();
      const end = l.closest('.plot').getBoundingClientRect().bottom;
      return [b.left, b.top, b.right, Math.min(b.bottom, end)]; }))"""
    size = {"width": 1280, "height": 900}
    context = chromium.new_context(viewport=size, base_url=address, java_script_enabled=False)
    tab = context.new_page()
    end = time.monotonic() + WAIT / 1000
    while not tab.locator(".picture").count():  # no script runs: the first answer alone is seen
        assert time.monotonic() < end
        tab.goto("/run/dying")
    assert tab.locator(".plot > .picture").count() == 8
    assert "critical" in tab.locator(".status").inner_text()
    pictures = tab.evaluate(f"{boxes}([...document.querySelectorAll('.picture .lines path')])")
    texts = tab.locator(".picture text").all_text_contents()
    context.close()
    context = chromium.new_context(viewport=size, base_url=address)
    tab = context.new_page()
    tab.goto("/run/dying")
    until(tab, "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 8 * 3")
    until(tab, "!document.querySelector('.picture, #first')")
    charts = tab.evaluate(f"{boxes}([...document.querySelectorAll('.js-line')])")
    assert len(charts) == len(pictures)
    assert np.abs(np.array(charts) - np.array(pictures)).max() < 3, "nothing moves"
    drawn = tab.locator(".js-plotly-plot :is(.xtick, .ytick, .y2tick) text").all_text_contents()
    assert set(drawn) <= set(texts)
    context.close()


def test_zoom_is_shared_and_survives_new_points(tab: Any) -> None:
    tab.goto("/run/live")
    tab.wait_for_selector(DRAWN, timeout=WAIT)
    tab.wait_for_timeout(1000)
    drag(tab)
    until(tab, SHARED)
    tab.wait_for_timeout(1000)
    zoomed = ranges(tab)
    assert zoomed[0][0] > 5, "the drag must have zoomed"
    for _ in range(2):  # to where the next points come
        before = ranges(tab)[0][0]
        tab.keyboard.press("ArrowRight")
        until(tab, f"{FIRST}._fullLayout.xaxis.range[0] > {before}")
    until(tab, SHARED)
    tab.wait_for_timeout(1000)
    zoomed = ranges(tab)
    assert zoomed[0][1] > last_step(tab)
    tab.evaluate(f"window.drawn = 0; {FIRST}.on('plotly_afterplot', () => window.drawn++)")
    until(tab, "window.drawn >= 3")
    assert ranges(tab) == zoomed
    assert "zoom=" in tab.url
    seen = last_step(tab)
    tab.locator(".js-plotly-plot .nsewdrag").first.dblclick()
    until(tab, f"{FIRST}._fullLayout.xaxis.range[0] < 1")
    tab.wait_for_timeout(2500)
    assert last_step(tab) > seen, "new points have come meanwhile"


def test_pause_holds_the_page_still(tab: Any) -> None:
    tab.goto("/run/live")
    tab.wait_for_selector(DRAWN, timeout=WAIT)
    tab.keyboard.press("p")
    tab.get_by_role("button", name="Resume").wait_for(timeout=WAIT)
    tab.wait_for_timeout(1000)
    held = last_step(tab)
    tab.wait_for_timeout(3000)
    assert last_step(tab) == held
    tab.get_by_role("button", name="Resume").click()
    until(tab, f"Math.max(...{FIRST}.data[0].x) > {held}")


def test_comparison_overlays_runs_and_hides_one_in_all_charts(tab: Any) -> None:
    tab.goto("/compare?run=dying&run=healthy&run=missing")
    tab.wait_for_selector(DRAWN, timeout=WAIT)
    assert "no run “missing”" in tab.locator(".notice").inner_text()
    names = (
        "[...document.querySelectorAll('.js-plotly-plot')].map(c => c.data.map(t => t.name).join())"
    )
    assert tab.evaluate(names) == ["dying,healthy"] * 8
    tab.locator(".shown input").first.uncheck()
    until(tab, f"({names}).every(n => n === 'healthy')")


def test_axis_smoothing_and_theme_are_kept_in_address_and_browser(tab: Any) -> None:
    tab.goto("/run/dying")
    tab.wait_for_selector(DRAWN, timeout=WAIT)
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
    tab.wait_for_selector(DRAWN, timeout=WAIT)
    assert tab.evaluate(dark)
    title = tab.evaluate("document.querySelector('.js-plotly-plot').layout.xaxis.title.text")
    assert title.startswith("time")


def test_missing_run_shows_words_until_it_appears(tab: Any, root: Path) -> None:
    tab.goto("/run/later")
    tab.get_by_text("There is no run “later”").wait_for(timeout=WAIT)
    write_run(root / "later", 5)
    tab.wait_for_selector(DRAWN, timeout=WAIT)


def test_deleted_run_says_so_and_keeps_what_was_drawn(tab: Any, root: Path) -> None:
    tab.goto("/run/short-lived")
    tab.wait_for_selector(DRAWN, timeout=WAIT)
    (root / "short-lived").rename(root.parent / "gone")
    tab.get_by_text("What was drawn is kept.").wait_for(timeout=WAIT)
    assert tab.locator(DRAWN).count() >= 8
