"""The Search-R1 protocol: what the policy may write in a turn and what it is told in return.

A turn is everything the policy emits up to the first `</search>` or `</answer>`. A search gets the
documents back between information tags, an answer ends the episode, anything else gets a sentence
saying so; both cost a turn. After `max_turns` turns one last generation follows, to which the tool
no longer answers, so a rollout has at most `max_turns + 1` actions.

This module knows text only. Turning it into tokens, sampling and masking is rollout.py's business.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

from .retrieval import Retriever
from .reward import em, last_answer
from .world import Document, Question

TAGS = tuple(
    f"<{end}{tag}>" for tag in ("think", "search", "information", "answer") for end in ("", "/")
)
CLOSING = ("</search>", "</answer>")
INVALID = "\nThat was no action: give search tags or answer tags.\n"

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


@dataclass
class Action:
    """One turn of an episode. `documents` is None where the tool was not asked."""

    kind: str
    content: str
    documents: list[Document] | None = None

    @property
    def tool_ok(self) -> bool | None:
        """Whether the tool found anything; None if it was not asked."""
        return None if self.documents is None else bool(self.documents)

    @property
    def docs_hash(self) -> str | None:
        """Hash of the set of documents found, whatever their order; None if it was not asked."""
        if self.documents is None:
            return None
        return f"{crc32(repr(sorted(d.id for d in self.documents)).encode()):08x}"


@dataclass
class Episode:
    """One rollout of a question: the actions so far, what the policy wrote, whether it is over."""

    question: Question
    actions: list[Action] = field(default_factory=list)
    written: str = ""
    done: bool = False

    @property
    def answer(self) -> str | None:
        """The answer that counts, or None."""
        return last_answer(self.written)

    @property
    def correct(self) -> bool:
        """Whether the answer is right: exact match, whatever the reward is."""
        return em(self.answer, self.question.golds) == 1

    @property
    def reward(self) -> float:
        """Exact match of the answer."""
        return em(self.answer, self.question.golds)


def prompt_text(question: str, instruction: str = "") -> str:
    """The text a rollout starts from; a question without its question mark gets one."""
    end = "" if question.endswith(("?", ".")) else "?"
    return f"{instruction}Question: {question}{end}\n"


def parse_action(text: str) -> tuple[str, str]:
    """(kind, content) of one turn: `search` with its query, `answer` with the answer, or `invalid`.

    The text is cut after the first `</search>`, else after the first `</answer>`; then the first
    complete pair of tags counts.
    """
    for closing in CLOSING:
        if closing in text:
            text = text[: text.index(closing) + len(closing)]
            break
    match = _ACTION.search(text)
    return (match.group(1), match.group(2).strip()) if match else ("invalid", "")


def format_documents(documents: Sequence[Document]) -> str:
    """The observation of a search."""
    lines = [f"Doc {i}(Title: {d.title}) {d.text}\n" for i, d in enumerate(documents, 1)]
    return f"\n\n<information>{''.join(lines)}</information>\n\n"


class Environment:
    """Answers the turns of many episodes at once; the tool is asked once per call."""

    def __init__(self, retriever: Retriever, *, max_turns: int = 4) -> None:
        self._retriever = retriever
        self.max_turns = max_turns

    def respond(self, episodes: Sequence[Episode], texts: Sequence[str]) -> list[str]:
        """Take one turn in each episode; returns each one's observation ("" where it is over)."""
        searching: list[tuple[int, Action]] = []
        observations = []
        for i, (episode, text) in enumerate(zip(episodes, texts, strict=True)):
            kind, content = parse_action(text)
            action = Action(kind, content)
            last = len(episode.actions) == self.max_turns
            episode.actions.append(action)
            episode.written += text
            episode.done = last or kind == "answer"
            if kind == "search" and not episode.done:
                searching.append((i, action))
            observations.append("" if episode.done else INVALID)
        found = self._retriever.retrieve([action.content for _, action in searching])
        for (i, action), documents in zip(searching, found, strict=True):
            action.documents = documents
            observations[i] = format_documents(documents)
        return observations
