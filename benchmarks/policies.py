"""Policies of another size than the shipped one, with random weights."""

from __future__ import annotations

import torch
from lldscope_trainer.policy.model import Policy, load_policy
from transformers import AutoModelForCausalLM


def random_policy(hidden: int, layers: int) -> Policy:
    """The shipped policy's architecture and tokenizer."""
    shipped = load_policy("tiny", torch.device("cpu"))
    config = shipped.model.config
    config.hidden_size, config.intermediate_size = hidden, 8 * hidden // 3
    config.num_hidden_layers, config.layer_types = layers, ["full_attention"] * layers
    torch.manual_seed(0)
    return Policy(AutoModelForCausalLM.from_config(config).eval(), shipped.tokenizer)
