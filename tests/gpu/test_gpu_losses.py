"""LLDS and the objectives on the device against the same in double precision on the CPU."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from lldscope.losses.llds import GATES, llds_loss
from lldscope.losses.objectives import entropy_bonus, kl_k3, policy_loss
from tests.gpu.made import DEVICE, close, size

TOLERANCE = 1e-5
"""Of a loss and its gradient: sums of thousands of float32 terms."""


@pytest.fixture(scope="module")
def numbers() -> dict[str, Tensor]:
    """Log-probabilities on a grid of 1/64 nats, whose sums are exact in single precision: gates
    must agree to the token."""
    rows, width = size(256, 16), size(2048, 96)
    generator = torch.Generator().manual_seed(0)

    def grid(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (rows, width), generator=generator).double() / 64

    mask = (torch.rand(rows, width, generator=generator) < 0.7).long()
    mask[:, 0] = 0
    old = -grid(1, 512)
    return {
        "logp_new": old + grid(-24, 25),
        "logp_old": old,
        "action_mask": mask,
        "advantages": torch.randint(-2, 3, (rows,), generator=generator).double(),
        "answer_mask": (torch.rand(rows, width, generator=generator) < 0.1).long() * mask,
    }


def both(loss: Any, numbers: dict[str, Tensor]) -> tuple[Any, Any, float]:
    """What `loss` returns on the device and on the CPU, once its value and gradient agree; the
    larger of their two errors."""
    here = {
        name: (t.float() if t.is_floating_point() else t).to(DEVICE) for name, t in numbers.items()
    }
    results = []
    for arguments in (here, numbers):
        new = arguments["logp_new"].clone().requires_grad_()
        result = loss(arguments | {"logp_new": new})
        value = result if isinstance(result, Tensor) else result.loss
        value.sum().backward()
        results.append((result, value.detach().sum(), new.grad))
    (first, *ours), (second, *theirs) = results
    pairs = zip(("the loss", "the gradient"), ours, theirs, strict=True)
    return first, second, max(close(*pair, TOLERANCE) for pair in pairs)


@pytest.mark.parametrize(("gate", "normalizer"), [*product(GATES, ("preserved", "all"))])
def test_llds(numbers, tell, gate, normalizer):
    options = {"gate": gate, "normalizer": normalizer, "coefficient": 0.2, "answer_weight": 0.5}
    ours, theirs, error = both(lambda arguments: llds_loss(**arguments, **options), numbers)
    assert torch.equal(ours.gate_open.cpu(), theirs.gate_open)
    tell(f"{int(numbers['action_mask'].sum())} tokens, gates equal, {error:.0e} off float64")


def test_objectives(numbers, tell):
    options = product(("grpo", "gspo"), ("token-mean", "sequence-mean", "dr-grpo"), (None, 3.0))
    names = ("logp_new", "logp_old", "action_mask", "advantages")
    losses = [
        lambda n, o=objective, a=aggregation, d=dual: policy_loss(
            *map(n.get, names), objective=o, aggregation=a, dual_clip=d, max_tokens=4096
        )
        for objective, aggregation, dual in options
    ]
    losses += [
        lambda n: kl_k3(n["logp_new"], n["logp_old"], n["action_mask"]).sum(),
        lambda n: entropy_bonus(n["logp_new"], n["action_mask"]),
    ]
    worst = max(both(loss, numbers)[2] for loss in losses)
    tell(f"{worst:.0e} off float64, loss and gradient")
