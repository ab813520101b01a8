"""verl's plug-in (entry point group `verl.plugins`, verl ≥ 0.9): a policy loss, recording trainers.

`import verl` loads this module in every process. The policy loss `llds` is registered at once; the
trainers `lldscope_sync` and its like (`trainer`), which are slow to import, are registered
when verl's own trainers are imported, in the one process that runs them.

L = L_policy + λ·L_LLDS (arXiv 2512.04220 v2, Eq. 6), by `lldscope.losses.llds`. The normalizer is
not the paper's N_pre but the action tokens of the whole mini-batch on all ranks, as in the paper's
reference code: verl passes that count to a loss, so the sum over micro-batches and ranks is the
loss of the whole mini-batch. λ therefore acts less by a factor N_pre / N_all.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from typing import Any

import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn, register_policy_loss
from verl.workers.config import PolicyLossConfig

from ...losses.llds import GATES, llds_loss
from ..common.hooks import after_import

log = logging.getLogger("lldscope")


@dataclass
class LLDSPolicyLossConfig(PolicyLossConfig):
    """verl's `policy_loss` with the settings of LLDS; `_target_` in verl's configuration selects
    it.

    llds_gate: "token", "response" or "action". llds_coefficient: λ. llds_dead_band: the drop in
    nats that a gate ignores; verl measures π_old in a separate pass, and two passes differ by
    rounding. llds_base: the registered policy loss that LLDS is added to.
    """

    llds_gate: str = "action"
    llds_coefficient: float = 0.2
    llds_dead_band: float = 0.0
    llds_base: str = "vanilla"

    def __post_init__(self) -> None:
        if self.llds_gate not in GATES:
            raise ValueError(f"llds_gate must be one of {', '.join(GATES)}, got {self.llds_gate!r}")
        for name in ("llds_coefficient", "llds_dead_band"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be a number >= 0, got {getattr(self, name)}")
        get_policy_loss_fn(self.llds_base)  # raises, with the registered names


@register_policy_loss("llds")
def policy_loss_with_llds(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """A policy loss of verl plus λ·L_LLDS of a micro-batch, all (B, T), and metrics: L_LLDS before
    λ as a mean over the micro-batch's tokens, and the share of its preserved tokens whose gate is
    open."""
    settings = config.policy_loss
    loss, metrics = get_policy_loss_fn(settings.get("llds_base", "vanilla"))(
        old_log_prob=old_log_prob, log_prob=log_prob, advantages=advantages,
        response_mask=response_mask, loss_agg_mode=loss_agg_mode, config=config,
        rollout_is_weights=rollout_is_weights,
    )
    llds = llds_loss(
        log_prob, old_log_prob, response_mask, advantages,
        gate=settings.get("llds_gate", "action"),
        coefficient=settings.get("llds_coefficient", 0.2),
        dead_band=settings.get("llds_dead_band", 0.0), normalizer="all",
    )
    n_all = config.global_batch_info.get("batch_num_tokens")
    ranks = config.global_batch_info.get("dp_size", 1)  # gradients are averaged over them
    share = 1.0 if n_all is None else llds.count / max(1, int(n_all)) * ranks
    n_open, n_preserved = int(llds.gate_open.sum()), int(llds.n_preserved_tokens)
    return loss + llds.loss * share, metrics | {
        "actor/llds_loss": llds.unweighted.item(),
        "actor/llds_gate_open": n_open / max(1, n_preserved),
    }


def _register_trainers() -> None:
    """Logs why the trainers are not available: verl itself would only report an unknown name."""
    try:
        importlib.import_module(".trainer", __package__)
    except Exception:
        log.exception("lldscope: verl's recording trainers (lldscope_sync, …) are not available.")


after_import("verl.trainer.ppo.v1", _register_trainers)
