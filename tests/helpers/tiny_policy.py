"""Policies of two layers with random weights, and tokenizers with fewer pieces than the shipped."""

from __future__ import annotations

import torch
from lldscope_trainer.builtin.world import World
from lldscope_trainer.policy.model import Policy, load_policy
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast


def train_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """The shipped tokenizer's rules, trained anew on the world's documents."""
    shipped = load_policy("tiny", torch.device("cpu")).tokenizer
    texts = (document.text for document in World.real().documents)
    return shipped.train_new_from_iterator(texts, vocabulary, show_progress=False)


def new_policy(*, seed: int) -> Policy:
    tokenizer = train_tokenizer(600)
    config = load_policy("tiny", torch.device("cpu")).model.config
    config.vocab_size, config.hidden_size, config.intermediate_size = 600, 32, 85
    config.num_hidden_layers, config.layer_types = 2, ["full_attention"] * 2
    torch.manual_seed(seed)
    return Policy(AutoModelForCausalLM.from_config(config).eval(), tokenizer)
