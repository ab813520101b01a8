"""Low-rank adapters (arXiv 2106.09685), put into the model by peft, taken out as merged weights.

The adapters replace linear layers inside the ordinary Hugging Face model, so that its decoder and
head are found where they always are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lldscope.core.errors import UsageError

_NAME = "default"


def add_adapters(model: Any, rank: int, alpha: float) -> None:
    """Put adapters on all linear layers but the head and freeze everything else.

    They start as no change at all (B = 0), with the same random A in every process. Raises
    UsageError without peft.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UsageError(
            f"lora_rank={rank} needs the package peft: pip install 'lldscope[lora]'"
        ) from error
    settings: dict[str, Any] = {"r": rank, "lora_alpha": alpha, "target_modules": "all-linear"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inject_adapter_in_model(LoraConfig(**settings), model, adapter_name=_NAME)


def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of the model as it would be without adapters: W + BA·alpha/rank."""
    for name, weight in model.state_dict().items():
        if ".lora_" in name:
            continue
        owner, adapted, leaf = name.rpartition(".base_layer.")
        if adapted and leaf == "weight":
            with torch.no_grad():
                weight = weight + model.get_submodule(owner).get_delta_weight(_NAME)
        yield (f"{owner}.{leaf}" if adapted else name), weight
