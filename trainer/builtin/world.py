"""The built-in world: facts, corpus documents and questions.

The facts are real (facts/README.md). RL and evaluation use `World.real()`.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from zlib import crc32

from lldscope.core.errors import UsageError

from ..data.corpus import Document
from ..data.datasets import Question

Fact = dict[str, str]


@dataclass(frozen=True)
class Relation:
    """An attribute: its two names and the phrases in which documents state it."""

    words: tuple[str, str]
    texts: tuple[str, ...]


# Every document holds both words, so a query finds it by either: a rephrased query is a new draw
# for a retriever that sometimes misses (retrieval.py).
RELATIONS: dict[str, Relation] = {
    "capital": Relation(
        ("capital", "city"), ("The capital city is {}.", "Its city, the capital, is {}.")
    ),
    "currency": Relation(
        ("currency", "money"), ("The currency or money is {}.", "Its money, the currency, is {}.")
    ),
    "language": Relation(
        ("language", "tongue"),
        ("The language or tongue is {}.", "Its tongue, the language, is {}."),
    ),
    "calling code": Relation(
        ("calling code", "dialling code"), ("The calling or dialling code is {}.",)
    ),
    "continent": Relation(("continent", "landmass"), ("The continent or landmass is {}.",)),
}
ASKED = ("capital", "currency", "language")
"""Relations asked for. The other two only produce distracting documents: continents have so few
values that guessing succeeds too often, and a policy this small does not learn to copy numbers."""
KEYS = ("capital", "currency")
"""Relations that identify a country if their value is unique."""

_ONE_HOP = ("What is the {w} of {s}?", "Which {w} does {s} have?", "Tell me the {w} of {s}.")
_TWO_HOP = (
    "What is the {w} of the country whose {k} is {s}?",
    "Which {w} does the country with {k} {s} have?",
    "Tell me the {w} of the country with {k} {s}.",
)

PATIENCE = 2_000
"""Number of draws without a new question after which no more are expected."""
EVALUATION_SEED = 20_512
"""Seed of the held-out questions, the same for every run."""


@dataclass(frozen=True)
class Hop:
    """One lookup: `relation` of `subject`; with `reverse`, the subject is the value and the country
    is asked for. `value` is the statement of the right document, `document` its id."""

    relation: str
    subject: str
    reverse: bool
    value: str
    document: int


@dataclass(frozen=True)
class WorldQuestion(Question):
    """A question with the lookups that lead to its answer; its text is its index."""

    hops: tuple[Hop, ...] = ()


@cache
def load_facts() -> tuple[Fact, ...]:
    """The shipped country facts."""
    return tuple(
        json.loads((files("lldscope_trainer") / "facts" / "countries.json").read_text("utf-8"))
    )


class World:
    """A table of facts, its documents, and its questions: fresh ones for each step, and held-out
    ones; `two_hop` is the share with two lookups."""

    def __init__(self, facts: tuple[Fact, ...], two_hop: float = 0.65) -> None:
        self.facts = facts
        self._two_hop = two_hop
        self.documents: list[Document] = []
        self._document_of: dict[tuple[str, str], int] = {}
        for fact in facts:
            for relation, shape in RELATIONS.items():
                pick = crc32(f"{fact['name']}|{relation}".encode()) % len(shape.texts)
                document = Document(
                    len(self.documents), fact["name"], shape.texts[pick].format(fact[relation])
                )
                self._document_of[fact["name"], relation] = len(self.documents)
                self.documents.append(document)
        self._by_value = {
            r: {v: [f for f in facts if f[r] == v] for v in sorted({f[r] for f in facts})}
            for r in ASKED
        }
        self._counts = {r: Counter(f[r] for f in facts) for r in KEYS}

    @classmethod
    def real(cls, two_hop: float = 0.65) -> World:
        """The world as it is."""
        return cls(load_facts(), two_hop)

    @classmethod
    def counterfactual(cls, rng: random.Random, two_hop: float = 0.65) -> World:
        """Another world, in which the values of every attribute are permuted among the
        countries."""
        facts = [dict(fact) for fact in load_facts()]
        for relation in RELATIONS:
            values = [fact[relation] for fact in facts]
            rng.shuffle(values)
            for fact, value in zip(facts, values, strict=True):
                fact[relation] = value
        return cls(tuple(facts), two_hop)

    def draw(self, step: int, n: int, rng: random.Random) -> list[Question]:
        """`n` different questions about facts that are not held out."""
        return list(self.questions(rng, n, held_out=False))

    def document_of(self, country: str, relation: str) -> int:
        """Id of the document that states this relation of a country."""
        return self._document_of[country, relation]

    def held_out(self, n: int) -> list[Question]:
        """`n` different held-out questions, the same for every run."""
        return list(self.questions(random.Random(EVALUATION_SEED), n, held_out=True))

    def questions(
        self, rng: random.Random, n: int, *, held_out: bool | None = None
    ) -> list[WorldQuestion]:
        """`n` different questions. The answer is drawn uniformly over the distinct values of its
        relation, so guessing a frequent value (EUR, English) does not pay. `held_out`: only the
        fifth of the facts set aside for evaluation (True), only the others (False), or all (None).
        Raises UsageError if there are fewer than `n`: the world has a few thousand."""
        pool: dict[str, WorldQuestion] = {}
        drawn_since_new = 0
        while len(pool) < n:
            question = self._draw(rng)
            last = question.hops[-1]
            drawn_since_new += 1
            if held_out is None or held_out == is_held_out(last.subject, last.relation):
                if question.text not in pool:
                    drawn_since_new = 0
                pool[question.text] = question
            if drawn_since_new > PATIENCE:
                raise UsageError(
                    f"the built-in world has about {len(pool)} such questions, not {n}: ask for "
                    "fewer"
                )
        return list(pool.values())

    def _draw(self, rng: random.Random) -> WorldQuestion:
        relation = rng.choice(ASKED)
        fact = rng.choice(rng.choice(list(self._by_value[relation].values())))
        word = rng.choice(RELATIONS[relation].words)
        last = self._hop(fact, relation, reverse=False)
        golds = (fact[relation],)
        keys = [k for k in KEYS if k != relation and self._counts[k][fact[k]] == 1]
        if not keys or rng.random() >= self._two_hop:
            text = rng.choice(_ONE_HOP).format(w=word, s=fact["name"])
            return WorldQuestion(text, golds, "countries-1hop", text, hops=(last,))
        key = rng.choice(keys)
        text = rng.choice(_TWO_HOP).format(w=word, k=rng.choice(RELATIONS[key].words), s=fact[key])
        hops = (self._hop(fact, key, reverse=True), last)
        return WorldQuestion(text, golds, "countries-2hop", text, hops=hops)

    def _hop(self, fact: Fact, relation: str, *, reverse: bool) -> Hop:
        name, value = fact["name"], fact[relation]
        subject, target = (value, name) if reverse else (name, value)
        return Hop(relation, subject, reverse, target, self._document_of[name, relation])


def is_held_out(country: str, relation: str) -> bool:
    """Whether a fact belongs to the fifth held out for evaluation."""
    return crc32(f"held out|{country}|{relation}".encode()) % 5 == 0
