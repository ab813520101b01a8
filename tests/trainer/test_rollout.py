"""Sampling with the cache, its bookkeeping, and the log-probabilities it keeps."""

from __future__ import annotations

import random

import pytest
import torch
from lldscope_trainer.builtin.world import World
from lldscope_trainer.data.datasets import Question
from lldscope_trainer.environment.protocol import Environment, format_documents, prompt_text
from lldscope_trainer.environment.retrieval import Bm25Retriever
from lldscope_trainer.policy.kvcache import bytes_per_token
from lldscope_trainer.policy.logprobs import action_scores
from lldscope_trainer.policy.model import Policy
from lldscope_trainer.rollout import sampler
from lldscope_trainer.rollout.sampler import Sampler, _nucleus
from lldscope_trainer.rollout.tokens import Rollout, Sampling, TokenProtocol

from lldscope.core.errors import UsageError


def play(policy: Policy, world: World, n: int = 12, seed: int = 0, **settings) -> list[Rollout]:
    environment = Environment(Bm25Retriever(world.documents), max_turns=3)
    generator = torch.Generator().manual_seed(seed)
    questions = world.questions(random.Random(0), n)
    return Sampler(policy, Sampling(**settings)).play(environment, questions, generator)


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.8}, {"temperature": 0.5}])
def test_kept_measurements_are_those_of_the_full_distribution(policy, world, settings):
    for rollout in play(policy, world, 6, turn_tokens=9, **settings):
        ids, mask = torch.tensor([rollout.ids]), torch.tensor([rollout.action]) >= 0
        with torch.no_grad():
            scores = action_scores(policy.model, ids, mask.long(), entropy=True, error_norm=True)
        for name, expected in scores._asdict().items():
            assert getattr(rollout, name) == pytest.approx(expected[0].tolist(), abs=1e-3)


def test_a_rollout_is_prompt_turns_and_tool_text(tiny, world):
    rollouts = play(tiny, world, 32)
    for rollout in rollouts:
        text = tiny.decode(rollout.ids)
        assert text == rollout.episode.transcript
        prompt = prompt_text(rollout.episode.question.text)
        assert text.startswith(prompt)
        # What the policy wrote, put together from the action tokens, is what the episode saw.
        output = tiny.decode(
            [t for t, a in zip(rollout.ids, rollout.action, strict=True) if a >= 0]
        )
        assert output == "".join(rollout.episode.turns)
        numbers = [a for a in rollout.action if a >= 0]
        assert sorted(set(numbers)) == list(range(len(rollout.episode.actions)))
        assert numbers == sorted(numbers)
        assert rollout.action[-1] >= 0  # nothing follows the last action
    assert any("<information>" in tiny.decode(r.ids) for r in rollouts)


@pytest.mark.parametrize("limit", [30, 12, 6])
def test_a_long_tool_answer_keeps_its_end_or_is_cut_anywhere(tiny, world, limit):
    documents = format_documents(world.documents[:2])
    whole, end = tiny.encode(documents), tiny.encode("</information>\n\n")
    assert len(end) < 6 < 30 < len(whole)
    for how, expected in (("closed", whole[: limit - len(end)] + end), ("cut", whole[:limit])):
        sampling = Sampling(observation_tokens=limit, observation_end=how)
        protocol = TokenProtocol(tiny, sampling)
        retriever = Fixed(world.documents[:2])
        environment = Environment(retriever)
        question = world.questions(random.Random(0), 1)[0]
        episode, prompt = protocol.begin(environment, question)
        rollout = Rollout(episode, prompt, [-1] * len(prompt))
        turn = tiny.encode("<search> capital</search>")
        assert protocol.respond(environment, [rollout], [turn]) == [expected]
        assert episode.observations == [tiny.decode(expected)]


class Fixed:
    def __init__(self, documents):
        self.documents = documents

    def retrieve(self, queries):
        return [self.documents for _ in queries]


def test_a_rollout_that_meets_the_limit_is_truncated(tiny, world):
    limited = play(tiny, world, 32, sequence_tokens=90)
    cut = [r for r in limited if r.truncated]
    assert cut
    for rollout in limited:
        assert len(rollout.ids) <= 90
        assert rollout.action[-1] >= 0  # an observation that no answer could follow is left out
        if rollout.episode.actions[-1].kind != "answer" and len(rollout.episode.actions) < 4:
            assert rollout.truncated
            assert rollout.episode.observations[-1] == ""
    assert len(cut) < len(limited)


def test_a_prompt_without_room_is_named(policy, world):
    with pytest.raises(UsageError, match=r"question 17 of mine has \d+ tokens.*sequence_tokens=16"):
        ask(policy, Question("Who " * 20, ("x",), "mine", "17"), sequence_tokens=16)


