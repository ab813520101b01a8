"""The run of docs/tutorial.md: GRPO with TRL on a policy of a few thousand weights, on a CPU.

python docs/tutorial.py RUN [LEARNING_RATE [GATE]]

GATE is "action", "response" or "token": the gate of LLDS, added to TRL's loss.
"""

from __future__ import annotations

import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from lldscope.integrations.trl import instrument

WORDS = ["<pad>", "<eos>", *"abcdefgh"]


def next_letter(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """1 where the answer is the letter after the one in the question, ½ where it begins so."""
    letters = WORDS[2:]
    after = dict(zip(letters, letters[1:] + letters[:1], strict=True))
    return [
        0.5 * a.startswith(after[q]) + 0.5 * (a == after[q])
        for q, a in zip(prompts, completions, strict=True)
    ]


def make_trainer(learning_rate: float) -> GRPOTrainer:
    tokens = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    torch.manual_seed(0)
    policy = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
            bos_token_id=None, eos_token_id=1, pad_token_id=0,
        )
    )
    return GRPOTrainer(
        model=policy,
        reward_funcs=next_letter,
        args=GRPOConfig(
            "tutorial-trl", learning_rate=learning_rate, lr_scheduler_type="constant",
            per_device_train_batch_size=64, num_generations=8, num_iterations=4, beta=0.0,
            max_completion_length=3, max_steps=320, use_cpu=True, bf16=False, seed=1,
            gradient_checkpointing=False, save_strategy="no", report_to=[], logging_steps=40,
        ),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>"
        ),
        train_dataset=Dataset.from_list([{"prompt": letter} for letter in WORDS[2:]]),
    )


if __name__ == "__main__":
    run, *options = sys.argv[1:]
    trainer = make_trainer(float(options[0]) if options else 0.03)
    instrument(trainer, run, llds=options[1] if len(options) > 1 else None)
    trainer.train()
