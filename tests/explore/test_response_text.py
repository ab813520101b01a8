"""What responses say: previews in their list and search in their text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import lldscope
from lldscope.explore.responses import PREVIEW, ResponseQuery, find_responses

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
