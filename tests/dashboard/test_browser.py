"""The dashboard in a real browser: what is seen, zoom under live data, no other host asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import (
    CHARTS,
    DRAWN,
    drag,
    drawn,
    going_on,
    ranges,
    refreshed,
    ticked,
    until,
)
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


FIRST = "document.querySelector('.js-plotly-plot')"
SHARED = f"new Set({CHARTS}.map(c => c._fullLayout.xaxis.range.join())).size === 1"


def last_step(tab: Any) -> float:
    return tab.evaluate(f"Math.max(...{FIRST}.data[0].x)")


def test_list_shows_runs_and_leads_to_a_comparison(tab: Any) -> None:
    tab.goto("/")
    row = tab.locator("tr", has_text="dying")
    row.locator(".badge").wait_for()  # the list is there before its runs are read
    assert "critical" in row.inner_text()
    assert row.locator("img.spark").count() == 2
    for name in ("dying", "healthy"):
        tab.locator("tr", has_text=name).locator("input").first.check()
    refreshed(tab, "list-tick", 1)  # must not take the choice away
    tab.get_by_text("Compare 2 runs").click()
    tab.wait_for_selector(DRAWN)
    assert tab.url.endswith("/compare?run=dying&run=healthy")


def test_run_page_draws_charts_bands_and_alarms(tab: Any) -> None:
    begun = time.monotonic()
    tab.goto("/run/dying")
    tab.wait_for_selector(DRAWN)
    print(f"first chart visible after {time.monotonic() - begun:.2f} s")
    until(tab, "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 8 * 3")
    first = tab.locator(".js-plotly-plot").first
    drawn = first.locator(
        ".shapelayer text, .shape-label text, .shape-group text"
    ).all_text_contents()
    assert any(text.startswith("III") for text in drawn), drawn
    names = first.locator(".annotation text").all_text_contents()
    assert any("lld-decay" in text for text in names), names
    assert any("lld-collapse" in text for text in names), names
    assert tab.locator(".alarm .rule").all_inner_texts()[0].startswith("lld-")
    status = tab.locator(".status").inner_text()
    assert "critical" in status
    assert "ago" in status
    assert tab.get_by_text("Retriever or tool outage").count() == 1


def test_zoom_is_shared_and_survives_new_points(tab: Any) -> None:
    drawn(tab, "/run/live")
    drag(tab)
    until(tab, f"{FIRST}._fullLayout.xaxis.range[0] > 5")
    for _ in range(2):  # to where the next points come
        before = ranges(tab)[0][0]
        tab.keyboard.press("ArrowRight")
        until(tab, f"{FIRST}._fullLayout.xaxis.range[0] > {before}")
    until(tab, SHARED)
    zoomed = ranges(tab)
    seen = last_step(tab)
    until(tab, f"Math.max(...{FIRST}.data[0].x) > {min(seen, zoomed[0][1])}")
    assert ranges(tab) == zoomed
    assert "zoom=" in tab.url
    tab.locator(".js-plotly-plot .nsewdrag").first.dblclick()
    until(tab, f"{CHARTS}.every(c => c._fullLayout.xaxis.range[0] < 1)")
    until(tab, f"{FIRST}._fullLayout.xaxis.range[1] > {seen}")
    assert "zoom=" not in tab.url


def test_the_pointer_is_shown_in_all_charts(tab: Any) -> None:
    drawn(tab, "/run/dying")
    box = tab.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    pointed = (
        f"{CHARTS}.filter(c => c.querySelector('.hoverlayer .legend, .hoverlayer .hovertext'))"
    )
    tab.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
    until(tab, f"{pointed}.length === 8")
    tab.mouse.move(5, 5)
    until(tab, f"{pointed}.length === 0")


def test_pause_holds_the_page_still(tab: Any) -> None:
    drawn(tab, "/run/live")
    tab.keyboard.press("p")
    tab.get_by_role("button", name="Resume").wait_for()
    until(tab, lambda: not tab.unanswered)
    ticked(tab, "clock", 1)
    until(tab, "!document.querySelector('.dash-graph--pending')")
    held = last_step(tab)
    ticked(tab, "clock", 2)
    assert last_step(tab) == held
    tab.get_by_role("button", name="Resume").click()
    until(tab, f"Math.max(...{FIRST}.data[0].x) > {held}")


def test_comparison_overlays_runs_and_hides_one_in_all_charts(tab: Any) -> None:
    tab.goto("/compare?run=dying&run=healthy&run=missing")
    tab.wait_for_selector(DRAWN)
    assert "no run “missing”" in tab.locator(".notice").inner_text()
    names = (
        "[...document.querySelectorAll('.js-plotly-plot')].map(c => c.data.map(t => t.name).join())"
    )
    assert tab.evaluate(names) == ["dying,healthy"] * 8
    tab.locator(".shown input").first.uncheck()
    until(tab, f"({names}).every(n => n === 'healthy')")


def test_axis_smoothing_and_theme_are_kept_in_address_and_browser(tab: Any) -> None:
    tab.goto("/run/dying")
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


def test_missing_run_shows_words_until_it_appears(tab: Any, root: Path) -> None:
    tab.goto("/run/later")
    tab.get_by_text("Waiting for “later”").wait_for()
    write_run(root / "later", 5)
    tab.wait_for_selector(DRAWN)


def test_deleted_run_says_so_and_keeps_what_was_drawn(tab: Any, root: Path) -> None:
    tab.goto("/run/short-lived")
    tab.wait_for_selector(DRAWN)
    (root / "short-lived").rename(root.parent / "gone")
    tab.get_by_text("The last charts are shown.").wait_for()
    assert tab.locator(DRAWN).count() >= 8
