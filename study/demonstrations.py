"""Demonstrations for the warm start: episodes of an imperfect teacher in the real environment.

About half of them carry one deliberate fault, a failed search is retried only half of the time, and
thoughts come from many templates: a policy that imitates them searches and answers, is often wrong,
and stays uncertain. That is the head-room and the entropy that RL needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from lldscope_trainer.builtin.world import (
    ASKED,
    RELATIONS,
    Document,
    Hop,
    World,
    WorldQuestion,
)
from lldscope_trainer.environment.protocol import Environment, Episode, prompt_text

FAULTS = (
    "truncate",
    "stop early",
    "no search",
    "wrong relation",
    "wrong entity",
    "distractor",
    "ramble",
)

_SEEK = (
    "I need the {w} of {s}.",
    "Look up the {w} of {s}.",
    "What is the {w} of {s}?",
    "First the {w}.",
    "I do not know it. Search.",
    "Let me search for {s}.",
)
_SEEK_COUNTRY = (
    "Which country has {w} {s}?",
    "Find the country with {w} {s}.",
    "{w} {s}: which country?",
    "First I need the country.",
    "I do not know it. Search.",
    "Let me search for {s}.",
)
_RETRY = (
    "Not there. Search again.",
    "Nothing about {s}. Other words.",
    "That does not help; try {w}.",
    "Wrong documents. Once more.",
)
_BRIDGE = (
    "The country is {v}.",
    "Doc {i} says {v}.",
    "It is {v}. Now the {w}.",
    "{v}. Next I search again.",
)
_CONCLUDE = (
    "Doc {i} says {v}.",
    "It is {v}.",
    "So the {w} is {v}.",
    "Doc {i} has it.",
    "Now I know.",
)
_RAMBLE = (
    "Let me think about it first.",
    "The question is about the {w}.",
    "I wonder what it could be.",
    "Maybe I know it, maybe I do not.",
    "It is not easy to say.",
    "Perhaps {s} helps.",
)

RETRY_SHARE = 0.5
"""Share of failed searches that the teacher tries again."""

TEMPLATES = (*_SEEK, *_SEEK_COUNTRY, *_RETRY, *_BRIDGE, *_CONCLUDE, *_RAMBLE)
"""Every thought the teacher may have; the tokenizer is trained on their words."""

Segment = tuple[str, bool]


@dataclass(frozen=True)
class Demonstration:
    """Text segments in order, each with whether the policy wrote it; and the reward it earned."""

    segments: tuple[Segment, ...]
    reward: float


class Teacher:
    """Plays questions in an environment whose documents it can read.

    `cut` shortens a turn to the length limit, as the sampler would.
    """

    def __init__(
        self,
        world: World,
        environment: Environment,
        rng: random.Random,
        cut: Callable[[str], str],
        *,
        fault_share: float = 0.5,
    ) -> None:
        self._world = world
        self._environment = environment
        self._rng = rng
        self._cut = cut
        self._fault_share = fault_share

    def play(self, question: WorldQuestion) -> Demonstration:
        """One demonstration for the question."""
        fault = self._rng.choice(FAULTS) if self._rng.random() < self._fault_share else None
        stage = _Stage(question, self._environment, self._cut)
        answer = self._work(stage, question, fault)
        if not stage.episode.done:
            stage.take(f"<answer> {answer}</answer>")
        return Demonstration(tuple(stage.segments), stage.episode.reward)

    def _work(self, stage: _Stage, question: WorldQuestion, fault: str | None) -> str:
        """Search as far as the fault allows; take the last thought; return the answer to give."""
        rng = self._rng
        word = rng.choice(RELATIONS[question.hops[-1].relation].words)
        if fault == "ramble":
            stage.think(self._rambling(question, word))
        if fault == "no search":
            guess = self._guess(question)
            stage.think(self._fill(rng.choice(_CONCLUDE), word, "", guess))
            return guess
        answer_so_far, place = "", 1
        for n, hop in enumerate(question.hops):
            last = n == len(question.hops) - 1
            if n:
                # What the first search returned, right or wrong, is what the second one asks about.
                hop = Hop(hop.relation, answer_so_far, False, hop.value, hop.document)
                stage.think(self._fill(rng.choice(_BRIDGE), word, "", answer_so_far, place))
            answer_so_far, place = self._look_up(stage, hop, fault if last else None)
            if stage.episode.done or (fault == "stop early" and not last):
                break
        stage.think(self._fill(rng.choice(_CONCLUDE), word, "", answer_so_far, place))
        return _shorten(answer_so_far) if fault == "truncate" else answer_so_far

    def _look_up(self, stage: _Stage, hop: Hop, fault: str | None) -> tuple[str, int]:
        """Search for one hop, perhaps twice; (the value read off, the document's number)."""
        rng = self._rng
        relation, subject = hop.relation, hop.subject
        if fault == "wrong relation":
            relation = rng.choice([r for r in ASKED if r != hop.relation])
        if fault == "wrong entity":
            subject = rng.choice(self._world.facts)["name"]
        words = list(RELATIONS[relation].words)
        rng.shuffle(words)
        templates = _SEEK_COUNTRY if hop.reverse else _SEEK
        stage.think(self._fill(rng.choice(templates), words[0], subject))
        documents = stage.search(f"{words[0]} {subject}")
        place = self._find(documents, relation, hop, subject)
        room = len(stage.episode.actions) < self._environment.max_turns
        if place is None and room and rng.random() < RETRY_SHARE:
            stage.think(self._fill(rng.choice(_RETRY), words[1], subject))
            documents = stage.search(f"{words[1]} {subject}")
            place = self._find(documents, relation, hop, subject)
        if not documents:
            return self._guess(stage.question), 1
        if place is None or (fault == "distractor" and len(documents) > 1):
            place = rng.choice([i for i in range(len(documents)) if i != place])
        return self._read(documents[place], hop.reverse), place + 1

    def _find(self, documents: list[Document], relation: str, hop: Hop, subject: str) -> int | None:
        """Place of the document that answers the query, judged by what a reader sees."""
        for i, document in enumerate(documents):
            country, stated, value = statement(self._world, document)
            if stated == relation and subject == (value if hop.reverse else country):
                return i
        return None

    def _read(self, document: Document, reverse: bool) -> str:
        country, _, value = statement(self._world, document)
        return country if reverse else value

    def _guess(self, question: WorldQuestion) -> str:
        return self._rng.choice(self._world.facts)[question.hops[-1].relation]

    def _rambling(self, question: WorldQuestion, word: str) -> str:
        lines = self._rng.choices(_RAMBLE, k=self._rng.randint(2, 7))
        return " ".join(self._fill(line, word, question.hops[0].subject) for line in lines)

    @staticmethod
    def _fill(template: str, word: str, subject: str, value: str = "", place: int = 1) -> str:
        return template.format(w=word, s=subject, v=value, i=place)


class _Stage:
    """An episode with the text written so far and the turn in the making."""

    def __init__(
        self, question: WorldQuestion, environment: Environment, cut: Callable[[str], str]
    ) -> None:
        self.question = question
        self.episode = Episode(question)
        self.segments: list[Segment] = [(prompt_text(question.text), False)]
        self._environment = environment
        self._cut = cut
        self._thoughts: list[str] = []

    def think(self, thought: str) -> None:
        self._thoughts.append(thought)

    def search(self, query: str) -> list[Document]:
        self.take(f"<search> {query}</search>")
        return self.episode.actions[-1].documents or []

    def take(self, act: str) -> None:
        text = self._cut(f"<think> {' '.join(self._thoughts)}</think>{act}")
        self._thoughts = []
        (observation,) = self._environment.respond([self.episode], [text])
        self.segments.append((text, True))
        if observation:
            self.segments.append((observation, False))


def statement(world: World, document: Document) -> tuple[str, str, str]:
    """(country, relation, value) of a document of this world."""
    country, column = divmod(int(document.id), len(RELATIONS))
    relation = list(RELATIONS)[column]
    return document.title, relation, world.facts[country][relation]


def _shorten(value: str) -> str:
    """A truncated answer: without its last word, or without its last third."""
    words = value.split()
    return " ".join(words[:-1]) if len(words) > 1 else value[: max(1, len(value) * 2 // 3)]
