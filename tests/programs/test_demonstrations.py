"""The facts of the world's documents, and the teacher of the warm start."""

from __future__ import annotations

import random

import pytest
from lldscope_trainer.builtin.world import RELATIONS, World
from lldscope_trainer.environment.protocol import Environment, parse_action
from lldscope_trainer.environment.retrieval import Bm25Retriever

from study.demonstrations import Teacher, statement


@pytest.fixture(scope="module")
def world() -> World:
    return World.real()


def test_every_document_states_its_fact_and_both_words_of_the_relation(world):
    assert len(world.documents) == 245 * len(RELATIONS)
    for document in world.documents:
        country, relation, value = statement(world, document)
        assert value in document.text
        assert country == document.title
        words = set(document.text.lower().replace(",", "").replace(".", "").split())
        for word in RELATIONS[relation].words:
            assert set(word.split()) <= words


def play_all(world, fault_share, miss_rate, n=200):
    rng = random.Random(0)
    environment = Environment(Bm25Retriever(world.documents, miss_rate=miss_rate))
    teacher = Teacher(world, environment, rng, lambda text: text, fault_share=fault_share)
    return [teacher.play(question) for question in world.questions(rng, n)]


def test_the_clumsy_teacher_is_often_wrong_and_still_in_the_protocol(world):
    demonstrations = play_all(world, 0.5, 0.25)
    success = sum(d.reward for d in demonstrations) / len(demonstrations)
    assert 0.25 < success < 0.6
    for demonstration in demonstrations:
        texts = [text for text, by_policy in demonstration.segments if by_policy]
        assert 1 <= len(texts) <= 5
        assert parse_action(texts[-1])[0] == "answer"
