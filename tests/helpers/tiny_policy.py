"""Policies of two layers with random weights, and tokenizers with fewer pieces than the shipped."""

from __future__ import annotations

import torch
from lldscope_trainer.builtin.world import World
from lldscope_trainer.policy.model import Policy, load_policy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast


def train_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """The shipped tokenizer's rules, trained anew on the world's documents."""
    shipped = load_policy("tiny", torch.device("cpu")).tokenizer
    texts = (document.text for document in World.real().documents)
    return shipped.train_new_from_iterator(texts, vocabulary, show_progress=False)


def byte_tokenizer(*more: str, merges: tuple[tuple[str, str], ...] = ()) -> PreTrainedTokenizerFast:
    """Its tokens are bytes, and `more`: characters and tags are spelled in many."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*letters, *more])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    eos = {"eos_token": "<eos>"} if "<eos>" in more else {}
    return PreTrainedTokenizerFast(tokenizer_object=core, **eos)


def new_policy(*, seed: int) -> Policy:
    """Made sure of itself, so that probabilities differ."""
    tokenizer = train_tokenizer(600)
    config = load_policy("tiny", torch.device("cpu")).model.config
    config.vocab_size, config.hidden_size, config.intermediate_size = 600, 32, 85
    config.num_hidden_layers, config.layer_types = 2, ["full_attention"] * 2
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight *= 8
    return Policy(model, tokenizer)
