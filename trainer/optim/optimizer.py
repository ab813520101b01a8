"""Turns losses into new weights: plain torch here, DeepSpeed's ZeRO in `zero.py`.

Both take gradients that are already normalised by the counts of the whole update, over all
micro-batches and ranks (`update.py`), so gradients are summed and never averaged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lldscope.core.errors import LldscopeError

from ..config import TrainConfig
from ..policy.logprobs import TokenScores, action_scores
from ..policy.model import Policy
from .processes import Processes

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's state of a parameter, besides its step count."""

MASTER = "master"
"""The float32 copy of a bfloat16 weight, saved beside the moments."""

MANY = 10**7
"""The number of weights above which one fused pass over AdamW's numbers is several times as fast on
a CPU."""


class TorchOptimizer:
    """AdamW on every rank's own copy of the weights, with its moments and the learning rate. The
    copies stay equal to the bit: they start from rank 0's, and every rank applies the same summed
    gradient. Every rank makes the same calls in the same order, forwards included, `full_weights`
    excepted. `fused` updates all weights in a few kernels."""

    fused = False

    def __init__(self, policy: Policy, config: TrainConfig, processes: Processes) -> None:
        self._model = policy.model
        self._processes = processes
        self._named = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        self._parameters = list(self._named.values())
        # On the CPU it rounds otherwise, and gains little where the weights are few.
        many = sum(p.numel() for p in self._parameters) > MANY
        self.fused = self.fused or many or processes.device.type == "cuda"
        self._adamw = torch.optim.AdamW(
            self._parameters, lr=config.lr, weight_decay=config.weight_decay, fused=self.fused
        )
        self._clip = config.grad_clip
        self._offload = config.offload_moments
        self._main_memory: dict[Any, dict[str, Tensor]] = {}  # by parameter: its moments
        processes.copy_from_first([p.data for p in self._parameters])

    @property
    def lr(self) -> float:
        return float(self._adamw.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self._adamw.param_groups:
            group["lr"] = value

    def _shapes(self) -> dict[str, torch.Size]:
        """Shapes of the trained parameters, whole, by name."""
        return {n: getattr(p, "ds_shape", p.shape) for n, p in self._named.items()}

    def _share(self) -> set[str]:
        """The parameters that this rank writes."""
        return set(list(self._named)[self._processes.rank :: self._processes.size])

    def forward(self, ids: Tensor, action_mask: Tensor, *, entropy: bool = False) -> TokenScores:
        """`logprobs.action_scores` of the policy, with gradient, in the form that this optimizer
        needs."""
        return action_scores(self._model, ids, action_mask, entropy=entropy)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of one micro-batch's share of the loss; `last` of this update."""
        loss.backward()

    def step(self) -> tuple[float, bool]:
        """Apply the gradients: (norm, applied). The norm is that of the whole gradient before
        clipping, the same on every rank. A gradient that is not finite changes neither weights nor
        moments on any rank; then `applied` is False."""
        if self._processes.size > 1:
            for p in self._parameters:
                p.grad = self._processes.sum(torch.zeros_like(p) if p.grad is None else p.grad)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._clip))
        # A non-finite gradient would poison the weights and AdamW's moments for good. The norm
        # comes from summed gradients, so that all ranks decide alike.
        applied = math.isfinite(norm)
        if applied:
            self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        return norm, applied

    @contextmanager
    def full_weights(self) -> Iterator[None]:
        """While open, the policy's model holds all its weights, and each rank may run it without
        gradients, and read it. All ranks enter and leave together."""
        yield

    @contextmanager
    def moments_at_hand(self) -> Iterator[None]:
        """Context for updates. With `offload_moments` the moments come from main memory, and return
        there."""
        for parameter, moments in self._main_memory.items():
            for name, moment in moments.items():
                self._adamw.state[parameter][name] = moment.to(parameter.device, non_blocking=True)
        yield
        if self._offload:
            self._move_out()

    def _move_out(self) -> None:
        """Move moments into pinned memory, allocated once: copies to and from it are several times
        as fast."""
        cuda = self._processes.device.type == "cuda"
        for parameter, state in self._adamw.state.items():
            buffers = self._main_memory.setdefault(parameter, {})
            for name in MOMENTS:
                if name not in buffers:
                    buffers[name] = torch.empty_like(state[name], device="cpu", pin_memory=cuda)
                state[name] = buffers[name].copy_(state[name], non_blocking=True)
        if cuda:
            torch.cuda.synchronize()  # before anything reads or overwrites them
            torch.cuda.empty_cache()

    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Set the trained parameters by name. Raises LldscopeError for weights of another model."""
        self._check(weights)
        with torch.no_grad():
            for name, parameter in self._named.items():
                parameter.copy_(weights[name])

    def save(self, directory: Path) -> None:
        """Write moments, and weights of more precision than the policy's, into `directory`: every
        rank those of its share of the parameters, whole."""
        state, share = self._adamw.state, self._share()
        states = {n: state[p] for n, p in self._named.items() if p in state}
        steps = {n: int(s["step"]) for n, s in states.items()}
        moments = {f"{n}.{m}": s[m] for n, s in states.items() if n in share for m in MOMENTS}
        self._write(directory, moments, steps)

    def load(self, directory: Path) -> None:
        """Load what `save` wrote; the policy must hold the weights it had then. Raises
        LldscopeError for the state of another model."""
        tensors, steps = self._read(directory)
        self._adamw.state.clear()
        self._main_memory.clear()
        for name, parameter in self._named.items():
            if f"{name}.{MASTER}" in tensors:
                parameter.data.copy_(tensors[f"{name}.{MASTER}"])
            if name in steps:
                self._adamw.state[parameter] = {
                    "step": torch.tensor(
                        float(steps[name]), device=parameter.device if self.fused else None
                    ),
                    **{m: tensors[f"{name}.{m}"].to(parameter.device) for m in MOMENTS},
                }
        if self._offload:
            self._move_out()

    def _check(self, weights: Mapping[str, Tensor]) -> None:
        """Raise LldscopeError unless there is a weight of the right shape for every parameter."""
        if any(n not in weights or weights[n].shape != s for n, s in self._shapes().items()):
            raise LldscopeError("The weights are not those of this model: names or shapes differ")

    def _write(self, directory: Path, tensors: dict[str, Tensor], steps: dict[str, int]) -> None:
        """Write this rank's optimizer-RANK.safetensors; rank 0 also the applied steps of each
        parameter, optimizer.json."""
        directory.mkdir(parents=True, exist_ok=True)
        rank = self._processes.rank
        tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        save_file(tensors, directory / f"optimizer-{rank}.safetensors")
        if rank == 0:
            (directory / "optimizer.json").write_text(json.dumps({"steps": steps}), "utf-8")

    def _read(self, directory: Path) -> tuple[dict[str, Tensor], dict[str, int]]:
        """What `_write` wrote on all ranks, however many they were, checked against the
        parameters' names and shapes."""
        tensors: dict[str, Tensor] = {}
        for file in sorted(directory.glob("*.safetensors")):
            tensors |= load_file(file)
        steps = json.loads((directory / "optimizer.json").read_text("utf-8"))["steps"]
        keys = {f"{name}.{moment}" for name in steps for moment in MOMENTS}
        shapes = self._shapes()
        unknown = {n for n, t in tensors.items() if shapes.get(n.rpartition(".")[0]) != t.shape}
        if unknown or not keys <= set(tensors):
            raise LldscopeError(f"The optimizer state in {directory} is not that of this model")
        return tensors, steps
