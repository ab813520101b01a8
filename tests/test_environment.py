"""The little world, its search tool, the Search-R1 protocol, the demonstrations."""

from __future__ import annotations

import random

import pytest
from lldscope_trainer.demonstrations import Teacher
from lldscope_trainer.environment import (
    INVALID,
    Environment,
    Episode,
    format_documents,
    parse_action,
    prompt_text,
)
from lldscope_trainer.retrieval import Bm25Retriever, UnrelatedRetriever
from lldscope_trainer.world import KEYS, RELATIONS, World, is_held_out, load_facts


@pytest.fixture(scope="module")
def world() -> World:
    return World.real()


def question_about(world: World, source: str):
    return next(q for q in world.questions(random.Random(1), 50) if q.data_source == source)


# -- world ----------------------------------------------------------------------------------------


def test_facts_are_the_real_ones():
    facts = {fact["name"]: fact for fact in load_facts()}
    assert len(facts) == 245
    assert facts["Japan"]["capital"] == "Tokyo"
    assert facts["Japan"]["currency"] == "JPY"


def test_every_document_states_its_fact_and_both_words_of_the_relation(world):
    assert len(world.documents) == 245 * len(RELATIONS)
    for document in world.documents:
        country, relation, value = world.statement(document)
        assert value in document.text
        assert country == document.title
        words = set(document.text.lower().replace(",", "").replace(".", "").split())
        for word in RELATIONS[relation].words:
            assert set(word.split()) <= words


def test_questions_lead_to_their_answer(world):
    for question in world.questions(random.Random(0), 300):
        last = question.hops[-1]
        fact = next(f for f in world.facts if f["name"] == last.subject)
        assert question.golds == (fact[last.relation],)
        assert question.hops[0].subject in question.text
        if len(question.hops) == 2:
            key = question.hops[0]
            named = [f["name"] for f in world.facts if f[key.relation] == key.subject]
            assert key.relation in KEYS
            assert named == [last.subject]  # the key names one country only
            assert last.subject == key.value


def test_held_out_questions_do_not_mix_with_training(world):
    train = world.questions(random.Random(0), 200, held_out=False)
    held = world.questions(random.Random(0), 60, held_out=True)
    facts = [{(q.hops[-1].subject, q.hops[-1].relation) for q in qs} for qs in (train, held)]
    assert not facts[0] & facts[1]
    assert all(is_held_out(*fact) for fact in facts[1])


def test_counterfactual_world_keeps_the_values_and_moves_them(world):
    other = World.counterfactual(random.Random(0))
    for relation in RELATIONS:
        real, moved = ([f[relation] for f in w.facts] for w in (world, other))
        assert sorted(real) == sorted(moved)
    stays = sum(a == b for a, b in zip(world.facts, other.facts, strict=True))
    assert stays == 0


# -- search ---------------------------------------------------------------------------------------


def test_without_misses_the_right_document_is_found_by_either_word(world):
    retriever = Bm25Retriever(world.documents, miss_rate=0.0)
    for question in world.questions(random.Random(3), 40):
        hop = question.hops[0]
        for word in RELATIONS[hop.relation].words:
            (found,) = retriever.retrieve([f"{word} {hop.subject}"])
            assert hop.document in [d.id for d in found]
            assert len(found) == 2


def test_a_miss_depends_on_the_wording_and_on_nothing_else(world):
    hops = [q.hops[0] for q in world.questions(random.Random(3), 200)]
    first, second = (
        [f"{RELATIONS[h.relation].words[n]} {h.subject}" for h in hops] for n in (0, 1)
    )
    together = Bm25Retriever(world.documents, seed=7).retrieve(first)
    alone = [Bm25Retriever(world.documents, seed=7).retrieve([q])[0] for q in first[:5]]
    assert together[:5] == alone
    again = Bm25Retriever(world.documents, seed=7).retrieve(second)
    hits = [
        [h.document in [d.id for d in found] for h, found in zip(hops, result, strict=True)]
        for result in (together, again)
    ]
    share = sum(hits[0]) / len(hops)
    assert 0.65 < share < 0.85  # miss_rate 0.25
    rescued = [b for a, b in zip(*hits, strict=True) if not a]
    assert sum(rescued) > 0.5 * len(rescued)


def test_a_query_without_known_words_finds_nothing(world):
    assert Bm25Retriever(world.documents).retrieve(["qqq zzz", ""]) == [[], []]


