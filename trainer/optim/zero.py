"""DeepSpeed's ZeRO: AdamW's moments (stage 1), gradients (2) and weights (3) split over the ranks.

DeepSpeed averages gradients over ranks, so the loss is multiplied by their number. Its own check
of the gradient norm skips an update that is not finite at every stage; in bfloat16 it has to be
asked to look. Its own checkpoints are pickles; here moments and float32 weights go to safetensors,
each tensor whole and by parameter name, so that a run can go on with another number of ranks,
another stage or plain torch.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from ..config import TrainConfig
from ..policy.logprobs import TokenScores, action_scores
from ..policy.model import Policy
from ..preflight import need
from .optimizer import MASTER, MOMENTS, TorchOptimizer
from .processes import Processes

_BUCKET = 500_000_000
"""Most gradient elements that ranks add up at once, DeepSpeed's default."""


class ZeroOptimizer(TorchOptimizer):
    """DeepSpeed behind the same methods. With bfloat16 the policy's own weights become bfloat16,
    and AdamW updates a float32 copy that is split over the ranks."""

    def __init__(self, policy: Policy, config: TrainConfig, processes: Processes) -> None:
        deepspeed = _deepspeed(processes)
        self._zero = deepspeed.zero
        super().__init__(policy, config, processes)
        self._stage = config.zero_stage
        self._half = config.dtype == "bfloat16"
        scorer = _Scorer(self._model)
        with redirect_stdout(sys.stderr):
            self._engine: Any = deepspeed.initialize(
                model=scorer, optimizer=self._adamw, config=self._settings(config)
            )[0]
        self._engine.eval()  # dropout would make π_θ differ from π_old with the same weights
        if self._stage == 3:
            for parameter in scorer.head.parameters():
                deepspeed.zero.register_external_parameter(scorer, parameter)

    def _settings(self, config: TrainConfig) -> dict[str, Any]:
        n_weights = sum(p.numel() for p in self._named.values())
        settings: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,  # needed, and without a meaning here
            "gradient_clipping": config.grad_clip,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {
                "stage": config.zero_stage,
                # A bucket is made at its full size, 2 GB by default, however small the model.
                "reduce_bucket_size": min(n_weights, _BUCKET),
            },
        }
        if self._half:
            settings["bf16"] = {"enabled": True, "check_grad_overflow": True}
            settings["data_types"] = {"grad_accum_dtype": "fp32"}
            # Gradients cross ranks as they are added up; left to itself it sends them rounded.
            settings["communication_data_type"] = "fp32"
        return settings

    def forward(self, ids: Tensor, action_mask: Tensor, *, entropy: bool = False) -> TokenScores:
        scores = self._engine(ids, action_mask, entropy)
        return TokenScores(scores[0], scores[1] if entropy else None, None)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss * self._processes.size)

    def step(self) -> tuple[float, bool]:
        self._engine.step()
        return float(self._engine.get_global_grad_norm()), bool(self._engine.was_step_applied())

    @contextmanager
    def full_weights(self) -> Iterator[None]:
        if self._stage < 3:
            yield
            return
        offload = self._engine.optimizer.parameter_offload
        with self._zero.GatheredParameters(list(self._model.parameters())):
            # Their hooks fetch and drop weights layer by layer, all ranks at once.
            for hooks in (offload.forward_hooks, offload.backward_hooks):
                for hook in hooks:
                    hook.remove()
                hooks.clear()
            try:
                yield
            finally:
                offload._register_deepspeed_module(offload.module)

    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        self._check(weights)
        for name, parameter in self._named.items():
            with torch.no_grad(), self._zero.GatheredParameters([parameter], modifier_rank=0):
                parameter.copy_(weights[name])
            self._set(parameter, weights[name])

    def save(self, directory: Path) -> None:
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        step = max((int(s["step"]) for s in self._adamw.state.values()), default=0)
        tensors: dict[str, Tensor] = {}
        share = self._share()
        for name, parameter in self._named.items():  # each is put together on all ranks
            state = {}
            if self._half:
                state[MASTER] = safe_get_full_fp32_param(parameter)
            if step:
                state |= {m: safe_get_full_optimizer_state(parameter, m) for m in MOMENTS}
            if name in share:
                tensors |= {f"{name}.{what}": t.cpu() for what, t in state.items()}
        steps = dict.fromkeys(self._named, step) if step else {}
        self._write(directory, tensors, steps)

    def load(self, directory: Path) -> None:
        tensors, steps = self._read(directory)
        step = torch.tensor(float(max(steps.values(), default=0)))
        for flat in self._flats():
            state = self._adamw.state[flat]
            state["step"] = step.to(flat.device if self.fused else "cpu", copy=True)
            for moment in MOMENTS:
                state.setdefault(moment, torch.zeros_like(flat)).zero_()
        if self._stage < 3:
            self._engine.optimizer._lazy_init_hp_params_optimizer_state()
        for name, parameter in self._named.items():
            for what in (MASTER, *MOMENTS):
                if f"{name}.{what}" in tensors:
                    self._set(parameter, tensors[f"{name}.{what}"], what)

    def _flats(self) -> list[Tensor]:
        """This rank's share of the weights, as AdamW sees them."""
        if self._stage == 3:
            return list(self._engine.optimizer.fp32_partitioned_groups_flat)
        return [p for group in self._adamw.param_groups for p in group["params"]]

    def _set(self, parameter: Any, value: Tensor, what: str = MASTER) -> None:
        """Put this rank's share of `value` into AdamW's copy of `parameter`, or into a moment."""
        key = None if what == MASTER else what
        value = value.to(self._processes.device, torch.float32)
        if self._stage < 3:
            parameter.set_full_hp_param(value, key)
            return
        # DeepSpeed's own function for whole tensors runs over the end of those whose size the
        # number of ranks does not divide.
        size = parameter.ds_tensor.numel()
        flat = nn.functional.pad(value.flatten(), (0, size * self._processes.size))
        share = flat[size * self._processes.rank :][:size]
        self._engine.optimizer.set_local_hp_param(share, parameter, key)


class _Scorer(nn.Module):
    """What DeepSpeed takes for the model. The weights of the head stay whole during a forward pass
    (see `head.head_logits`)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.head = model.get_output_embeddings()

    def forward(self, ids: Tensor, action_mask: Tensor, entropy: bool) -> tuple[Tensor, ...]:
        scores = action_scores(self.model, ids, action_mask, entropy=entropy)
        return (scores.logp,) if scores.entropy is None else (scores.logp, scores.entropy)


def _deepspeed(processes: Processes) -> Any:
    """The package, made ready for this machine."""
    need("deepspeed")
    os.environ.setdefault("LOCAL_RANK", str(processes.local_rank))
    cpu = processes.device.type == "cpu"
    with redirect_stdout(sys.stderr):  # its log would mix with the command's output
        import deepspeed
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    if cpu:
        # Ranks talk over gloo; DeepSpeed's own way for the CPU needs a compiler at run time.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    if not distributed.is_initialized():
        store = distributed.HashStore()
        distributed.init_process_group("gloo" if cpu else "nccl", store=store, rank=0, world_size=1)
    return deepspeed
