"""The rule for "correct": exact match of the last answer, as Search-R1's `qa_em.py` has it.

Departure: Search-R1 needs two answer spans in prompt plus response, because its prompt holds an
example answer; here only what the policy wrote is looked at, so one is enough.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

CORRECT_RULE = "exact match of the last <answer> with a gold answer, after normalisation"

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces, in this order."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def last_answer(written: str) -> str | None:
    """The content of the last answer span the policy wrote, or None."""
    spans = ANSWER.findall(written)
    return spans[-1].strip() if spans else None


def exact_match(written: str, golds: Sequence[str]) -> float:
    """1.0 if the last answer equals a gold answer after normalisation, else 0.0."""
    answer = last_answer(written)
    if answer is None:
        return 0.0
    return float(normalize_answer(answer) in {normalize_answer(gold) for gold in golds})
