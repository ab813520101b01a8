"""Policies created on first use: converted from GGUF; `search-smollm2` then imitates worked
examples of the built-in world."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import torch

from ..policy.gguf import convert, new_directory
from ..policy.logprobs import action_logps, pad
from ..policy.model import Policy, load_policy
from ..preflight import SEARCH_SMOLLM2, SMOLLM2, converted, gguf_file, is_gguf
from ..rollout.tokens import Sampling, TokenProtocol
from .demonstrations import Example, demonstrations

log = logging.getLogger("lldscope")

EXAMPLES, BATCH, SEED = 192, 8, 0
LR, WARM_UP = 1e-4, 5
TOP_K, MAX_TURNS = 1, 2
"""As in configs/search-smollm2.yaml."""


def make_ready(model: str) -> None:
    """Create a policy from a GGUF file, unless it is cached."""
    if not is_gguf(model) or converted(model).is_dir():
        return
    directory = converted(model)
    if model != SEARCH_SMOLLM2:
        log.warning("lldscope: converting %s, once; about a minute", gguf_file(model).name)
        convert(gguf_file(model), directory)
        return
    make_ready(SMOLLM2)
    log.warning("lldscope: %s learns the protocol from %d examples, once; minutes", model, EXAMPLES)
    policy = load_policy(SMOLLM2, torch.device("cpu"), shared_prefixes=True)
    imitate(policy)
    with new_directory(directory) as place:
        policy.save(place)


def imitate(policy: Policy, on_update: Callable[[int, int, float], None] | None = None) -> None:
    """Train the policy in place with AdamW, a short warm-up and linear decay, on the tokens that
    the policy writes. `on_update` receives (done, total, loss in nats per token)."""
    examples = demonstrations(SEED, EXAMPLES, top_k=TOP_K, max_turns=MAX_TURNS)
    rows = sorted(token_rows(policy, examples), key=lambda row: len(row[0]))
    batches = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]
    random.Random(SEED).shuffle(batches)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=LR, fused=True)
    for number, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = LR * min((number + 1) / WARM_UP, 1 - number / len(batches))
        ids, mask = (pad([row[i] for row in batch], 0, policy.device) for i in range(2))
        loss = -action_logps(policy.model, ids, mask).sum() / mask.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if on_update:
            on_update(number + 1, len(batches), loss.item())


def token_rows(policy: Policy, examples: list[Example]) -> list[tuple[list[int], list[int]]]:
    """(ids, action mask) of each example, tokenised turn by turn as in a rollout."""
    protocol = TokenProtocol(policy, Sampling())
    rows = []
    for question, segments in examples:
        ids = protocol.prompt(question)
        mask = [0] * len(ids)
        for text, by_policy in segments:
            tokens = policy.encode(text)
            ids, mask = ids + tokens, mask + [int(by_policy)] * len(tokens)
        rows.append((ids, mask))
    return rows
