"""Policies: any Hugging Face causal language model by its directory, the shipped one (tiny.py) by
its name.

Model directories are somebody else's: nothing in them is executed or unpickled, and what would
load but score wrongly is refused.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from lldscope.core.errors import UsageError

from ..preflight import model_directory
from .head import head_logits
from .kvcache import RowCache
from .packing import use_packing

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


def load_policy(
    path: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    *,
    gradient_checkpointing: bool = False,
    half_layers: bool = False,
    head_dtype: str = "float32",
    packing: bool = False,
    shared_prefixes: bool = False,
) -> Policy:
    """The policy saved at `path`, or the shipped one for "tiny", in evaluation mode.

    Weights are float32 whatever they were saved as. With `dtype` bfloat16 they stay so, and the
    decoder computes in bfloat16 (`logprobs.compute`): at lr 1e-6 AdamW moves a weight by about
    1e-6, and bfloat16 weights, 3 digits long, would not move at all.

    gradient_checkpointing: keep only the inputs of layers for the backward pass; less memory,
    about a third more computing. half_layers: keep the decoder's linear layers in `dtype`, for a
    policy that is not trained or whose optimizer has float32 copies. Autocast would round them so
    in every pass: the result is the same, in half the memory. head_dtype, packing,
    shared_prefixes: see `policy.head`, `policy.packing`, `policy.prefixes`.

    Raises UsageError if the directory is not a complete causal language model with its tokenizer,
    or if its log-probabilities are not what the sampler and the scorer would compute. Nothing in
    the directory is executed or unpickled.
    """
    directory = model_directory(path)
    tokenizer = _load(path, "its tokenizer", lambda: _load_tokenizer(directory))
    model: Any = _load(path, "it", lambda: _load_model(directory))
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise UsageError(
            f"model={path}: its tokenizer has {len(tokenizer)} tokens but the model only "
            f"{model.get_input_embeddings().num_embeddings}: take the model's own tokenizer, or "
            "resize its embeddings"
        )
    model.eval()
    _load(path, "it", lambda: _check(model, tokenizer))
    for layer in model.get_decoder().modules() if half_layers else ():
        if isinstance(layer, torch.nn.Linear):  # before they take room on a GPU
            layer.to(dtype)
    model.to(device)
    if gradient_checkpointing:
        with warnings.catch_warnings():  # 5.23 has a new name for it, which 5.16 does not know
            warnings.simplefilter("ignore", FutureWarning)
            model.gradient_checkpointing_enable({"use_reentrant": False})
    if dtype != torch.float32:
        model.compute_dtype = dtype
    model.head_dtype = head_dtype
    model.shared_prefixes = shared_prefixes
    if packing:
        _load(path, "it with packing=true", lambda: use_packing(model))
    return Policy(model, tokenizer)


T = TypeVar("T")


def _load(path: str, what: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except Exception as error:  # what transformers raises for bad files has no common class
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"model={path}: {what} cannot be used ({type(error).__name__}: {reason}): give the "
            "directory of an intact Hugging Face causal language model"
        ) from error


def _load_model(directory: Path) -> Any:
    load: Any = AutoModelForCausalLM.from_pretrained
    model, report = load(
        directory,
        dtype=torch.float32,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
    )
    if report["missing_keys"]:  # transformers would go on with random numbers
        missing = sorted(report["missing_keys"])
        raise ValueError(f"{len(missing)} weights are missing, the first is {missing[0]}")
    return model


def _load_tokenizer(directory: Path) -> Any:
    """The tokenizer as it was saved. For a Qwen2 model, transformers 5's AutoTokenizer puts Qwen's
    own way of splitting text over whatever tokenizer.json says; ours splits otherwise."""
    config = directory / "tokenizer_config.json"
    values = json.loads(config.read_text("utf-8")) if config.is_file() else {}
    generic = values.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")
    return (PreTrainedTokenizerFast if generic else AutoTokenizer).from_pretrained(
        directory, trust_remote_code=False, local_files_only=True
    )


@torch.no_grad()
def _check(model: Any, tokenizer: Any) -> None:
    """Sampler and scorer take the model apart into decoder, cache and head. Raise ValueError where
    the parts do not make up the whole (a model that scales or caps its logits, say, or has layers
    without a key-value cache), and whatever a broken chat template raises."""
    ids = torch.arange(4, device=model.device)[None]
    whole = model(input_ids=ids, use_cache=False).logits.float()
    cache = RowCache(model.config.num_hidden_layers, 4, 1)
    decoder = model.get_decoder()
    pieces = []
    for start, end in ((0, 2), (2, 4)):
        cache.choose(start)
        piece = decoder(input_ids=ids[:, start:end], past_key_values=cache, use_cache=True)
        pieces.append(piece.last_hidden_state)
    parts = head_logits(model, torch.cat(pieces, dim=1))
    if not torch.allclose(parts, whole, rtol=0, atol=1e-3 * float(1 + whole.abs().max())):
        raise ValueError("its logits are not those of its output layer after its decoder")
    if tokenizer.chat_template:
        chat = [{"role": "user", "content": "?"}]
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
