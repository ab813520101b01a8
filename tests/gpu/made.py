"""What the checks are made of: a policy with random weights, rollouts, a task with rewards."""

from __future__ import annotations

import json
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
from lldscope_trainer.train import Trainer
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from benchmarks.trl import Listed, OneTurn, draw_questions
from tests.helpers.keeper import batch_of, one_step

from .checks import Place

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


def make_model(directory: Path, small: bool, *, tied: bool = True) -> str:
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


def policy(place: Place, dtype: torch.dtype = torch.float32, **options: Any) -> Policy:
    return load_policy(place.model, place.device, dtype, **options)


def rollouts(
    place: Place, n: int, *, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """(ids, action mask, lengths) of n rows of different lengths, two actions each."""
    generator = torch.Generator().manual_seed(seed)
    step = place.size(24, 3)
    lengths = [8 * step + step * ((5 * i) % n) for i in range(n)]
    vocabulary = place.size(QWEN["vocab_size"], SMALL["vocab_size"])  # type: ignore[call-overload]
    ids = torch.randint(20, vocabulary, (n, max(lengths)), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, length:] = 0
        mask[row, 6 : length // 2] = mask[row, length // 2 + 3 : length] = 1
    return ids.to(place.device), mask.to(place.device), lengths


def long_rollouts(place: Place, n: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """(ids, action mask, lengths) of n rows of one length, nearly all action tokens: 2,048 each."""
    width = place.size(2048, 48)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(20, place.size(150_000, 2000), (n, width), generator=generator)
    mask = torch.ones_like(ids)
    mask[:, :6] = 0
    return ids.to(place.device), mask.to(place.device), [width] * n


def batch(place: Place, model: Any, n: int, *, seed: int = 0, long: bool = False) -> RolloutBatch:
    """Rollouts that a policy near `model` might have sampled: `old` is the model's own score with a
    little noise, so that ratios, clips and gates have something to do."""
    ids, mask, lengths = long_rollouts(place, n) if long else rollouts(place, n, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    advantages = torch.randn(n, generator=generator).to(place.device)
    sample = batch_of(ids, mask, lengths, advantages)
    with torch.no_grad():
        old = sample.score(model, range(n), 1 if long else 10**6)
    sample.old = old + 0.1 * torch.randn(ids.shape, generator=generator).to(place.device) * mask
    return sample


def alone(place: Place) -> Processes:
    return Processes(0, 1, 0, place.device)


def settings(place: Place, *overrides: str) -> TrainConfig:
    """A run of a few seconds on the made policy."""
    tokens = place.size(128, 12)
    return load_config(
        "tiny",
        [f"model={place.model}", f"device={place.device.type}", "eval_questions=0", "prompts=4",
         "group_size=4", "updates=4", f"turn_tokens={tokens}", f"sequence_tokens={tokens + 128}",
         "lr=1e-4", "warmup_steps=0", "steps=4", "llds=action", "rescore_share=1", *overrides],
    )


def one_turn(trainer: Trainer) -> Trainer:
    """The trainer on a task without a tool, whose reward is now 0, now 1 for every policy."""
    c = trainer.config
    questions = draw_questions(max(1, -(-c.steps * c.prompts // 16) + 1))
    trainer._task.questions = Listed(questions)
    trainer._task.environment = OneTurn()
    return trainer


def gradient(place: Place, model: Policy, sample: RolloutBatch, *overrides: str) -> torch.Tensor:
    """The gradient of one update of all rows, in one vector on the CPU."""
    config = settings(place, "updates=1", "entropy_coefficient=0.01", *overrides)
    optimizer = TorchOptimizer(model, config, alone(place))
    copies: list[torch.Tensor] = []

    def step() -> tuple[float, bool]:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in optimizer._parameters]
        copies.append(torch.cat([g.flatten().float().cpu() for g in grads]))
        optimizer._adamw.zero_grad()
        return 0.0, True

    optimizer.step = step  # type: ignore[method-assign]
    one_step(Updater(config, optimizer, alone(place)), sample, 0, seed=0, answer_weight=1.0)
    return copies[0]
