"""What a prompt asks, and what of it is recorded."""

from __future__ import annotations

import json

import pytest

from lldscope.recording.batch import Batch
from lldscope.recording.columns import MOST_QUESTION, tables
from lldscope.recording.transcripts import question_of

QWEN = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        (QWEN, "What is 2+2?"),
        ("system\nBe brief.\nuser\nUse tags. Question: Who wrote Dune?\nassistant\n",
         "Who wrote Dune?"),
        ([{"role": "system", "content": "Hi"}, {"role": "user", "content": "Who?"}], "Who?"),
        ("What is an assistant", "What is an assistant"),
        ("x" + " " * 100_000, None),  # beyond what is looked at
        ("", None), ([], None), (None, None), ([{"role": "user", "content": 3}], None),
    ],
)
def test_the_question_is_the_last_thing_that_a_user_asks(prompt: object, question: str) -> None:
    assert question_of(prompt) == question


def test_long_questions_are_cut_and_empty_or_long_parts_left_out() -> None:
    batch = Batch(
        step=0, mask=None, prompt_ids=None, completion_ids=None, rewards=[0.0, 1.0, 0.0],
        correct=[None] * 3, group_ids=[0, 0, 0], turns=[None] * 3,
        questions=["q" * 1000, None, " who? "], golden=[["a", "b"], [], ["x" * 9000]],
        reward_parts=[{"format": 0.5}, None, {}],
    )
    rows = tables(batch)["responses"]
    assert rows["question"] == ["q" * MOST_QUESTION, None, "who?"]
    assert [g and json.loads(g) for g in rows["golden"]] == [["a", "b"], None, None]
    assert rows["reward_parts"] == ['{"format": 0.5}', None, None]
