"""Worked examples that teach a policy without knowledge of the protocol to search and to answer.

A script plays every example in the real environment, in a world with permuted values, so that
reading helps and knowing does not. Half of the examples contain a mistake: the policy that imitates
them is often wrong and stays uncertain, which is what RL needs.
"""

from __future__ import annotations

import random

from ..data.corpus import Document
from ..environment.protocol import Environment
from ..environment.retrieval import Bm25Retriever
from .world import ASKED, RELATIONS, World, WorldQuestion

QUERIES = (
    "{w} of {s}", "{s} {w}", "the {w} of {s}", "what is the {w} of {s}?",
    "which {w} does {s} have?", "{s}, its {w}",
)
FAULTS = ("wrong relation", "wrong country", "no search", "no second search")
FAULT_SHARE = 0.5
WORLDS = 32
"""Number of examples from one world."""

Segment = tuple[str, bool]
"""A piece of text, and whether the policy writes it."""


Example = tuple[WorldQuestion, list[Segment]]


def demonstrations(seed: int, n: int, *, top_k: int, max_turns: int) -> list[Example]:
    """`n` questions, each with the turns that follow."""
    rng = random.Random(seed)
    examples: list[Example] = []
    while len(examples) < n:
        world = World.counterfactual(rng, two_hop=0.0)
        retriever = Bm25Retriever(world.documents, top_k=top_k, seed=rng.getrandbits(30))
        environment = Environment(retriever, max_turns=max_turns)
        questions = world.questions(rng, min(WORLDS, n - len(examples)))
        examples += [(q, _play(world, environment, q, rng)) for q in questions]
    return examples


def _play(
    world: World, environment: Environment, question: WorldQuestion, rng: random.Random
) -> list[Segment]:
    hop = question.hops[-1]
    fault = rng.choice(FAULTS) if rng.random() < FAULT_SHARE else None
    episode = environment.begin(question, "")
    segments: list[Segment] = []

    def take(text: str) -> list[Document]:
        (observation,) = environment.respond([episode], [text])
        segments.extend([(text, True), (observation, False)])
        return episode.actions[-1].documents or []

    relation = rng.choice(ASKED) if fault == "wrong relation" else hop.relation
    country = rng.choice(world.facts)["name"] if fault == "wrong country" else hop.subject
    answer = rng.choice(world.facts)[hop.relation]
    words = rng.sample(RELATIONS[relation].words, 0 if fault == "no search" else 2)
    for word in words[: 1 if fault == "no second search" else environment.max_turns]:
        documents = take(f"<search> {rng.choice(QUERIES).format(w=word, s=country)} </search>")
        read = {document.id: _value(world, document) for document in documents}
        target = world.document_of(country, relation)
        if documents:
            answer = read.get(target) or rng.choice([*read.values()])
        if target in read:
            break
    take(f"<answer> {answer} </answer>")
    return segments


def _value(world: World, document: Document) -> str:
    """The value that a document of the world states."""
    country, relation = divmod(int(document.id), len(RELATIONS))
    return world.facts[country][list(RELATIONS)[relation]]
