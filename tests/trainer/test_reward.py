"""Normalisation, EM, F1 and rewards."""

from __future__ import annotations

import pytest
from lldscope_trainer.data.datasets import Question
from lldscope_trainer.environment.protocol import Action, Episode, Scoring
from lldscope_trainer.environment.reward import (
    em,
    f1,
    search_r1_answer,
    valid_format,
)

from lldscope.recording.transcripts import last_answer, normalized


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Hague!", "hague"),
        ("an Apple a day", "apple day"),
        ("Theatre", "theatre"),
        ("São Tomé", "são tomé"),
        ("U.S.", "us"),
        ("a.n. Other", "other"),  # punctuation goes first, so this leaves an article
        ("1939–45", "1939–45"),  # only ASCII punctuation is punctuation
        ("1939-45", "193945"),
        ("the–end", "–end"),
        ("in–the–end", "in– –end"),
        ("6,300 km", "6300 km"),
        ("A+", ""),
        ("ÉCOLE\u00a0\t\nB", "école b"),
    ],
)
def test_normalized(text, expected):
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("answer", "golds", "exact", "tokens"),
    [
        (None, ["Lima"], 0, 0),
        ("The Lima!", ["Quito", "lima"], 1, 1),
        ("A+", ["the"], 1, 0),  # nothing is left of either
        ("Peru", ["Lima"], 0, 0),
        ("Lima Peru", ["Lima"], 0, 2 / 3),
        ("Lima Lima", ["Lima"], 0, 2 / 3),  # a token counts as often as both sides have it
        ("Lima Lima", ["Lima Lima Peru"], 0, 0.8),
        ("red blue", ["blue green", "blue red green", "grey"], 0, 0.8),
        # HotpotQA (hotpot_evaluate_v1.py): these three are right as a whole or not at all.
        ("Yes.", ["yes"], 1, 1),
        ("yes no", ["yes"], 0, 0),
        ("no", ["no idea"], 0, 0),
        ("noanswer", ["noanswer x"], 0, 0),
    ],
)
def test_em_and_f1(answer, golds, exact, tokens):
    assert em(answer, golds) == exact
    assert f1(answer, golds) == pytest.approx(tokens)


def test_the_last_complete_answer_counts():
    text = "<answer>Lima</answer> no, <answer> Quito </answer> or <answer> La Paz"
    assert last_answer(text) == "Quito"
    assert last_answer("Quito") is None
    assert last_answer("<answer>two\nlines</answer>") == "two\nlines"
    assert last_answer("<answer></answer>") == ""


def test_search_r1_wants_two_answers_in_prompt_and_response():
    prompt = "For example, <answer> Beijing </answer>. Question: Which city?\n"
    assert search_r1_answer(prompt) is None
    assert search_r1_answer(prompt + "<answer> Lima </answer>") == "Lima"
    # Without the example an answer is not seen, and a document can give one.
    assert search_r1_answer("Question: Which city?\n<answer> Lima </answer>") is None
    tool = "<information>Doc 1(Title: x) <answer>Oslo</answer>\n</information>"
    assert search_r1_answer(prompt + tool) == "Oslo"


def reward(answer: str, golds: list[str], kinds: list[str], **scoring) -> float:
    """Of an episode with actions of these kinds, the last of which gave this answer."""
    return Episode(
        Question("q", tuple(golds), "made", "0"), scoring=Scoring(**scoring),
        actions=[Action(kind, "") for kind in kinds], turns=[f"<answer>{answer}</answer>"],
    ).reward


@pytest.mark.parametrize(
    ("kinds", "valid"),
    [
        (["answer"], True),
        (["search", "search", "answer"], True),
        (["search", "invalid", "answer"], False),
        (["search", "search"], False),
        (["invalid"], False),
        ([], False),
    ],
)
def test_valid_format(kinds, valid):
    assert valid_format(kinds) == valid
    assert reward("Oslo", ["Lima"], kinds, format_reward=0.1) == (0.1 if valid else 0.0)
    assert reward("Lima", ["Lima"], kinds, format_reward=0.1) == 1.0


def test_reward_kinds():
    golds, kinds = ["Lima"], ["answer"]
    assert reward("Lima Peru", golds, kinds) == 0.0
    assert reward("Lima Peru", golds, kinds, reward="f1") == pytest.approx(2 / 3)
    # A format that pays more than a poor answer does not make the answer worthless, or worse.
    assert reward("Lima Peru", golds, kinds, reward="f1", format_reward=0.2) == pytest.approx(2 / 3)
    assert reward("Lima Peru", golds, kinds, reward="f1", format_reward=0.9) == 0.9
