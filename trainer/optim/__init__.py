"""Optimizer steps by plain torch or DeepSpeed ZeRO, on one process or many."""

from __future__ import annotations

from ..config import TrainConfig
from ..policy.model import Policy
from .optimizer import TorchOptimizer
from .processes import Processes


def make_optimizer(policy: Policy, config: TrainConfig, processes: Processes) -> TorchOptimizer:
    """The optimizer that `config` names. Raises LldscopeError if it needs a package that is not
    installed."""
    if config.optimizer == "deepspeed":
        from .zero import ZeroOptimizer

        return ZeroOptimizer(policy, config, processes)
    return TorchOptimizer(policy, config, processes)