MESSAGES = ({"role": "system", "content": "Be brief. "}, {"role": "user", "content": "Who?"})


def ask(policy: Policy, question: Question, **settings) -> str:
    """The prompt of a question as the policy sees it."""
    protocol = TokenProtocol(policy, Sampling(**settings))
    episode, tokens = protocol.begin(Environment(Fixed([])), question)
    assert policy.decode(tokens) == episode.prompt
    return episode.prompt


def test_the_prompt_is_the_data_sets_own_or_instruction_and_question(policy, monkeypatch):
    mine = Question("Who?", ("x",), "mine", "1", prompt=MESSAGES)
    plain = Question("Who?", ("x",), "mine", "1")
    assert ask(policy, mine, instruction="Not this. ") == "Be brief. Who?"
    assert ask(policy, plain, instruction="Answer. ") == "Answer. Question: Who?\n"
    assert ask(policy, plain, instruction="search-r1", sequence_tokens=999).startswith("Find ")
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    monkeypatch.setattr(policy.tokenizer, "chat_template", template)
    assert ask(policy, mine) == "[system]Be brief. [user]Who?[assistant]"
    assert ask(policy, plain) == "[user]Question: Who?\n[assistant]"
    monkeypatch.setattr(policy.tokenizer, "chat_template", "{{ raise_exception('no system') }}")
    with pytest.raises(UsageError, match="no system"):
        ask(policy, mine)


@pytest.mark.parametrize("vocabulary", [5, 64, 500])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_the_nucleus_is_that_of_the_whole_vocabulary(vocabulary, spread):
    """A flat distribution over 500 has a nucleus beyond the tokens that are looked at first."""
    generator = torch.Generator().manual_seed(vocabulary)
    probs = (spread * torch.randn(20, vocabulary, generator=generator)).softmax(-1)
    for top_p in (0.1, 0.9, 0.999):
        copies = _nucleus(probs.clone(), top_p)
        for row, results in zip(probs.tolist(), copies.tolist(), strict=True):
            order = sorted(range(vocabulary), key=lambda v: (-row[v], v))
            reached, nucleus = 0.0, set()
            for v in order:
                if reached >= top_p - 1e-5:
                    break
                nucleus.add(v)
                reached += row[v]
            support = {v for v, p in enumerate(results) if p > 0}
            # Sums may differ by one token, but not by which: the first of equally likely ones.
            assert abs(len(support) - len(nucleus)) <= 1
            assert support == set(order[: len(support)])
            assert all(results[v] == row[v] for v in support)


@pytest.mark.parametrize("top_p", [0.7, 1.0])
def test_tokens_are_drawn_as_often_as_they_are_likely(policy, top_p):
    """With one number per row, so that a seed means the same everywhere."""
    probs = torch.tensor([0.05, 0.4, 0.0, 0.3, 0.25])
    generator = torch.Generator().manual_seed(0)
    rows = probs.expand(20_000, -1)
    sampler = Sampler(policy, Sampling(top_p=top_p))
    draws = sampler._choose(rows.log(), rows, generator)
    copies = probs * torch.tensor([0, 1, 0, 1, 0]) if top_p < 1 else probs
    shares = torch.bincount(draws, minlength=len(probs)) / len(draws)
    assert torch.equal(shares > 0, copies > 0)
    assert shares.tolist() == pytest.approx((copies / copies.sum()).tolist(), abs=0.015)
    one_each = torch.Generator().manual_seed(0)
    torch.rand(20_000, 1, dtype=torch.float64, generator=one_each)
    assert torch.equal(one_each.get_state(), generator.get_state())


def test_rows_that_fit_the_cache_are_played_at_once_and_the_others_after_them(
    tiny, world, monkeypatch
):
    """64 × 8 rollouts of 4,096 tokens of a 0.5B policy would hold 25.8 GB of keys and values."""
    limits = {"sequence_tokens": 200, "temperature": 0}
    whole = play(tiny, world, 7, **limits)
    sizes = []

    class Reader(sampler._Reader):
        def __init__(self, policy, rows, capacity):
            sizes.append(len(rows))
            super().__init__(policy, rows, capacity)

    monkeypatch.setattr(sampler, "_Reader", Reader)
    monkeypatch.setattr(sampler, "CACHE_BYTES", 3 * 200 * bytes_per_token(tiny.model))
    parts = play(tiny, world, 7, **limits)
    assert sizes == [3, 3, 1]
    assert [r.ids for r in parts] == [r.ids for r in whole]
