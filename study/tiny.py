"""The built-in tiny policy, from scratch: a model and tokenizer with random weights.

An ordinary `Qwen2ForCausalLM` of well under a million parameters with its own byte-level BPE
tokenizer, saved like any other model, so that every engine that loads Hugging Face directories
loads it too. Its warm start (warm_start.py) is shipped in trainer/warm_start/.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from lldscope_trainer.builtin.world import World
from lldscope_trainer.environment.protocol import TAGS, format_documents, prompt_text
from lldscope_trainer.policy.model import Policy
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from .demonstrations import TEMPLATES

# The head of a document line stays one piece, so that the tool's text is short; the rest is GPT-2's
# rule: words, numbers and signs with the space before them.
_PIECES = r"Doc \d\(Title:| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def new_policy(*, seed: int, vocabulary: int = 1200, hidden: int = 96, layers: int = 3) -> Policy:
    """A tiny policy with random weights and a tokenizer trained on the world's texts."""
    tokenizer = train_tokenizer(vocabulary)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=8 * hidden // 3,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Policy(Qwen2ForCausalLM(config).eval(), tokenizer)


def train_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE over documents and questions; every protocol tag is one special token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<pad>", "<eos>", *TAGS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        extra_special_tokens=list(TAGS),
        clean_up_tokenization_spaces=False,
    )


def _texts() -> Iterator[str]:
    world = World.real()
    for first, second in zip(world.documents, reversed(world.documents), strict=True):
        yield format_documents([first, second])
    for question in world.questions(random.Random(0), 1000):
        yield prompt_text(question.text)
    for template in TEMPLATES:
        for _ in range(20):
            yield f" {template}".format(w="currency", s="Chad", v="Chad", i=1)
