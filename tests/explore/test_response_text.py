"""What responses say: previews in their list, search in their text, and the list's order kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import open_page, served

import lldscope
from lldscope.explore.responses import PREVIEW, ResponseQuery, find_responses

SAMPLES = Path(__file__).parents[2] / "sample_runs"
QUESTION = "What is the capital of Peru?"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Response 0 has its tokens, 1 its text, 2 neither."""
    path = tmp_path_factory.mktemp("runs") / "run"
    words = [(QUESTION, None), (" I", 0), (" say", 0), (" Lima", 0), (" <b>", None), (" done", 1)]
    with lldscope.Recorder(path) as recorder:
        recorder.responses(
            step=0, response_id=[0, 1, 2], group_id=0, reward=[1.0, 0.0, 0.0],
            correct=[True, False, False], text=[None, "Q" * 200 + " and 100 % Quito", None],
        )
        recorder.tokens(
            step=0, response_id=0, position=list(range(len(words))),
            action_index=[action for _, action in words], text=[text for text, _ in words],
        )
        recorder.step(step=0, n_responses=3, reward_sum=1.0)
    with lldscope.open_run(path) as opened_run:
        yield opened_run


def test_question_and_answer_are_previewed_from_tokens_or_text(run: Any) -> None:
    rows = find_responses(run, ResponseQuery()).rows.set_index("response_id")
    assert rows.loc[0, "question"] == QUESTION
    assert rows.loc[0, "answer"] == " I say Lima <b> done"
    assert rows.loc[1, "question"] == "Q" * PREVIEW
    assert rows.loc[1, "answer"].endswith(" and 100 % Quito")
    assert len(rows.loc[1, "answer"]) == PREVIEW
    assert rows.loc[2, ["question", "answer"]].isna().all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("lima", [0]), ("LIMA <B>", [0]), ("capital of", [0]), ("100 %", [1]), ("1_0", []),
     ("quito", [1]), ("q", [1]), ("", [0, 1, 2])],
)
def test_words_are_found_in_prompt_and_response_as_they_stand(
    run: Any, text: str, expected: list[int]
) -> None:
    page = find_responses(run, ResponseQuery(text=text))
    assert list(page.rows["response_id"]) == expected
    assert page.total == len(expected)


@pytest.mark.browser
@pytest.mark.slow
def test_the_list_is_searched_and_keys_go_through_the_group(chromium: Any, tmp_path: Path) -> None:
    with served(SAMPLES, tmp_path) as address, open_page(chromium, address) as tab:
        tab.goto("/responses/grpo?alarm=lld-decay&at=54")
        tab.wait_for_selector(".grid .run-link")
        links = tab.locator(".grid .run-link")
        assert "currency of Peru.\n" in tab.locator(".preview").first.inner_text()
        links.first.click()
        tab.wait_for_selector(".group .chip.now")
        chips = tab.locator(".group .chip")
        here = re.search(r"id=(\d+)", tab.url)[1]
        last = "now" in (chips.last.get_attribute("class") or "").split()
        tab.keyboard.press("[" if last else "]")
        tab.wait_for_url(re.compile(rf"id=(?!{here}\b)"))
        tab.wait_for_selector(".group .chip.now")
        tab.keyboard.press("]" if last else "[")
        tab.wait_for_url(re.compile(rf"id={here}\b"))
        tab.goto("/responses/grpo")
        tab.get_by_role("searchbox", name="text").fill("Jordan")
        tab.get_by_role("button", name="Show").click()
        tab.wait_for_url(re.compile("text=Jordan"))
        tab.wait_for_selector(".count >> text=2 responses")
        assert tab.locator(".grid tbody tr").count() == 2
