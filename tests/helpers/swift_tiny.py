"""ms-swift's own GRPO on a policy of a few thousand weights; nothing is downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trl_tiny
from swift.arguments import RLHFArguments
from swift.pipelines.train.rlhf import SwiftRLHF
from swift.rewards import ORM, orms
from transformers import PreTrainedTokenizerFast

CHAT = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


class Parity(ORM):
    """Cheap, and now 0, now 1 for every policy."""

    def __call__(self, completions: list[str], **_: Any) -> list[float]:
        return [float(sum(map(ord, text)) % 2) for text in completions]


orms["parity"] = Parity


def train(folder: Path, then: Callable[[Any], None], **changes: Any) -> Any:
    """A training of 8 rollouts per rollout batch in two micro-batches, 4 to a group. `then(made)`
    is called before it; returns the trainer."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer: PreTrainedTokenizerFast = trl_tiny.tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder / "model")
    trl_tiny.model().save_pretrained(folder / "model")
    rows = [{"messages": [{"role": "user", "content": f"{a} {b}"}]} for a in "abcd" for b in "efgh"]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings: dict[str, Any] = {
        "rlhf_type": "grpo", "model": str(folder / "model"), "model_type": "qwen2",
        "template": "dummy", "dataset": [str(folder / "questions.jsonl")],
        "reward_funcs": ["parity"], "output_dir": str(folder / "out"), "add_version": False,
        "tuner_type": "full", "torch_dtype": "float32", "attn_impl": "sdpa", "use_hf": True,
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1,
        "steps_per_generation": 2, "num_generations": 4, "max_steps": 4,
        "max_completion_length": 8, "learning_rate": 1e-2, "lr_scheduler_type": "constant",
        "warmup_ratio": 0.0, "beta": 0.0, "logging_steps": 1, "save_strategy": "no",
        "report_to": ["none"], "dataset_num_proc": 1, "dataloader_num_workers": 0,
        "gradient_checkpointing": False, "split_dataset_ratio": 0.0, "load_from_cache_file": False,
        "check_model": False, "seed": 5,
    }
    trainers: list[Any] = []

    class Recorded(SwiftRLHF):
        def train(self, trainer: Any) -> Any:
            trainers.append(trainer)
            then(trainer)
            return super().train(trainer)

    Recorded(RLHFArguments(**settings | changes)).main()
    return trainers[0]
