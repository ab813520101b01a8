"""LLDS and the objectives on the device against the same in double precision on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lldscope.losses.llds import GATES, llds_loss
from lldscope.losses.objectives import entropy_bonus, kl_k3, policy_loss

from .checks import Figures, Place, check, close

TOLERANCE = 1e-5
"""Of a loss and its gradient: sums of thousands of float32 terms."""


def numbers(place: Place) -> dict[str, Tensor]:
    """Log-probabilities on a grid of 1/64 nats, whose sums are exact in single precision: gates
    must agree to the token."""
    rows, width = place.size(256, 16), place.size(2048, 96)
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


def here(place: Place, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same in single precision on the device."""
    return {
        name: (t.float() if t.is_floating_point() else t).to(place.device)
        for name, t in tensors.items()
    }


def both(place: Place, loss: Any, tensors: dict[str, Tensor]) -> tuple[Any, Any, float]:
    """What `loss` returns on the device and on the CPU, once its value and gradient agree; the
    larger of their two errors."""
    results = []
    for arguments in (here(place, tensors), tensors):
        new = arguments["logp_new"].clone().requires_grad_()
        result = loss(arguments | {"logp_new": new})
        value = result if isinstance(result, Tensor) else result.loss
        value.sum().backward()
        assert new.grad is not None
        results.append((result, value.detach().sum(), new.grad))
    (first, *ours), (second, *theirs) = results
    pairs = zip(("the loss", "the gradient"), ours, theirs, strict=True)
    return first, second, max(close(*pair, TOLERANCE) for pair in pairs)


@check("LLDS: every gate and normalizer", rank=1)
def llds(place: Place) -> tuple[str, Figures]:
    tensors, worst = numbers(place), 0.0
    for gate in GATES:
        for normalizer in ("preserved", "all"):
            ours, theirs, error = both(
                place,
                lambda arguments, g=gate, n=normalizer: llds_loss(
                    **arguments, gate=g, normalizer=n, coefficient=0.2, answer_weight=0.5
                ),
                tensors,
            )
            assert torch.equal(ours.gate_open.cpu(), theirs.gate_open), f"the gate {gate}"
            worst = max(worst, error)
    tokens = int(tensors["action_mask"].sum())
    return f"{tokens} tokens, gates equal, {worst:.0e} off float64", {"error": worst}


@check("objectives: GRPO, GSPO, dual clip, k3, entropy", rank=1)
def objectives(place: Place) -> tuple[str, Figures]:
    tensors, worst = numbers(place), 0.0
    tensors.pop("answer_mask")
    for objective in ("grpo", "gspo"):
        for aggregation in ("token-mean", "sequence-mean", "dr-grpo"):
            for dual in (None, 3.0):
                _, _, error = both(
                    place,
                    lambda inputs, o=objective, a=aggregation, d=dual: policy_loss(
                        **inputs, objective=o, aggregation=a, dual_clip=d, max_tokens=4096
                    ),
                    tensors,
                )
                worst = max(worst, error)

    def divergence(arguments: dict[str, Tensor]) -> Tensor:
        return kl_k3(arguments["logp_new"], arguments["logp_old"], arguments["action_mask"]).sum()

    def bonus(arguments: dict[str, Tensor]) -> Tensor:
        return entropy_bonus(arguments["logp_new"], arguments["action_mask"])

    for loss in (divergence, bonus):
        worst = max(worst, both(place, loss, tensors)[2])
    return f"{worst:.0e} off float64, loss and gradient", {"error": worst}
