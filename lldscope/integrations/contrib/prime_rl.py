"""LLDS in prime-rl's trainer, as its custom loss: docs/integrations.md has the TOML.

prime-rl does not measure π_old: its place is taken by the policy that sampled
(`inference_logprobs`), so the engine's rounding and the policy's staleness are in every drop; a
dead band keeps rounding from opening the gates. A loss is a sum over one sequence, which prime-rl
divides by the tokens of all sequences: N is their number, as in the paper's reference code.
"""

from __future__ import annotations

from typing import Any

from prime_rl.trainer.rl.loss import LossOutputs

from ...losses.llds import llds_loss
from ...losses.objectives import policy_loss


def grpo_with_llds(
    inputs: Any,
    *,
    gate: str = "action",
    coefficient: float = 0.2,
    dead_band: float = 0.05,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Any:
    """Clipped GRPO plus λ·L_LLDS (arXiv 2512.04220 v2, Eq. 6) of one sequence, all (T,).

    gate: "token", "response" or "action", over runs of ones in the loss mask; dead_band: the drop
    in nats that a gate ignores."""
    new, old, mask, advantages = (
        x.unsqueeze(0)
        for x in (inputs.trainer_logprobs, inputs.inference_logprobs, inputs.loss_mask,
                  inputs.advantages)
    )  # fmt: skip
    policy = policy_loss(new, old, mask, advantages, clip_low=clip_low, clip_high=clip_high)
    llds = llds_loss(
        new, old, mask, advantages, gate=gate, coefficient=coefficient, dead_band=dead_band,
        normalizer="all",
    )  # fmt: skip
    n_open, n_preserved = llds.gate_open.sum(), llds.n_preserved_tokens.clamp(min=1)
    return LossOutputs(
        loss=policy.loss * policy.count + llds.loss * llds.count,
        metrics={"llds_loss": llds.unweighted, "llds_gate_open": n_open / n_preserved},
    )
