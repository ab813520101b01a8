"""The processes of one run: one alone, or as many as torchrun started, each with a rank."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

import torch
from torch import Tensor, distributed

from lldscope.core.errors import LldscopeError, UsageError

from ..config import TrainConfig

_TIMEOUT = timedelta(hours=2)
"""How long a rank waits for the others: the slowest rollouts of a step, not a hung network."""


@dataclass(frozen=True)
class Processes:
    """This process among those of its run. A run of one needs no torch.distributed at all.

    `rank` counts through all machines, `local_rank` through this one; `device` is where this
    process computes. Every rank must make the same calls in the same order.
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every rank's tensor, on every rank; `tensor` itself is left alone."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        distributed.all_reduce(total)
        return total

    def copy_from_first(self, tensors: list[Tensor]) -> None:
        """Overwrite the tensors of every rank with those of rank 0."""
        if self.size > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    def share(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        texts = [text]
        if self.size > 1:
            distributed.broadcast_object_list(texts, src=0, device=self.device)
        return texts[0]

    def most(self, mine: int) -> int:
        """The largest number of any rank."""
        if self.size == 1:
            return mine
        largest = torch.tensor(mine, device=self.device)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)
        return int(largest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave the process group at the end. Not after an error: the others may be inside a call,
        and leaving would wait for them; torchrun ends them when this process ends."""
        if kind is None and distributed.is_initialized():
            distributed.destroy_process_group()


def start(device: str) -> Processes:
    """Join the processes that torchrun started, or be the only one.

    device: "cpu", "cuda", or "auto", which takes CUDA if there is one. Ranks talk over NCCL on
    CUDA and over gloo on the CPU. Raises LldscopeError where there are fewer GPUs than processes on
    this machine.
    """
    size = int(os.environ.get("WORLD_SIZE", 1))
    rank, local_rank = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
    cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if cuda and local_rank >= torch.cuda.device_count():
        raise LldscopeError(
            f"Process {local_rank} of this machine finds {torch.cuda.device_count()} GPUs: start "
            "one process per GPU (torchrun --nproc_per_node), or use device=cpu"
        )
    where = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(where)
    else:
        # Wherever DeepSpeed is installed, transformers imports it to save a model, and without this
        # it warns on the standard output that there is no GPU.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if size > 1:
        distributed.init_process_group("nccl" if cuda else "gloo", timeout=_TIMEOUT)
    return Processes(rank, size, local_rank, where)


def check_shares(config: TrainConfig, size: int) -> None:
    """Raise UsageError unless the step's rollouts can be shared among `size` processes."""
    if config.prompts % size:
        raise UsageError(
            f"prompts={config.prompts} is not allowed with {size} processes: it must be a multiple "
            "of their number, since groups stay whole"
        )
    if config.prompts * config.group_size // size < config.updates:
        raise UsageError(
            f"updates={config.updates} is not allowed with {size} processes: each has only "
            f"{config.prompts * config.group_size // size} rollouts of a step"
        )
