"""Packed rows, and rows whose equal beginnings are computed once, are padded rows:
log-probabilities, entropies and gradients, in every pass that the trainer makes."""

from __future__ import annotations

import pytest
import torch
from lldscope_trainer import preflight
from lldscope_trainer.builtin.world import World
from lldscope_trainer.environment.protocol import Environment
from lldscope_trainer.environment.retrieval import Bm25Retriever
from lldscope_trainer.policy import packing
from lldscope_trainer.policy.logprobs import action_scores, pad
from lldscope_trainer.policy.model import Policy, load_policy
from lldscope_trainer.rollout.sampler import Sampler
from lldscope_trainer.rollout.tokens import Rollout, Sampling
from transformers import Qwen2Config, Qwen2ForCausalLM

from lldscope.core.errors import LldscopeError

CPU = torch.device("cpu")
LENGTHS = [31, 9, 44, 17, 12]


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, action mask) of rows of different lengths: two actions each, one row without any, and
    one whose last tokens are tool text."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(20, 400, (len(LENGTHS), max(LENGTHS)), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        ids[row, length:] = 0
        mask[row, 4 : length // 2] = mask[row, length // 2 + 2 : length] = 1
    mask[1] = 0
    mask[2, -8:] = 0
    ids[3, :12] = ids[4, :12]  # one row begins with all of another, and a third leaves them early
    ids[0, :6] = ids[4, :6]
    return ids, mask


def measured(policy: Policy, **options) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(scores, gradients)."""
    model = policy.model
    model.zero_grad()
    scores = action_scores(model, *rows(), entropy=True, error_norm=True, **options)
    (scores.logp.sum() + scores.entropy.square().sum()).backward()
    return list(scores), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}], ids=str)
@pytest.mark.parametrize("kind", ["packing", "shared_prefixes"])
def test_packed_rows_are_padded_rows(kind, options):
    padded, packed = load_policy("tiny", CPU), load_policy("tiny", CPU, **{kind: True}, **options)
    for policy in (padded, packed):
        policy.model.double()
    for ours, expected in zip(measured(packed), measured(padded), strict=True):
        assert len(ours) == len(expected) > 2
        for a, b in zip(ours, expected, strict=True):
            # The head is float32, and adds up the gradients of shared nodes in another order.
            error = 1e-6 if kind == "packing" else 2e-4
            torch.testing.assert_close(a, b, rtol=error, atol=error)


def test_what_rows_begin_with_in_common_goes_through_the_layers_once():
    policy, (ids, mask) = load_policy("tiny", CPU, shared_prefixes=True), rows()
    decoder, shapes = policy.model.get_decoder(), []
    decoder.register_forward_pre_hook(
        lambda module, _, inputs: shapes.append(inputs["input_ids"].shape), with_kwargs=True
    )
    action_scores(policy.model, ids, mask)
    assert shapes == [(1, sum(LENGTHS) - 8 - LENGTHS[1] - 12 - 6)]
    assert not action_scores(policy.model, ids, 0 * mask).logp.any()


def test_rows_with_the_same_tokens_are_sampled_from_one_pass():
    """Two questions eight times each: greedy, two rows go through the layers, and every rollout is
    what one alone is; sampled, each of the rows keeps its own tokens' log-probabilities."""
    plain, policy = (load_policy("tiny", CPU, shared_prefixes=p) for p in (False, True))
    world, shapes = World.real(), []
    environment = Environment(Bm25Retriever(world.documents), max_turns=2)

    def play(policy: Policy, repeat: int, temperature: float = 0) -> list[Rollout]:
        sampler = Sampler(policy, Sampling(temperature=temperature))
        questions, generator = world.held_out(2) * repeat, torch.Generator().manual_seed(0)
        return sampler.play(environment, questions, generator)

    alone = play(plain, 1)
    policy.model.get_decoder().register_forward_pre_hook(
        lambda module, _, inputs: shapes.append(inputs["input_ids"].shape[0]), with_kwargs=True
    )
    assert [r.ids for r in play(policy, 8)] == [r.ids for r in alone] * 8
    assert set(shapes) <= {1, 2}
    rollouts = play(policy, 8, temperature=1)
    assert len({tuple(r.ids) for r in rollouts}) > 8
    ids = pad([r.ids for r in rollouts], 0, CPU)
    mask = pad([[int(a >= 0) for a in r.action] for r in rollouts], 0, CPU)
    with torch.no_grad():
        scores = action_scores(plain.model, ids, mask, entropy=True, error_norm=True)
    for name in ("logp", "entropy", "error_norm"):
        sampled = pad([getattr(r, name) for r in rollouts], 0.0, CPU)
        torch.testing.assert_close(sampled, getattr(scores, name), rtol=0, atol=1e-4)


def test_what_cannot_be_packed_is_refused():
    config = Qwen2Config(
        vocab_size=500, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, use_sliding_window=True, sliding_window=8,
        max_window_layers=0,
    )
    with pytest.raises(ValueError, match="sliding window cannot be packed"):
        packing.use_packing(Qwen2ForCausalLM(config))
    with pytest.raises(LldscopeError, match="take dtype=bfloat16, or packing=false"):
        preflight.need_packed_attention("float32", "2.13.0+cu130")
    with pytest.raises(LldscopeError, match=r"torch 2\.11 or newer on a GPU, and this is 2\.9\.1"):
        preflight.need_packed_attention("bfloat16", "2.9.1+cu128")
    preflight.need_packed_attention("bfloat16", "2.13.0+cu130")
