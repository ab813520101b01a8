"""TRL's GRPOTrainer on a policy of a few thousand weights, for tests; nothing is downloaded."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

WORDS = ["<pad>", "<eos>", *"abcdefghijklmnop"]


def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")


def model(vocabulary: int = len(WORDS), *, dropout: float = 0.0, positions: int = 64) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=positions,
        attention_dropout=dropout, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )
    return Qwen2ForCausalLM(config)


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Cheap, and now 0, now 1 for every policy."""
    return [float(sum(ids) % 2) for ids in completion_ids]


def make(folder: Path, *, policy: Any = None, kind: Any = GRPOTrainer, **changes: Any) -> Any:
    """A trainer of 8 rollouts per rollout batch in two micro-batches, 4 to a group; `changes` are
    GRPOConfig's, or arguments of the trainer."""
    options = {
        name: changes.pop(name)
        for name in ("tools", "processing_class", "train_dataset", "reward_funcs", "callbacks",
                     "peft_config", "rollout_func")
        if name in changes
    }
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1,
        "steps_per_generation": 2, "num_iterations": 1, "num_generations": 4, "max_steps": 6,
        "max_completion_length": 8, "learning_rate": 1e-2, "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0, "beta": 0.0, "seed": 5, "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "logging_strategy": "no", "save_strategy": "no",
        "report_to": [], "disable_tqdm": True,
    }
    settings |= changes
    policy = model() if policy is None else policy
    if settings["beta"]:  # TRL loads the reference from where the policy came from
        policy.save_pretrained(folder / "policy")
        policy.config._name_or_path = str(folder / "policy")
    questions = [{"prompt": f"{a} {b}", "data_source": "letters"} for a in "abcd" for b in "efgh"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = kind(
            model=policy,
            args=GRPOConfig(output_dir=str(folder / "trl"), **settings),
            **({
                "processing_class": tokenizer(), "reward_funcs": reward,
                "train_dataset": Dataset.from_list(questions),
            } | options),
        )
    trainer.remove_callback(PrinterCallback)
    return trainer


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
