"""The output layer in less precision: its error, judged by LLDS' dead band, and its gradient."""

from __future__ import annotations

import random

import pytest
import torch
from lldscope_trainer.builtin.world import World
from lldscope_trainer.environment.protocol import prompt_text
from lldscope_trainer.policy.head import HalfLinear, head_logits
from lldscope_trainer.policy.model import Policy

CPU = torch.device("cpu")
DEAD_BAND = 1e-4
"""Nats: what docs/objectives.md advises in float32."""


@pytest.fixture(scope="module")
def hidden(tiny) -> torch.Tensor:
    questions = World.real().questions(random.Random(0), 24)
    texts = [prompt_text(q.text) + f"<search> capital {q.text}" for q in questions]
    with torch.no_grad():
        states = [
            tiny.model.get_decoder()(torch.tensor([tiny.encode(t)])).last_hidden_state[0]
            for t in texts
        ]
    return torch.cat(states)


def errors(tiny: Policy, hidden: torch.Tensor, product: str) -> torch.Tensor:
    """|log π − that of the same hidden states in double precision|, of the likeliest tokens."""
    weight = tiny.model.get_output_embeddings().weight.detach()
    if product == "one":
        hidden, weight = hidden.bfloat16(), weight.bfloat16()
    exact = (hidden.double() @ weight.double().T).log_softmax(-1)
    with torch.no_grad():
        if product == "plain":
            logits = head_logits(tiny.model, hidden)
        else:
            logits = HalfLinear.apply(hidden, weight, product != "rounded")
    assert logits.dtype == torch.float32
    tokens = exact.argmax(-1)[:, None]
    return (logits.log_softmax(-1).double() - exact).gather(-1, tokens).abs()


@pytest.mark.parametrize(
    ("product", "least", "most"),
    [
        ("plain", 0, DEAD_BAND / 10),
        ("one", 0, DEAD_BAND / 10),  # bfloat16 inputs
        ("three", DEAD_BAND / 100, DEAD_BAND),  # float32 inputs by halves
        ("rounded", 10 * DEAD_BAND, 0.1),  # head_dtype=bfloat16
    ],
)
def test_float32_by_bfloat16_products_is_within_the_dead_band(tiny, hidden, product, least, most):
    apart = errors(tiny, hidden, product)
    print(f"\n{product}: {apart.mean():.1e} nats a token, at most {apart.max():.1e}")
    assert least <= apart.max() < most


@pytest.mark.parametrize(("exact", "tolerance"), [(True, 2e-5), (False, 1e-2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_go_the_same_way(tiny, hidden, exact, tolerance, dtype):
    weight = tiny.model.get_output_embeddings().weight.detach().to(dtype)
    inputs = hidden[:9].to(dtype).requires_grad_(), weight.clone().requires_grad_()
    logits = HalfLinear.apply(*inputs, exact)
    doubles = [x.detach().double() for x in inputs]
    up = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    logits.backward(up)
    down = up.double()
    if dtype == torch.bfloat16:
        tolerance = 1e-2  # of the gradient itself, which is bfloat16 too
    for tensor, expected in zip(inputs, (down @ doubles[1], down.T @ doubles[0]), strict=True):
        assert tensor.grad.dtype == dtype
        assert (tensor.grad.double() - expected).abs().max() < tolerance * expected.abs().max()