def test_unrelated_documents_do_not_follow_the_query(world):
    hops = [q.hops[0] for q in world.questions(random.Random(3), 100)]
    found = UnrelatedRetriever(world.documents).retrieve(
        [f"{h.relation} {h.subject}" for h in hops]
    )
    useful = sum(h.document in [d.id for d in ds] for h, ds in zip(hops, found, strict=True))
    assert useful <= 2
    assert all(len(ds) == 2 for ds in found)


# -- protocol -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think> a</think><search> capital Peru</search>", ("search", "capital Peru")),
        ("<answer>Lima</answer>", ("answer", "Lima")),
        ("<search>a</search><answer>b</answer>", ("search", "a")),
        # The cut is after the first </search>, even where an answer came before it.
        ("<answer>b</answer><search>a</search>", ("answer", "b")),
        ("<search>a\nb</search>", ("search", "a\nb")),
        ("<search>never closed", ("invalid", "")),
        ("closed</search>", ("invalid", "")),
        ("<answer>x</search> y</answer>", ("invalid", "")),
        ("", ("invalid", "")),
    ],
)
def test_parse_action(text, expected):
    assert parse_action(text) == expected


def test_observation_format(world):
    documents = world.documents[:2]
    assert format_documents(documents) == (
        "\n\n<information>"
        f"Doc 1(Title: Andorra) {documents[0].text}\n"
        f"Doc 2(Title: Andorra) {documents[1].text}\n"
        "</information>\n\n"
    )


def test_prompt_gets_its_question_mark():
    assert prompt_text("Who") == "Question: Who?\n"
    assert prompt_text("Who?") == "Question: Who?\n"


def test_an_episode_from_search_to_answer(world):
    environment = Environment(Bm25Retriever(world.documents, miss_rate=0.0), max_turns=4)
    question = question_about(world, "countries-1hop")
    hop = question.hops[0]
    episode = Episode(question)
    (seen,) = environment.respond([episode], [f"<search> {hop.relation} {hop.subject}</search>"])
    assert seen.startswith("\n\n<information>Doc 1(Title: ")
    assert not episode.done
    (seen,) = environment.respond([episode], ["hm"])
    assert seen == INVALID
    (seen,) = environment.respond([episode], [f"<answer> {hop.value}</answer>"])
    assert seen == ""
    assert episode.done
    assert [a.kind for a in episode.actions] == ["search", "invalid", "answer"]
    assert [a.tool_ok for a in episode.actions] == [True, None, None]
    assert episode.reward == 1.0


def test_the_last_generation_gets_no_tool(world):
    class Counting(UnrelatedRetriever):
        asked = 0

        def retrieve(self, queries):
            Counting.asked += len(queries)
            return super().retrieve(queries)

    environment = Environment(Counting(world.documents), max_turns=2)
    episode = Episode(question_about(world, "countries-2hop"))
    turns = 0
    while not episode.done:
        environment.respond([episode], ["<search> x</search>"])
        turns += 1
    assert turns == 3
    assert Counting.asked == 2
    assert episode.actions[-1].kind == "search"
    assert episode.actions[-1].tool_ok is None
    assert episode.reward == 0.0


def test_docs_hash_ignores_the_order(world):
    environment = Environment(UnrelatedRetriever(world.documents))
    a, b = (
        Episode(question_about(world, "countries-1hop")),
        Episode(question_about(world, "countries-1hop")),
    )
    environment.respond([a, b], ["<search>q</search>", "<search>q</search>"])
    b.actions[0].documents.reverse()
    assert a.actions[0].docs_hash == b.actions[0].docs_hash
    b.actions[0].documents.pop()
    assert a.actions[0].docs_hash != b.actions[0].docs_hash


# -- demonstrations -------------------------------------------------------------------------------


def play_all(world, fault_share, miss_rate, n=200):
    rng = random.Random(0)
    environment = Environment(Bm25Retriever(world.documents, miss_rate=miss_rate))
    teacher = Teacher(world, environment, rng, lambda text: text, fault_share=fault_share)
    return [teacher.play(question) for question in world.questions(rng, n)]


def test_a_faultless_teacher_with_a_faultless_tool_is_right(world):
    demonstrations = play_all(world, 0.0, 0.0)
    assert all(d.reward == 1.0 for d in demonstrations)


def test_the_clumsy_teacher_is_often_wrong_and_still_in_the_protocol(world):
    demonstrations = play_all(world, 0.5, 0.25)
    success = sum(d.reward for d in demonstrations) / len(demonstrations)
    assert 0.25 < success < 0.6
    for demonstration in demonstrations:
        written = [text for text, by_policy in demonstration.segments if by_policy]
        assert 1 <= len(written) <= 5
        assert parse_action(written[-1])[0] == "answer"
