"""The actions of a rollout and whether its answer is correct, from its text or its messages.

Tags of Search-R1 (`<search>`, `<answer>`, tool text in `<information>`) and of Hermes-style tool
calls (`<tool_call>`, tool text in `<tool_response>`). Tool text separates actions. Exact match is
that of SQuAD and Search-R1 (`verl/utils/reward_score/qa_em.py`): lower case, without articles,
punctuation and repeated spaces.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# What the environment feeds to the policy, tool text or an error message, ends an action.
_TOOL_TEXT = re.compile(
    r"<information>(?P<documents>.*?)(?:</information>|\Z)"
    r"|<tool_response>(?P<response>.*?)(?:</tool_response>|\Z)"
    r"|My previous action is invalid\..{0,1000}?Let me try again\.",
    re.DOTALL,
)
_TAG = re.compile(r"<(?:search|answer|tool_call|information|tool_response)>")
_DOCUMENT = re.compile(r"Doc \d+\s*(?=\(Title:)")
_GOLDEN = ("gts", "golden_answers", "ground_truth", "target", "answer", "solution", "label")
# Before a user's turn in a chat template as text; after it, in the order of removal.
_USER = re.compile(r"<\|im_start\|>user\n|(?:^|\n)user\n")
_AFTER = ("<|im_start|>assistant", "\nassistant", "<|im_end|>")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
MOST_ASKED = 4000  # characters at the end of a prompt in which a question is looked for
_ROLES = frozenset(("user", "assistant", "tool", ""))


@dataclass(frozen=True)
class Turn:
    """One action: its kind, whether its tool worked (None: no tool, or not known), and a hash of
    the set of documents that came back (None: nothing came back)."""

    kind: str | None  # search, answer, invalid, text; None: not known
    tool_ok: bool | None = None
    docs_hash: str | None = None


@dataclass(frozen=True)
class Transcript:
    turns: tuple[Turn, ...]
    answer: str | None


def has_tags(text: str) -> bool:
    """Whether a tag of one of the protocols occurs, in an instruction or in use."""
    return _TAG.search(text) is not None


def parse(response: str) -> Transcript:
    """The actions of a response in a protocol with tags, tool text included."""
    turns: list[Turn] = []
    start = 0
    for tool in _TOOL_TEXT.finditer(response):
        text = response[start : tool.start()]
        fed = tool["documents"] if tool["documents"] is not None else tool["response"]
        if fed is None:  # white space around an error message is the environment's
            text = text.rstrip()
        start = tool.end()
        if not _blank(text):
            turns.append(_turn(_kind(text, was_answered=True), fed))
    if not _blank(response[start:]):
        turns.append(Turn(_kind(response[start:], was_answered=False)))
    return Transcript(tuple(turns), last_answer(_TOOL_TEXT.sub("", response)))


def _turn(kind: str, fed: str | None) -> Turn:
    if kind != "search" or fed is None:
        return Turn(kind)
    documents = {part.strip() for part in _DOCUMENT.split(fed)} - {""}
    return Turn(kind, bool(fed.strip()), documents_hash(documents) if fed.strip() else None)


def documents_hash(documents: Iterable[str]) -> str:
    """The same for the same set of documents, whatever their order."""
    return short_hash("\0".join(sorted(set(documents))))


def _blank(text: str) -> bool:
    """Whether nothing is in a text but white space, and names of roles on lines of their own."""
    *whole, last = text.split("\n")
    return not last.strip() and all(line.strip() in _ROLES for line in whole)


def _holds(text: str, tag: str) -> bool:
    """Whether a tag is opened and closed. Not a regular expression: a text that opens the tag
    repeatedly, as failing policies write, would be scanned to its end each time."""
    begins = text.find(f"<{tag}>")
    return begins >= 0 and text.find(f"</{tag}>", begins) >= 0


def last_answer(text: str) -> str | None:
    """The content of the last complete answer span of a text, or None."""
    answer, at = None, 0
    while (begins := text.find("<answer>", at)) >= 0:
        ends = text.find("</answer>", begins)
        if ends < 0:
            break
        answer, at = text[begins + len("<answer>") : ends].strip(), ends
    return answer


def _kind(text: str, was_answered: bool) -> str:
    """The kind of an action; an action without an answer of the environment may have been cut
    off."""
    if _holds(text, "answer"):
        return "answer"
    if _holds(text, "search") or _holds(text, "tool_call"):
        return "search"
    return "invalid" if was_answered else "text"


def tagged_turns(texts: Sequence[str], fed: Sequence[str], *, truncated: bool) -> list[Turn]:
    """The actions of one rollout by the tags of Search-R1 or of Hermes-style tool calls.

    texts: the text of each action; fed: the environment's text after each action, or "". Without
    tags an action that was answered is a `search`, and the last action is an `answer` if it ended
    by itself after a search.
    """
    if not any(has_tags(text) for text in texts):
        kinds = ["search" if f else "text" for f in fed]
        if "search" in kinds[:-1] and kinds[-1] == "text" and not truncated:
            kinds[-1] = "answer"
        return [Turn(kind) for kind in kinds]
    turns = []
    for text, f in zip(texts, fed, strict=True):
        first = next(iter(parse(text + f).turns), Turn("text"))
        turns.append(Turn("invalid") if first.kind == "text" and f else first)
    return turns


def message_turns(mask: np.ndarray, completion: Any, *, truncated: bool) -> list[Turn]:
    """The actions of one rollout with tools, maximal runs of True in `mask` (completion tokens,).

    An action that was answered with tool text is a `search`, whatever the tool; one that ended by
    itself is an `answer`; everything else is `text`. `completion`: messages, or a string, as TRL
    has them.
    """
    n = int((mask & ~np.pad(mask, (1, 0))[:-1]).sum())
    answers = _tool_answers(completion)
    if len(answers) != n:  # an environment without messages, or a turn that was cut off
        answers = [[]] * n
    turns = []
    for texts in answers:
        fails = any(text.startswith("{'error':") for text in texts)  # TRL's answer for the tool
        turns.append(Turn("search", not fails, documents_hash(texts)) if texts else Turn("search"))
    if n and mask[-1]:  # the last action was not answered
        last = completion[-1] if isinstance(completion, list) and completion else {}
        done = not truncated and not last.get("tool_calls")  # the call was not made
        turns[-1] = Turn("answer" if done else "text")
    return turns


def _tool_answers(completion: Any) -> list[list[str]]:
    """What the tools returned after each message of the assistant."""
    answers: list[list[str]] = []
    for message in completion if isinstance(completion, list) else []:
        if message.get("role") == "tool" and answers:
            answers[-1].append(str(message.get("content")))
        elif message.get("role") == "assistant":
            answers.append([])
    return answers


def exact_match(answer: str | None, golden: Iterable[str]) -> bool:
    """Whether an answer equals one of the golden answers after normalization. A golden answer of
    which normalization leaves nothing ("A+", "The The") equals an empty answer, as in the published
    code."""
    if answer is None:
        return False
    return normalized(answer) in {normalized(g) for g in golden}


def normalized(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces, in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def golden_of(row: Mapping[str, Any]) -> Any:
    """The golden answers of a row of a data set or log; None if it has none."""
    return next((row[k] for k in _GOLDEN if row.get(k) is not None), None)


def question_of(prompt: Any) -> str | None:
    """The question in a prompt: the last message of a user, or the text after its last "Question:"
    or mark of a user's turn; None if empty."""
    if isinstance(prompt, list):
        messages = [m.get("content") for m in prompt
                 if isinstance(m, dict) and m.get("role") == "user"]
        prompt = messages[-1] if messages else None
    if not isinstance(prompt, str):
        return None
    turn = _USER.split(prompt)[-1][-MOST_ASKED:]
    question = turn.rpartition("Question:")[2].rstrip()
    for mark in _AFTER:
        question = question.removesuffix(mark).rstrip()
    return question.strip() or None


def golden_answers(value: Any) -> list[str]:
    """The golden answers in a value of a log: a text, a list, `{"target": …}`, or one of these as
    JSON; empty if there is none."""
    if isinstance(value, str) and value[:1] in "[{":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return [value]
    if isinstance(value, dict):
        value = value.get("target", value.get("ground_truth"))
    if isinstance(value, list | tuple):
        return [str(v) for v in value if v is not None]
    return [] if value is None else [str(value)]


def short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
