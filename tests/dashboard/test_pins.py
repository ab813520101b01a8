"""Charts that the reader adds: found by substring and regular expression, without a reload, and
there again on the pages of other runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import CHARTS, DRAWN, until
from made_up_runs import write_step

import lldscope

pytestmark = pytest.mark.browser

TITLES = "[...document.querySelectorAll('.chart h2')].slice(8).map(h => h.textContent).join()"
NAMES = ("rewards/format", "rewards/answer", "actor/ppo_kl", "lr_group/0")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        with lldscope.Recorder(root / name) as recorder:
            for step in range(30):
                write_step(recorder, step, dies=False, at=1e9 + step)
                for scalar in NAMES:
                    recorder.scalars(step=step, name=scalar, value=0.1 * step)
    return root


def add(tab: Any, text: str, button: str) -> None:
    tab.locator("#find-chart").fill(text)
    tab.locator("#matches").get_by_role("button", name=button, exact=True).click()


def test_charts_are_added_one_after_the_other_without_a_reload(tab: Any) -> None:
    tab.goto("/run/one")
    tab.wait_for_selector(DRAWN)
    tab.evaluate("window.here = true")
    add(tab, "format", "rewards/format")
    until(tab, f"({TITLES}) === 'rewards/format'")
    add(tab, "scalar/actor", "actor/ppo_kl")
    until(tab, f"({TITLES}) === 'rewards/format,actor/ppo_kl'")
    add(tab, "^(scalar/)?(rewards|lr_group)/", "Add all 2")
    until(tab, f"({TITLES}) === 'rewards/format,actor/ppo_kl,lr_group/0,rewards/answer'")
    until(tab, f"{CHARTS}.length === 12 && {CHARTS}.every(c => c._fullLayout)")
    assert tab.evaluate("window.here"), "the page was not loaded again"
    tab.locator("#find-chart").fill("[")
    until(tab, "document.querySelector('#matches').textContent.startsWith('0 of')")
    tab.goto(tab.url)
    until(tab, f"({TITLES}) === 'rewards/format,actor/ppo_kl,lr_group/0,rewards/answer'")
    tab.goto("/run/two")  # names no chart: those of this browser
    until(tab, f"({TITLES}).split(',').length === 4")
    for left in (3, 2, 1, 0):
        card = tab.locator(".card.chart").nth(8)
        card.locator(".tools summary").click()
        card.get_by_role("button", name="remove").click()
        until(tab, f"document.querySelectorAll('.chart h2').length === 8 + {left}")
    tab.goto("/compare?run=one&run=two&chart=rewards/answer")
    until(tab, f"({TITLES}) === 'rewards/answer'")


@pytest.mark.parametrize("stored", ["not json", '{"a": 1}', '[5, null, "</script>"]'])
def test_whatever_is_stored_pages_open(tab: Any, stored: str) -> None:
    tab.goto("/rules")
    tab.evaluate("text => localStorage.setItem('pins', text)", stored)
    tab.goto("/run/two")
    tab.wait_for_selector(DRAWN)
    assert tab.evaluate(TITLES) == ""
