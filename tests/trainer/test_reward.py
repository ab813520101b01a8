"""EM, F1 and rewards against independent twins, on made-up answers and on the benchmarks' own."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lldscope_trainer.data.datasets import Question
from lldscope_trainer.environment.protocol import Action, Episode, Scoring
from lldscope_trainer.environment.reward import (
    em,
    f1,
    last_answer,
    normalize_answer,
    search_r1_answer,
    valid_format,
)

# -- twins: written from the published definitions, a character and a word at a time ---------------


def plain_words(text: str) -> list[str]:
    """SQuAD (arXiv 1606.05250, §6.1): ignore case, punctuation, articles and white space."""
    copies = "".join(c for c in text.lower() if c not in string.punctuation)
    words, word = [], ""
    for c in copies + " ":
        if c.isspace():
            words.append(word)
            word = ""
        else:
            word += c
    return [w for w in words if w]


def plain_normalize(text: str) -> str:
    """An article goes where it is a run of word characters of its own: "a–b" has one, "Ann" none.
    A word split by one stays split."""
    out = []
    for word in plain_words(text):
        run, rest = "", ""
        for c in word + " ":
            if c.isalnum() or c == "_":
                run += c
            else:
                rest += (" " if run in ("a", "an", "the") else run) + c
                run = ""
        out.extend(rest.split())
    return " ".join(out)


def plain_em(answer: str | None, golds: list[str]) -> float:
    return float(any(answer is not None and plain_normalize(answer) == plain_normalize(g)
                     for g in golds))


def plain_f1(answer: str | None, golds: list[str]) -> float:
    """HotpotQA (arXiv 1809.09600, §5.1, and hotpot_evaluate_v1.py): tokens found on both sides."""
    best = 0.0
    for gold in golds if answer is not None else []:
        mine, theirs = plain_normalize(answer), plain_normalize(gold)
        whole = ("yes", "no", "noanswer")
        if mine != theirs and (mine in whole or theirs in whole):
            continue
        left = theirs.split()
        shared = 0
        for token in mine.split():
            if token in left:
                left.remove(token)
                shared += 1
        if shared:
            precision = shared / len(mine.split())
            recall = shared / len(theirs.split())
            best = max(best, 2 * precision * recall / (precision + recall))
    return best


# -- normalisation ---------------------------------------------------------------------------------


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
        ("6,300 km", "6300 km"),
        ("A+", ""),
        ("ÉCOLE\u00a0\t\nB", "école b"),
    ],
)
def test_normalize_answer(text, expected):
    assert normalize_answer(text) == expected
    assert plain_normalize(text) == expected


ANSWERS = st.lists(
    st.sampled_from(
        ["the", "A", "an", "yes", "No", "noanswer", "Lima", "1,000", "U.S.", "–", "-", "a–b",
         "São", "'s", " ", "\n", "\u00a0", "ß", "İ", "_a_", "the's"]
    )
    | st.text(max_size=4),
    max_size=6,
).map(" ".join)


@given(ANSWERS)
def test_normalisation_agrees_with_its_twin_and_is_done_once(text):
    assert normalize_answer(text) == plain_normalize(text)
    assert normalize_answer(normalize_answer(text)) == normalize_answer(text)


# -- EM and F1 -------------------------------------------------------------------------------------


@given(ANSWERS, st.lists(ANSWERS, min_size=1, max_size=3))
def test_em_and_f1_agree_with_their_twins(answer, golds):
    assert em(answer, golds) == plain_em(answer, golds)
    assert f1(answer, golds) == pytest.approx(plain_f1(answer, golds), abs=1e-12)


# -- which answer counts ---------------------------------------------------------------------------


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


# -- reward ----------------------------------------------------------------------------------------


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
