"""What colours tokens, and a group side by side: on the page and in a browser."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import open_page, until
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.figures.token_overlays import OVERLAYS, overlay_of
from lldscope_dashboard.pages.group_page import MOST_BESIDE
from lldscope_dashboard.pages.router import page
from test_tokens_pages import HOSTILE, displayed

import lldscope
from lldscope.recording.batch import Batch, Scores
from lldscope.recording.columns import record, tables

NAN = float("nan")


def made_batch(n: int = 3) -> Batch:
    """`n` responses of one group: four own tokens each and one of the tool, `old` at −1."""
    mask = np.array([[1, 1, 0, 1, 1]] * n, bool)
    old = np.full(mask.shape, -1.0)
    post = old + np.array([-3.0, 0.0, 0.0, 0.2, 1.0])
    behaviour = old - np.array([-2.0, 0.0, 9.0, 0.01, 0.0])
    behaviour[0, 4] = NAN
    return Batch(
        step=4,
        mask=mask,
        prompt_ids=[[90, 91]] * n,
        completion_ids=[[0, 1, 2, 3, 4]] * n,
        rewards=np.arange(n) / n,
        correct=[i % 2 == 0 for i in range(n)],
        group_ids=np.full(n, 7),
        old=old,
        post=Scores(post, np.ones(n, bool)),
        behaviour=behaviour,
        entropy=Scores(np.abs(old) * [0.0, 3.0, 0.0, 0.5, 0.01], np.ones(n, bool)),
        decode=lambda ids: "".join(HOSTILE if i == 3 else f" w{i}" for i in ids),
    )


def test_the_engine_s_log_probabilities_are_recorded_with_the_tokens() -> None:
    columns = tables(made_batch(), tokens_every=1)["tokens"]
    assert columns["logp_behaviour"][:7] == [None, None, 1.0, -1.0, None, -1.01, None]
    batch = made_batch()
    batch.behaviour = None
    assert set(tables(batch, tokens_every=1)["tokens"]["logp_behaviour"]) == {None}


@pytest.mark.parametrize(
    ("key", "token", "look"),
    [
        ("delta", {"delta": -3.0}, "lost heavy"),
        ("delta", {"delta": 0.2}, "gained"),
        ("entropy", {"entropy": 0.5}, "uncertain"),
        ("entropy", {"entropy": 1.5}, "uncertain heavy"),
        ("entropy", {"entropy": None}, ""),
        ("entropy", {"entropy": 0.0}, ""),
        ("mismatch", {"mismatch": -0.3}, "lost"),
        ("mismatch", {"mismatch": log(2)}, "gained heavy"),
        ("mismatch", {"mismatch": NAN}, ""),
        ("mask", {"action_index": 0}, "trained"),
        ("mask", {"action_index": None}, ""),
    ],
)
def test_a_token_looks_as_its_measurement_is(key: str, token: dict[str, Any], look: str) -> None:
    assert OVERLAYS[key].of(token, "tok")["className"] == f"tok {look}".strip()
    assert overlay_of(key).key == key
    assert overlay_of("<b>").key == overlay_of(None).key == "delta"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    with lldscope.Recorder(root / "run") as recorder:
        record(recorder, made_batch(), tokens_every=1)
    with lldscope.Recorder(root / "many") as recorder:
        n = MOST_BESIDE + 3
        recorder.responses(
            step=0, response_id=list(range(n)), group_id=0, correct=[True] * n, reward=1.0
        )
        recorder.responses(step=0, response_id=90, text=HOSTILE)
        recorder.step(step=0, n_responses=n)
    return root


def words(root: Path, path: str, search: str) -> str:
    return " ".join(displayed(page(RunRegistry(root), path, search)))


@pytest.mark.slow
def test_a_group_stands_side_by_side_with_what_was_recorded_of_it(root: Path) -> None:
    text = words(root, "/group/run", "?step=4&id=1&color=entropy")
    assert "Group 7 of step 4" in text
    assert "3 responses, 2 correct" in text
    assert "mean reward 0.333" in text
    assert text.count("asked") == 1
    # the correct ones first
    at = [text.index(f"Response {i}") for i in (0, 2, 1)]
    assert at == sorted(at)
    assert HOSTILE not in text
    many = words(root, "/group/many", "?step=0&id=0")
    assert many.count("Response ") == MOST_BESIDE
    assert "3 more are in the list" in many
    alone = words(root, "/group/many", "?step=0&id=90")
    assert "A response without group" in alone
    for search in ("", "?step=4", "?step=4&id=99", "?step=x&id=0"):
        assert "no such response" in (w := words(root, "/group/run", search)) or "No group" in w


def test_what_no_token_has_cannot_be_chosen(root: Path) -> None:
    text = words(root, "/response/many", "?step=0&id=90")
    assert "engine mismatch (not measured)" in text
    assert "engine mismatch (not measured)" not in words(root, "/response/run", "?step=4&id=0")


@pytest.mark.browser
@pytest.mark.slow
def test_the_choice_of_colours_stays_on_the_way_through_a_group(
    chromium: Any, address: str
) -> None:
    with open_page(chromium, address) as tab:
        tab.goto("/response/run?step=4&id=0")
        tab.locator(".tok.lost.heavy[role=option]").first.wait_for()
        tab.locator("[data-address=color]").select_option("mismatch")
        tab.wait_for_url("**color=mismatch**")
        far = tab.locator(".tok.lost.heavy[role=option]").first
        far.hover()
        assert "log π engine 1" in tab.locator("#token-status").inner_text()
        tab.keyboard.press("]")
        tab.wait_for_url("**id=1&color=mismatch**")
        tab.get_by_role("link", name="Side by side").click()
        tab.wait_for_url("**/group/run?**color=mismatch**")
        columns = tab.locator(".beside-each-other > .words")
        until(tab, lambda: columns.count() == 3)
        until(tab, lambda: columns.first.locator(".tok.lost.heavy[role=option]").count() == 1)
        tab.locator("[data-address=color]").select_option("mask")
        tab.wait_for_url("**color=mask**")
        until(tab, lambda: columns.first.locator(".tok.trained[role=option]").count() == 4)
        assert tab.evaluate("window.hit") is None
        tab.set_viewport_size({"width": 390, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        columns.nth(2).locator("h2 a").click()
        tab.wait_for_url("**/response/run?**id=1&color=mask**")
        tab.set_viewport_size({"width": 1280, "height": 800})  # a phone has no column of groups
        tab.goto("/responses/run")
        tab.locator(".grid tbody a", has_text="7").first.click()
        tab.wait_for_url("**/group/run?**")
