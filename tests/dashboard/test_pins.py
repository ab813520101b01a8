"""Charts that were added follow the reader to other runs, and an address shows what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import DRAWN
from made_up_runs import write_run

pytestmark = pytest.mark.browser

ADDED = "[...document.querySelectorAll('.tools')].slice(8).map(t => t.dataset.chart).join()"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "one", 140, dies=True)
    write_run(root / "two", 30)
    return root


def test_an_added_chart_stays_for_other_runs_until_it_is_removed(tab: Any, address: str) -> None:
    tab.goto("/run/one")
    tab.locator("[data-add=success]").click()
    tab.wait_for_url("**chart=success**")
    tab.get_by_role("link", name="Runs").first.click()
    tab.locator("#rows").get_by_role("link", name="two").click()
    tab.wait_for_url("**/run/two?chart=success")
    tab.wait_for_selector(DRAWN)
    assert tab.evaluate(ADDED) == "success"
    tab.goto("/run/one")
    tab.wait_for_selector(DRAWN)
    assert tab.evaluate(ADDED) == "", "an address shows what it says"
    tab.goto("/run/one?chart=step_seconds&x=time")
    tab.locator(".answer a").click()
    tab.wait_for_url("**/run/one?chart=step_seconds&x=time#alarm-*")
    card = tab.locator(".card.chart", has=tab.locator("[data-chart=step_seconds]"))
    card.locator(".tools summary").click()
    card.get_by_role("button", name="remove").click()
    tab.wait_for_url(lambda url: "step_seconds" not in url)
    tab.goto("/run/two?chart=success")
    card = tab.locator(".card.chart", has=tab.locator("[data-chart=success]"))
    card.locator(".tools summary").click()
    card.get_by_role("button", name="remove").click()
    tab.wait_for_url(lambda url: "success" not in url)
    tab.goto("/")
    tab.locator("#rows").get_by_role("link", name="one").first.click()
    tab.wait_for_url("**/run/one")


@pytest.mark.parametrize("stored", ["not json", '{"a": 1}', '[5, null, "</script>"]'])
def test_whatever_is_stored_pages_open(tab: Any, stored: str) -> None:
    tab.goto("/")
    tab.evaluate("text => localStorage.setItem('lldscope-charts', text)", stored)
    tab.locator("#rows").get_by_role("link", name="two").click()
    tab.wait_for_url("**/run/two**")
    tab.wait_for_selector(DRAWN)
    assert tab.evaluate(ADDED) == ""
