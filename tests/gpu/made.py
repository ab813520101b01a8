"""What the checks are made of: a policy with random weights, rollouts, a task with rewards."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from lldscope_trainer.algorithms.update import Updater
from lldscope_trainer.config import TrainConfig, load_config
from lldscope_trainer.optim.optimizer import TorchOptimizer
from lldscope_trainer.optim.processes import Processes
from lldscope_trainer.policy.model import Policy, load_policy
from lldscope_trainer.preflight import model_directory
from lldscope_trainer.rollout.batch import RolloutBatch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tests.helpers.keeper import batch_of

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
ALONE = Processes(0, 1, 0, DEVICE)

# https://huggingface.co/Qwen/Qwen2.5-0.5B/blob/main/config.json
QWEN = {
    "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "rms_norm_eps": 1e-6,
}
SMALL = QWEN | {
    "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1,
}


def size(large: Any, small: Any) -> Any:
    """`large` on a GPU; `small` on the CPU, where only the logic of a check is tried."""
    return large if CUDA else small


def now() -> float:
    """Seconds, once the device has done what it was given."""
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter()


def close(name: str, results: torch.Tensor, expected: torch.Tensor, tolerance: float) -> float:
    """The norm of the difference over that of `expected`; AssertionError above the tolerance."""
    results, expected = results.double().cpu(), expected.double().cpu()
    error = float((results - expected).norm() / expected.norm().clamp(min=1e-12))
    assert error <= tolerance, f"{name} is {error:.1e} off, allowed {tolerance:.0e}"
    return error


def make_model(directory: Path, *, small: bool = not CUDA, tied: bool = True) -> str:
    """A Hugging Face directory with random weights. Its tokenizer is the shipped policy's with
    made-up words up to the size of the vocabulary: they decode to text and are never encoded."""
    shape: dict[str, Any] = SMALL if small else QWEN
    source = json.loads((model_directory("tiny") / "tokenizer.json").read_text("utf-8"))
    words = source["model"]["vocab"]
    words |= {f"Ġw{i}": i for i in range(len(words), shape["vocab_size"])}
    directory.mkdir(parents=True)
    (directory / "made.json").write_text(json.dumps(source), "utf-8")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "made.json"), pad_token="<pad>", eos_token="<eos>"
    )
    (directory / "made.json").unlink()
    torch.manual_seed(0)
    config = Qwen2Config(
        **shape, tie_word_embeddings=tied, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )
    Policy(Qwen2ForCausalLM(config).eval(), tokenizer).save(directory)
    return str(directory)


def policy(model: str, dtype: torch.dtype = torch.float32, **options: Any) -> Policy:
    return load_policy(model, DEVICE, dtype, **options)


def updater(policy: Policy, config: TrainConfig) -> Updater:
    return Updater(config, TorchOptimizer(policy, config, ALONE), ALONE)


def rollouts(
    n: int, lengths: list[int] | None = None
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """(ids, action mask, lengths) of n rows of different lengths, two actions each."""
    generator = torch.Generator().manual_seed(0)
    step = size(24, 3)
    lengths = lengths or [8 * step + step * ((5 * i) % n) for i in range(n)]
    vocabulary = (QWEN if CUDA else SMALL)["vocab_size"]
    ids = torch.randint(20, vocabulary, (n, max(lengths)), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, length:] = 0
        mask[row, 6 : length // 2] = mask[row, length // 2 + 3 : length] = 1
    return ids.to(DEVICE), mask.to(DEVICE), lengths


def batch(model: Any, n: int, *, lengths: list[int] | None = None) -> RolloutBatch:
    """Rollouts that a policy near `model` might have sampled: `old` is the model's own score with a
    little noise, so that ratios, clips and gates have something to do."""
    ids, mask, lengths = rollouts(n, lengths)
    generator = torch.Generator().manual_seed(0)
    sample = batch_of(ids, mask, lengths, torch.randn(n, generator=generator).to(DEVICE))
    with torch.no_grad():
        old = sample.score(model, range(n), 1)
    sample.old = old + 0.1 * torch.randn(ids.shape, generator=generator).to(DEVICE) * mask
    return sample


def settings(model: str, *overrides: str) -> TrainConfig:
    """A run of a few seconds on the made policy."""
    tokens = size(128, 12)
    return load_config(
        "tiny",
        [f"model={model}", f"device={DEVICE.type}", "eval_questions=0", "prompts=4",
         "group_size=4", "updates=4", f"turn_tokens={tokens}", f"sequence_tokens={tokens + 128}",
         "lr=1e-4", "warmup_steps=0", "steps=4", "llds=action", "rescore_share=1", *overrides],
    )
