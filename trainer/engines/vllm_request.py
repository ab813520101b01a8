"""What vLLM is asked for one turn: the same fields in Python and over its OpenAI-compatible API."""

from __future__ import annotations

import random
from typing import Any

from ..environment.protocol import CLOSING
from ..rollout.tokens import Sampling


def row_seeds(seed: int, n: int) -> list[int]:
    """A seed for each of `n` rows: rows of one question must not write the same thing."""
    rng = random.Random(seed)
    return [rng.getrandbits(62) for _ in range(n)]


def turn_request(sampling: Sampling, eos_id: int | None, limit: int, seed: int) -> dict[str, Any]:
    """Fields of `vllm.SamplingParams` and of a `/v1/completions` body.

    Everything that could bend the distribution is named, because a server takes what a request
    leaves out from the model's generation_config.json. `logprobs` 0 gives the sampled token's
    log-probability, which vLLM takes before temperature and top_p unless told otherwise.
    """
    return {
        "max_tokens": limit,
        "seed": seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 0,
        # The trainer's end-of-text token alone ends a text, as with its own sampler.
        "ignore_eos": True,
        "stop_token_ids": [] if eos_id is None else [eos_id],
        "stop": list(CLOSING) if sampling.turn_end == "tag" else [],
        "include_stop_str_in_output": True,
        # Stop texts are matched in the decoded text, and a tag may be a special token.
        "skip_special_tokens": False,
    }
