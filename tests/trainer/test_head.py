"""The output layer in less precision: its error, judged by LLDS' dead band, and its gradient."""

from __future__ import annotations

import random

import pytest
import torch
from lldscope_trainer.builtin.world import World
from lldscope_trainer.config import load_config
from lldscope_trainer.environment.protocol import prompt_text
from lldscope_trainer.policy import head
from lldscope_trainer.policy.head import head_logits
from lldscope_trainer.policy.model import Policy, load_policy
from lldscope_trainer.preflight import check

from lldscope.core.errors import UsageError

CPU = torch.device("cpu")
DEAD_BAND = 1e-4
"""Nats: what docs/objectives.md advises in float32."""


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("tiny", CPU)


@pytest.fixture(scope="module")
def hidden(policy) -> torch.Tensor:
    questions = World.real().questions(random.Random(0), 24)
    texts = [prompt_text(q.text) + f"<search> capital {q.text}" for q in questions]
    with torch.no_grad():
        states = [
            policy.model.get_decoder()(torch.tensor([policy.encode(t)])).last_hidden_state[0]
            for t in texts
        ]
    return torch.cat(states)


def eleven_bits(x: torch.Tensor) -> torch.Tensor:
    """As a tensor core rounds float32 to TF32."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def errors(policy: Policy, hidden: torch.Tensor, dtype: str) -> torch.Tensor:
    """|log π − that of the same hidden states in double precision|, of the likeliest tokens."""
    weight = policy.model.get_output_embeddings().weight.detach()
    exact = (hidden.double() @ weight.double().T).log_softmax(-1)
    if dtype == "tf32":  # made here: the processor has no such format
        found = eleven_bits(hidden) @ eleven_bits(weight).T
    else:
        policy.model.head_dtype = dtype
        with torch.no_grad():
            found = head_logits(policy.model, hidden)
        policy.model.head_dtype = "float32"
    assert found.dtype == torch.float32
    tokens = exact.argmax(-1)[:, None]
    return (found.log_softmax(-1).double() - exact).gather(-1, tokens).abs()


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [("float32", 0, DEAD_BAND / 10), ("tf32", DEAD_BAND, 0.02), ("bfloat16", 10 * DEAD_BAND, 0.1)],
)
def test_only_float32_is_well_within_the_dead_band(policy, hidden, dtype, least, most):
    found = errors(policy, hidden, dtype)
    print(f"\n{dtype}: {found.mean():.1e} nats a token, at most {found.max():.1e}")
    assert least <= found.max() < most


def test_in_bfloat16_sums_are_float32_and_gradients_go_the_same_way(policy, hidden):
    weight = policy.model.get_output_embeddings().weight.detach()
    inputs = hidden[:9].clone().requires_grad_(), weight.clone().requires_grad_()
    out = head._Linear.apply(*inputs, "bfloat16")
    rounded = [x.detach().bfloat16().double() for x in inputs]
    assert torch.allclose(out.double(), rounded[0] @ rounded[1].T, rtol=0, atol=1e-5)
    told = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    out.backward(told)
    down = told.bfloat16().double()
    for found, expected in zip(inputs, (down @ rounded[1], down.T @ rounded[0]), strict=True):
        assert found.grad.dtype == torch.float32
        assert (found.grad.double() - expected).abs().max() < 1e-5 * expected.abs().max()


def test_tf32_is_refused_without_a_gpu():
    with pytest.raises(UsageError, match="head_dtype=tf32 needs a GPU"):
        check(load_config("tiny", ["device=cpu", "head_dtype=tf32"]))
