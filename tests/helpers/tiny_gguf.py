"""GGUF files of a few kilobytes, as llama.cpp's converter would write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tiny_policy import train_tokenizer

HIDDEN, HEADS, KV_HEADS, WIDTH, LAYERS = 32, 4, 2, 48, 2
CHAT = (
    "{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant: {% endif %}"
)


def write_gguf(path: Path, *, architecture: str = "llama", eos: bool = True) -> None:
    """A Llama with random weights, and the tiny policy's way of tokenizing."""
    import gguf

    tokenizer: Any = json.loads(train_tokenizer(400).backend_tokenizer.to_str())["model"]
    tokens = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    tokens[0] = "<|endoftext|>"  # which transformers would add otherwise
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in (tokens[0], "<eos>") else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["merges"]])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_pad_token_id(0)
    if eos:
        writer.add_eos_token_id(tokens.index("<eos>"))
    writer.add_chat_template(CHAT)
    generator = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> None:
        values = generator.normal(0, 0.05, shape) if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    tensor("token_embd", len(tokens), HIDDEN)
    tensor("output_norm", HIDDEN)
    keys = HIDDEN // HEADS * KV_HEADS
    for layer in range(LAYERS):
        for name, *shape in (
            ("attn_norm", HIDDEN), ("attn_q", HIDDEN, HIDDEN), ("attn_k", keys, HIDDEN),
            ("attn_v", keys, HIDDEN), ("attn_output", HIDDEN, HIDDEN), ("ffn_norm", HIDDEN),
            ("ffn_gate", WIDTH, HIDDEN), ("ffn_up", WIDTH, HIDDEN), ("ffn_down", HIDDEN, WIDTH),
        ):
            tensor(f"blk.{layer}.{name}", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
