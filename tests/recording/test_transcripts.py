"""What is read from texts: actions, answers, questions, and what of them is recorded."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lldscope.recording.batch import Batch
from lldscope.recording.columns import MOST_QUESTION, prompt_hash, tables
from lldscope.recording.transcripts import (
    Turn,
    documents_hash,
    exact_match,
    golden_answers,
    message_turns,
    parse,
    question_of,
    tagged_turns,
)

QWEN = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


FED = "<information>Doc 1(Title: t) a Doc 2(Title: u) b</information>"
HASH = documents_hash(["(Title: u) b", "(Title: t) a"])
INVALID = "\nMy previous action is invalid. Use tags. Let me try again.\n"
CALL = [{"role": "assistant", "tool_calls": [1]}, {"role": "tool", "content": "sun"}]
FAILS = [CALL[0], {"role": "tool", "content": "{'error': 'no'}"}]
SEARCH = Turn("search", True, documents_hash(["sun"]))
FAILED = Turn("search", False, documents_hash(["{'error': 'no'}"]))
SAYS = {"role": "assistant", "content": "it is"}


@pytest.mark.parametrize(
    ("response", "turns", "answer"),
    [
        (f"<search>x</search>{FED}<answer> y </answer>",
         (Turn("search", True, HASH), Turn("answer")), "y"),
        ("<tool_call>x</tool_call><tool_response>r</tool_response>user\n\n",
         (Turn("search", True, documents_hash(["r"])),), None),
        ("<search>x</search><information> </information> \n", (Turn("search", False),), None),
        (f"<search>x{FED}<search>", (Turn("invalid"), Turn("text")), None),
        (f"x{INVALID}{INVALID}<answer>1</answer><answer>2", (Turn("invalid"), Turn("answer")), "1"),
        (f"<answer>a</answer>{FED}<answer>b</answer>.", (Turn("answer"), Turn("answer")), "b"),
        (" \nassistant\n", (), None),
    ],
)
def test_actions_of_a_response_with_tags(response, turns, answer):
    transcript = parse(response)
    assert (transcript.turns, transcript.answer) == (turns, answer)


@pytest.mark.parametrize(
    ("texts", "fed", "truncated", "kinds"),
    [
        (["<search>x</search>", "no tags", "<answer>y</answer>"], [FED, INVALID, ""], False,
         ["search", "invalid", "answer"]),
        (["call", "and so"], ["result", ""], False, ["search", "answer"]),
        (["call", "and s"], ["result", ""], True, ["search", "text"]),
        (["hello"], [""], False, ["text"]),
        (["<answer>y</answer>", "", "more"], ["", "x", "y"], False,
         ["answer", "invalid", "invalid"]),
    ],
)
def test_actions_by_their_texts(texts, fed, truncated, kinds):
    assert [turn.kind for turn in tagged_turns(texts, fed, truncated=truncated)] == kinds


@pytest.mark.parametrize(
    ("mask", "completion", "truncated", "turns"),
    [
        ("101", [*CALL, SAYS], False, [SEARCH, Turn("answer")]),
        ("101", [*CALL, SAYS], True, [SEARCH, Turn("text")]),
        ("101", [*CALL, CALL[0]], False, [SEARCH, Turn("text")]),
        ("110010", [*CALL, *FAILS], False, [SEARCH, FAILED]),
        ("1001", "no messages", False, [Turn("search"), Turn("answer")]),
        ("10101", [*CALL, SAYS], False, [Turn("search"), Turn("search"), Turn("answer")]),
        ("00", [], False, []),
    ],
)
def test_actions_by_messages(mask, completion, truncated, turns):
    mask = np.array([bit == "1" for bit in mask])
    assert message_turns(mask, completion, truncated=truncated) == turns


@pytest.mark.parametrize(
    ("value", "answers"),
    [("[1] is", ["[1] is"]), ('["a", null, 2]', ["a", "2"]), ('{"target": "a"}', ["a"]),
     ({"ground_truth": ["a"]}, ["a"]), ({}, []), (None, []), ("a", ["a"]), ("1", ["1"])],
)
def test_golden_answers_in_any_form(value, answers):
    assert golden_answers(value) == answers


@pytest.mark.parametrize(
    ("answer", "is_match"),
    [("The  Sun!", True), ("a sun", True), ("sunny", False), (None, False), ("", False)],
)
def test_an_exact_match_is_one_of_words(answer, is_match):
    assert exact_match(answer, ["moon", "sun"]) == is_match


@pytest.mark.parametrize("protocol", [None, "tags", "messages"])
def test_searches_are_counted_where_a_protocol_is_known(protocol):
    turns = [[Turn("search"), Turn("invalid"), Turn("answer")], [Turn("search")]]
    rows = tables(Batch(
        step=0, mask=None, prompt_ids=None, completion_ids=None, rewards=[0.0, 1.0],
        correct=[False, True], group_ids=[0, 0], turns=turns, protocol=protocol,
    ))["responses"]
    counts = [rows[name] and list(rows[name]) for name in ("n_searches", "n_invalid", "answered")]
    assert counts == [
        [1, 1] if protocol else None, [1, 0] if protocol == "tags" else None,
        [True, False] if protocol else None,
    ]


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


def test_a_prompt_is_known_by_its_hash() -> None:
    hashes = [prompt_hash(ids) for ids in ([1, 2], [1, 2], [2, 1], "given", None)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert len(hashes[0]) == 8
    assert hashes[3:] == ["given", None]


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
