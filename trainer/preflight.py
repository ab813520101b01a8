"""What can be refused is refused before torch is loaded, which takes seconds, and before there is a
run: files that are missing, packages, a retriever that does not answer."""

from __future__ import annotations

import os
from pathlib import Path

from lldscope.core.errors import UsageError

from .config import BUILT_IN, TrainConfig
from .data.corpus import check_corpus
from .environment.retriever_client import HttpRetriever
from .packages import (
    need_deepspeed,
    need_gpu_build,
    need_packed_attention,
    need_peft,
    need_vllm,
    torch_build,
)
from .policy.directory import model_directory

NVIDIA = Path("/proc/driver/nvidia/version")
"""There if a driver for NVIDIA's GPUs is loaded."""


def check(config: TrainConfig) -> None:
    """Raise LldscopeError, saying what to do, if the run could not begin, or if all its searches
    would fail."""
    model_directory(config.model)
    _check_files(config)
    check_packages(config)
    if config.retriever_url:
        HttpRetriever(
            config.retriever_url, top_k=config.top_k, timeout=config.retriever_seconds
        ).check()


def check_packages(config: TrainConfig) -> None:
    """Raise LldscopeError, saying what to install, for a package that the settings need."""
    if config.device == "cuda":
        need_gpu_build()
    if config.packing and _on_gpu(config):
        need_packed_attention(config.dtype)
    if config.offload_moments and not _on_gpu(config):
        raise UsageError(
            "offload_moments=true needs a GPU: without one AdamW's moments are in main memory "
            "already"
        )
    if config.engine == "vllm":
        need_vllm()
    if config.optimizer == "deepspeed":
        need_deepspeed()
    if config.lora_rank:
        need_peft()


def warnings(config: TrainConfig) -> list[str]:
    """What will run, but hardly as it was meant; a sentence each."""
    sentences = []
    if config.llds != "off" and config.updates == 1:
        sentences.append(
            f"llds={config.llds} does nothing with updates=1: old and new policy are the same when "
            "the loss is computed, and every gate is closed; take updates of 2 or more"
        )
    exact = config.dtype == config.head_dtype == "float32"
    if config.importance_sampling != "off" and config.engine == "in-process" and exact:
        sentences.append(
            "importance_sampling does nothing with engine=in-process: what samples is the policy "
            "that is trained, and every weight is 1"
        )
    if config.engine == "vllm" and config.dtype == "float32" and _on_gpu(config):
        sentences.append(
            "dtype=float32 with engine=vllm on a GPU: vLLM has no fast attention for it and takes "
            "twice the memory; take dtype=bfloat16"
        )
    return sentences


def check_run_directory(directory: Path | None) -> None:
    """Raise UsageError if something is where a new run shall be made."""
    if directory and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(
            f"--run {directory}: something is there already; name a new directory, or add --resume"
        )


def _check_files(config: TrainConfig) -> None:
    paths = {"eval_data": config.eval_data}
    if config.data != BUILT_IN:
        paths["data"] = config.data
    for setting, value in paths.items():
        for path in filter(None, map(str.strip, value.split(","))):
            if not Path(path).is_file():
                raise UsageError(f"{setting}={value}: there is no file {path}")
    if config.corpus != BUILT_IN and not config.retriever_url:
        check_corpus(Path(config.corpus))


def _on_gpu(config: TrainConfig) -> bool:
    return config.device == "cuda" or (
        config.device == "auto" and torch_build()[1] and NVIDIA.exists()
    )


def first_process() -> bool:
    """Whether this process is the one that speaks, of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"
