"""The Search-R1 protocol: what the policy may write in a turn, and the replies.

A turn is everything the policy emits up to the first `</search>` or `</answer>`. A search gets
documents between information tags; an answer ends the episode; anything else gets a sentence that
says so, and costs a turn like a search. After `max_turns` turns one last generation follows without
the tool, so a rollout has at most `max_turns + 1` actions.

This module handles text; tokens.py turns it into tokens. docs/environment.md describes every step,
and the differences from the paper and the reference code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from lldscope.recording.transcripts import last_answer

from ..data.corpus import Document
from ..data.datasets import Question
from .retrieval import Retriever
from .reward import em, f1, search_r1_answer, valid_format

TAGS = tuple(
    f"<{end}{tag}>" for tag in ("think", "search", "information", "answer") for end in ("", "/")
)
CLOSING = ("</search>", "</answer>")
INVALID = "\nThat was no action: give search tags or answer tags.\n"
SEARCH_FAILED = "\n\n<information>The search failed: nothing came back.</information>\n\n"
TOOL_END = "</information>\n\n"
"""The end of every answer of the tool."""

SEARCH_R1 = "search-r1"
"""Name of the instruction below, for the setting `instruction`."""

SEARCH_R1_INSTRUCTION = (
    "Find the answer to a question. Whenever you have been told something new, begin by reasoning "
    "about it between <think> and </think>. If some knowledge is missing, look it up by writing "
    "<search> query </search>: a search engine will then show you its best results between "
    "<information> and </information>. You may search as often as you need to. Once nothing is "
    "missing, write the bare answer in answer tags, with no explanation, like this: "
    "<answer> Nairobi </answer>. "
)

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


@dataclass
class Action:
    """One turn of an episode. `tool_ok`: whether the tool worked, None if it was not called;
    `documents`: its results, None without an answer."""

    kind: str
    content: str
    documents: list[Document] | None = None
    tool_ok: bool | None = None

    @property
    def docs_hash(self) -> str | None:
        """Order-independent hash of the set of documents found; None without an answer."""
        if self.documents is None:
            return None
        return f"{crc32(repr(sorted(d.id for d in self.documents)).encode()):08x}"


@dataclass(frozen=True)
class Scoring:
    """Where an answer is looked up and how it is rewarded (settings of the same names)."""

    answers_from: str = "response"
    reward: str = "em"
    format_reward: float = 0.0


@dataclass
class Episode:
    """One rollout of a question as text: the turns, cut after their closing tags, and the
    observation after each turn ("" if none followed)."""

    question: Question
    prompt: str = ""
    scoring: Scoring = field(default_factory=Scoring)
    actions: list[Action] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    done: bool = False

    @property
    def transcript(self) -> str:
        """Prompt, turns and observations in order."""
        pairs = zip(self.turns, self.observations, strict=True)
        return self.prompt + "".join(turn + observation for turn, observation in pairs)

    @property
    def answer(self) -> str | None:
        """The answer that counts, or None. Only Search-R1's rule accepts a span across turns."""
        if self.scoring.answers_from == "search-r1":
            return search_r1_answer(self.transcript)
        answers = (last_answer(turn) for turn in reversed(self.turns))
        return next((answer for answer in answers if answer is not None), None)

    @property
    def correct(self) -> bool:
        """Whether the answer is right by exact match, whatever the reward is."""
        return em(self.answer, self.question.golds) == 1

    @property
    def reward(self) -> float:
        """The reward of the answer, but at least the reward of a valid format, so that a better
        answer never earns less."""
        score = {"em": em, "f1": f1}[self.scoring.reward](self.answer, self.question.golds)
        valid = valid_format([action.kind for action in self.actions])
        return max(score, self.scoring.format_reward) if valid else score


def prompt_text(question: str, instruction: str = "") -> str:
    """The initial text of a rollout; a question mark is added if it is missing."""
    if instruction == SEARCH_R1:
        instruction = SEARCH_R1_INSTRUCTION
    end = "" if question.endswith(("?", ".")) else "?"
    return f"{instruction}Question: {question}{end}\n"


