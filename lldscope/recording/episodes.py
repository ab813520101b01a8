"""Actions of a rollout and whether its answer is right, recovered from its text.

Tags of Search-R1 (`<search>`, `<answer>`, tool text in `<information>`) and of Hermes-style tool
calls (`<tool_call>`, tool text in `<tool_response>`). Tool text separates actions. Exact match is
that of SQuAD and Search-R1 (`verl/utils/reward_score/qa_em.py`): lower case, without articles,
punctuation and superfluous blanks.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# What the environment says to the policy, tool text or a complaint, begins a new action.
_TOOL_TEXT = re.compile(
    r"<information>(?P<found>.*?)(?:</information>|\Z)"
    r"|<tool_response>(?P<answered>.*?)(?:</tool_response>|\Z)"
    r"|\s*My previous action is invalid\..*?Let me try again\.\s*",
    re.DOTALL,
)
_SEARCH = re.compile(r"<search>.*?</search>|<tool_call>.*?</tool_call>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_TAG = re.compile(r"<(?:search|answer|tool_call|information|tool_response)>")
_DOCUMENT = re.compile(r"Doc \d+\s*(?=\(Title:)")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ROLES = re.compile(r"\s*(?:(?:user|assistant|tool)\s*\n\s*)+|\s+")


@dataclass(frozen=True)
class Turn:
    """One action: its kind, and the documents that came back (None: nothing came back)."""

    kind: str  # search, answer, invalid, text
    docs: str | None = None

    @property
    def tool_ok(self) -> bool | None:
        return (self.docs != "") if self.kind == "search" and self.docs is not None else None

    @property
    def docs_hash(self) -> str | None:
        """Hash of the set of documents, whatever their order."""
        if self.kind != "search" or not self.docs:
            return None
        documents = sorted({d.strip() for d in _DOCUMENT.split(self.docs)} - {""})
        return short_hash("\0".join(documents))


@dataclass(frozen=True)
class Episode:
    """What a rollout did; `answer` is the last one it gave."""

    turns: tuple[Turn, ...]
    answer: str | None

    def count(self, kind: str) -> int:
        return sum(turn.kind == kind for turn in self.turns)

    def columns(self) -> dict[str, Any]:
        """Columns of its row in `responses`."""
        return {
            "n_actions": len(self.turns),
            "n_searches": self.count("search"),
            "n_invalid": self.count("invalid"),
            "answered": self.answer is not None,
        }


def has_tags(text: str) -> bool:
    """Whether the protocol of the tags is spoken of, or used."""
    return _TAG.search(text) is not None


def parse(response: str) -> Episode:
    """The actions of a response, tool text included, in a protocol with tags."""
    turns: list[Turn] = []
    at = 0
    for tool in _TOOL_TEXT.finditer(response):
        said = response[at : tool.start()]
        docs = tool["found"] if tool["found"] is not None else tool["answered"]
        at = tool.end()
        if not _blank(said):
            turns.append(Turn(_kind(said, ended=True), None if docs is None else docs.strip()))
    if not _blank(response[at:]):
        turns.append(Turn(_kind(response[at:], ended=False)))
    answers = _ANSWER.findall(_TOOL_TEXT.sub("", response))
    return Episode(tuple(turns), answers[-1].strip() if answers else None)


def _blank(text: str) -> bool:
    return not text or _ROLES.fullmatch(text) is not None


def _kind(said: str, ended: bool) -> str:
    """What an action was; one that the environment did not react to may have been cut."""
    if _ANSWER.search(said):
        return "answer"
    if _SEARCH.search(said):
        return "search"
    return "invalid" if ended else "text"


def exact_match(answer: str | None, golden: Iterable[str]) -> bool:
    """Whether an answer is one of the golden ones after normalization."""
    if answer is None:
        return False
    return normalized(answer) in {normalized(g) for g in golden}


def normalized(text: str) -> str:
    plain = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def golden_answers(value: Any) -> list[str]:
    """The golden answers of whatever a log holds: a text, a list, `{"target": …}`, or those as
    JSON; empty if there is none."""
    if isinstance(value, str) and value[:1] in "[{":
        try:
            value = json.loads(value)
        except ValueError:
            return [value]
    if isinstance(value, dict):
        value = value.get("target", value.get("ground_truth"))
    if isinstance(value, list | tuple):
        return [str(v) for v in value if v is not None]
    return [] if value is None else [str(value)]


def short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
