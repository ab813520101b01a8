"""Policies: the built-in tiny one, and any Hugging Face causal language model by its directory.

The tiny policy is an ordinary `Qwen2ForCausalLM` of well under a million parameters with its own
byte-level BPE tokenizer, saved like any other model, so that every engine that loads Hugging Face
directories loads it too. Its warm start is shipped in trainer/warm_start/ (`BUILT_IN`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.utils.logging import disable_progress_bar

from lldscope.errors import UsageError

from .environment import TAGS, format_documents, prompt_text
from .world import World

BUILT_IN = "tiny"
"""Name of the shipped warm start where a model path is asked for."""

# The head of a document line stays one piece, so that the tool's text is short; the rest is GPT-2's
# rule: words, numbers and signs with the space before them.
_PIECES = r"Doc \d\(Title:| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


disable_progress_bar()  # bars of a few milliseconds over a tiny model's weights


@dataclass
class Policy:
    """A causal language model, its tokenizer, and the ids the sampler needs."""

    model: Any
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def eos_id(self) -> int | None:
        return self.tokenizer.eos_token_id

    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of text, no special tokens added around it."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, tags included."""
        return self.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def save(self, directory: Path) -> None:
        """Write an ordinary Hugging Face directory (safetensors)."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)


def model_directory(path: str) -> Path:
    """Where the policy is saved: `path`, or the shipped one for "tiny". Raises UsageError if there
    is none."""
    directory = Path(str(files(__package__) / "warm_start")) if path == BUILT_IN else Path(path)
    if not (directory / "config.json").is_file():
        raise UsageError(
            f"model={path}: no Hugging Face model directory (with config.json) there; "
            f'give the path of one, or "{BUILT_IN}" for the shipped policy'
        )
    return directory


def load_policy(path: str, device: torch.device, dtype: torch.dtype = torch.float32) -> Policy:
    """The policy saved at `path`, or the shipped one for "tiny"; errors as `model_directory`."""
    directory = model_directory(path)
    tokenizer = _load_tokenizer(directory)
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    model.to(device)
    return Policy(model.eval(), tokenizer)


def _load_tokenizer(directory: Path) -> Any:
    """The tokenizer as it was saved. For a Qwen2 model, transformers 5's AutoTokenizer puts Qwen's
    own way of splitting text over whatever tokenizer.json says; ours splits otherwise."""
    config = directory / "tokenizer_config.json"
    saved = json.loads(config.read_text("utf-8")) if config.is_file() else {}
    generic = saved.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")
    return (PreTrainedTokenizerFast if generic else AutoTokenizer).from_pretrained(directory)


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
    # Imported late: demonstrations are the warm start's business, only their words are wanted here.
    from .demonstrations import TEMPLATES

    world = World.real()
    for first, second in zip(world.documents, reversed(world.documents), strict=True):
        yield format_documents([first, second])
    for question in world.questions(random.Random(0), 1000):
        yield prompt_text(question.text)
    for template in TEMPLATES:
        for _ in range(20):
            yield f" {template}".format(w="currency", s="Chad", v="Chad", i=1)