def cut_turn(text: str) -> str:
    """A turn up to its first `</search>`, or else up to its first `</answer>`."""
    for closing in CLOSING:
        if closing in text:
            return text[: text.index(closing) + len(closing)]
    return text


def parse_action(text: str) -> tuple[str, str]:
    """(kind, content) of one turn: `search` with its query, `answer` with the answer, or `invalid`.

    The text is cut first; then the first complete pair of tags counts.
    """
    match = _ACTION.search(cut_turn(text))
    return (match.group(1), match.group(2).strip()) if match else ("invalid", "")


def format_documents(documents: Sequence[Document], tool_text: str = "plain") -> str:
    """The observation of a search. With `tool_text` "search-r1" titles are in quotes, as in the
    corpus the reference code searches, and no line break follows the last document."""
    published = tool_text == "search-r1"
    quote = '"' if published else ""
    lines = [
        f"Doc {i}(Title: {quote}{d.title}{quote}) {d.text}\n" for i, d in enumerate(documents, 1)
    ]
    text = "".join(lines)
    return f"\n\n<information>{text.strip() if published else text}</information>\n\n"


def defuse(text: str, names: Collection[str]) -> str:
    """`text` with a space after the first character of every occurrence of one of `names`, which
    hold at least two characters and no space."""
    pattern = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
    while pattern.search(text):  # once is not enough where occurrences overlap
        text = pattern.sub(lambda tag: f"{tag[0][0]} {tag[0][1:]}", text)
    return text


class Environment:
    """Answers the turns of many episodes at once; the tool is called once per call, if an episode
    searches.

    With `tool_tags` "escaped", protocol tags and the texts in `reserved` (control tokens of the
    tokenizer) lose their meaning in tool text: a space follows their first character. "raw" passes
    them on, as the reference code does. `invalid_text` replaces INVALID as the reply to an invalid
    action, between line breaks.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        max_turns: int = 4,
        tool_tags: str = "escaped",
        tool_text: str = "plain",
        invalid_text: str = "",
        reserved: Collection[str] = (),
        scoring: Scoring | None = None,
    ) -> None:
        self._retriever = retriever
        self.max_turns = max_turns
        self._tool_text = tool_text
        self._invalid = f"\n{invalid_text}\n" if invalid_text else INVALID
        self._scoring = scoring or Scoring()
        # Some tokenizers have control tokens that are mere letters or runs of spaces: those stay.
        names = {name for name in reserved if len(name) > 1 and not re.search(r"\s", name)}
        self._escaped = {*TAGS, *names} if tool_tags == "escaped" else set()

    def begin(self, question: Question, prompt: str) -> Episode:
        """An episode that starts from this prompt."""
        return Episode(question, prompt, self._scoring)

    def respond(self, episodes: Sequence[Episode], texts: Sequence[str]) -> list[str]:
        """Take one turn in each episode; returns the observations ("" for an episode that is
        over)."""
        searching: list[tuple[int, Action]] = []
        observations = []
        for i, (episode, text) in enumerate(zip(episodes, texts, strict=True)):
            kind, content = parse_action(text)
            action = Action(kind, content)
            last = len(episode.actions) == self.max_turns
            episode.actions.append(action)
            episode.turns.append(cut_turn(text))
            episode.done = last or kind == "answer"
            if kind == "search" and not episode.done:
                searching.append((i, action))
            observations.append("" if episode.done else self._invalid)
        results = self._retriever.retrieve([a.content for _, a in searching]) if searching else []
        for (i, action), documents in zip(searching, results, strict=True):
            action.documents, action.tool_ok = documents, documents is not None
            observations[i] = SEARCH_FAILED if documents is None else self._show(documents)
        for episode, observation in zip(episodes, observations, strict=True):
            episode.observations.append(observation)
        return observations

    def _show(self, documents: Sequence[Document]) -> str:
        if self._escaped:
            documents = [
                replace(d, title=defuse(d.title, self._escaped), text=defuse(d.text, self._escaped))
                for d in documents
            ]
        return format_documents(documents, self._tool_text)
