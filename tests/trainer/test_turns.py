"""Playing with an engine that writes whole turns: the same episodes as the sampler's, and no token
that was not sampled."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lldscope_trainer.data.datasets import Question
from lldscope_trainer.engines import players
from lldscope_trainer.engines.players import TurnPlayer
from lldscope_trainer.environment.protocol import CLOSING, Environment
from lldscope_trainer.environment.retrieval import Bm25Retriever
from lldscope_trainer.policy.model import Policy
from lldscope_trainer.rollout.sampler import Sampler
from lldscope_trainer.rollout.tokens import Rollout, Sampling
from plain_engine import PlainEngine, ScriptedEngine, SteppingEngine
from tiny_policy import byte_tokenizer

LIMA = Question("What is the capital of Peru?", ("Lima",), "test", "7")
STORY = st.lists(st.lists(st.integers(0, 255), max_size=12), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def retriever(world) -> Bm25Retriever:
    return Bm25Retriever(world.documents)


@pytest.fixture(scope="module")
def environment(retriever) -> Environment:
    return Environment(retriever, max_turns=4)


@pytest.fixture(scope="module")
def bytewise() -> Policy:
    """No model: a tokenizer of single bytes that does not know the tags, but ">\\n" as one."""
    return Policy(None, byte_tokenizer(">Ċ", "<eos>", merges=((">", "Ċ"),)))


def play(policy, engine, environment, questions=(LIMA,), seed=0, **settings) -> list[Rollout]:
    generator = torch.Generator().manual_seed(seed)
    player = TurnPlayer(policy, engine, Sampling(**settings))
    return player.play(environment, questions, generator)


def says(*turns: list[int]) -> ScriptedEngine:
    """An engine that says these turns to everybody, then nothing any more."""
    return ScriptedEngine(lambda call, row, context: turns[call] if call < len(turns) else [])


@pytest.mark.parametrize("limits", [{}, {"turn_tokens": 12, "sequence_tokens": 120}])
def test_greedy_play_is_the_samplers(tiny, world, environment, limits):
    questions = world.questions(random.Random(2), 5)
    sampling = Sampling(temperature=0.0, **limits)
    expected = Sampler(tiny, sampling).play(environment, questions, torch.Generator())
    engine = PlainEngine(tiny)
    results = play(tiny, engine, environment, questions, temperature=0.0, **limits)
    assert len({len(e.episode.actions) for e in expected}) > 1
    assert any(e.truncated for e in expected) == bool(limits)
    for a, b in zip(expected, results, strict=True):
        assert (a.ids, a.action, a.truncated) == (b.ids, b.action, b.truncated)
        assert a.episode == b.episode
        assert a.logp == pytest.approx(b.behaviour, abs=1e-4)
        assert a.behaviour is None
        assert b.logp is b.entropy is b.error_norm is None


# -- who runs when ---------------------------------------------------------------------------------


def uneven(tiny, n: int) -> tuple[list[Question], SteppingEngine]:
    """Rollouts whose turns differ much in length: row i searches with 4 i + 1 words."""
    word, search = tiny.encode(" Peru")[0], tiny.encode("<search>")
    closing, answer = tiny.encode("</search>"), tiny.encode("<answer> Lima</answer>")
    questions = [Question(f"{'city ' * i}capital of Peru?", ("Lima",), "t", str(i))
                 for i in range(n)]
    prompts = [tuple(tiny.encode(f"Question: {q.text}\n")) for q in questions]

    def script(context: list[int]) -> list[int]:
        row = next(i for i, p in enumerate(prompts) if tuple(context[: len(p)]) == p)
        if context.count(closing[-1]) == 2:
            return answer
        return [*search, *[word] * (4 * row + 1), *closing]

    return questions, SteppingEngine(script)


def test_a_finished_turn_goes_on_while_longer_ones_are_written(tiny, environment):
    questions, engine = uneven(tiny, 8)
    rollouts = play(tiny, engine, environment, questions)
    assert [len(r.episode.actions) for r in rollouts] == [3] * 8
    assert all(r.episode.correct for r in rollouts)
    assert [r.episode.question for r in rollouts] == questions
    # The shortest row is at its last turn before the longest has ended its first one.
    begins = [i for i, entry in enumerate(engine.log) if entry == ("begin", 0)]
    assert begins[-1] < engine.log.index(("end", 7))
    # A round for each turn would take as long as the longest turn of every round.
    longest = [max(r.action.count(number) for r in rollouts) for number in range(3)]
    assert engine.n_steps <= sum(longest) + 3 * players.TOOL_STEPS


def test_a_rollout_enters_when_its_keys_and_values_fit(tiny, environment):
    questions, engine = uneven(tiny, 8)
    free = play(tiny, engine, environment, questions)
    assert engine.most_rows == 8
    engine.capacity, engine.most_rows = 400, 0
    few = play(tiny, engine, environment, questions)
    assert 1 < engine.most_rows <= 3
    assert [r.ids for r in few] == [r.ids for r in free]
    engine.capacity, engine.most_rows = 1, 0  # less than a single one needs
    assert [r.ids for r in play(tiny, engine, environment, questions)] == [r.ids for r in free]
    assert engine.most_rows == 1


# -- what counts of a turn ------------------------------------------------------------------------


def test_text_in_the_token_of_the_closing_tag_is_kept_as_token_and_not_read(bytewise, environment):
    turn = bytewise.encode("<answer>Lima</answer>\n")
    (rollout,) = play(bytewise, says(turn), environment)
    # The token that completes the tag is ">\n": it was sampled, so it is trained on as it is.
    assert bytewise.decode(turn[-1:]) == ">\n"
    assert [rollout.ids[t] for t, a in enumerate(rollout.action) if a == 0] == turn
    assert rollout.episode.turns == ["<answer>Lima</answer>"]
    assert rollout.episode.correct
    assert not rollout.truncated


@pytest.mark.parametrize(
    ("turn_end", "text", "copies", "kind"),
    [
        ("tag", "<search>a</search><answer>b</answer>", "<search>a</search>", "search"),
        ("tag", "<answer>b</answer> x <search>a</search>", "<answer>b</answer>", "answer"),
        ("length", "<search>a</search> x <search>", "<search>a</search>", "search"),
        ("length", "<answer>b</answer><answer>c</answer>", "<answer>b</answer>", "answer"),
        (
            "length",
            "<answer>b</answer> x <search>a</search>",
            "<answer>b</answer> x <search>a</search>",
            "answer",
        ),
        ("length", "nothing closed", "nothing closed", "invalid"),
    ],
)
def test_a_turn_is_cut_where_the_setting_says(bytewise, environment, turn_end, text, copies, kind):
    settings = {"turn_end": turn_end, "turn_tokens": 99, "observation_tokens": 999}
    engine = says(bytewise.encode(text))
    (rollout,) = play(bytewise, engine, environment, sequence_tokens=2000, **settings)
    first = [token for token, a in zip(rollout.ids, rollout.action, strict=True) if a == 0]
    assert first == bytewise.encode(text)[: len(first)]
    assert bytewise.decode(first) == copies == rollout.episode.turns[0]
    assert rollout.episode.actions[0].kind == kind


@settings(max_examples=50)
@given(STORY, st.sampled_from(["tag", "length"]), st.integers(60, 200))
def test_what_is_trained_on_is_what_was_sampled(tiny, world, retriever, story, turn_end, limit):
    """Random tokens of the tiny policy, mostly tags, for two rollouts at once."""
    names = [*CLOSING, "<search>", "<answer>", "</information>", "<eos>", " capital", " Peru", ">"]
    table = [tiny.encode(name)[0] for name in names]

    def script(call: int, row: int, context: list[int]) -> list[int]:
        ids = [table[n % len(table)] for n in story[(call + row) % len(story)]]
        end = ids.index(tiny.eos_id) + 1 if tiny.eos_id in ids else len(ids)
        return ids[:end]

    environment = Environment(retriever, max_turns=3)
    engine = ScriptedEngine(script)
    questions = world.questions(random.Random(0), 2)
    rollouts = play(
        tiny, engine, environment, questions, turn_end=turn_end, turn_tokens=8,
        sequence_tokens=limit,
    )
    assert len(engine.calls) <= 4
    for question, rollout in zip(questions, rollouts, strict=True):
        episode = rollout.episode
        assert episode.done
        assert 1 <= len(episode.actions) <= 4
        assert question.text in episode.prompt
        # Put together again from what the engine was asked and what it said.
        ids = tiny.encode(episode.prompt)
        action, behaviour = [-1] * len(ids), [0.0] * len(ids)
        for number in range(len(episode.actions)):
            contexts, limits = engine.calls[number]
            row = contexts.index(ids)
            message = script(number, row, [])[: limits[row]]
            copies = message[: rollout.action.count(number)]
            assert copies == message or any(tag in tiny.decode(copies[-1:]) for tag in CLOSING)
            info = tiny.encode(episode.observations[number])
            ids = [*ids, *copies, *info]
            action += [number] * len(copies) + [-1] * len(info)
            behaviour += [-0.1 * (k + 1) for k in range(len(copies))] + [0.0] * len(info)
        assert (rollout.ids, rollout.action, rollout.behaviour) == (ids, action, behaviour)
        assert len(ids) <= limit
