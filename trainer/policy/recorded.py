"""Log-probabilities of recorded tokens under a checkpoint, for `lldscope lint --checkpoint`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from lldscope.core.errors import UsageError

from .model import Policy, load_policy


@lru_cache(maxsize=1)
def _policy(directory: str) -> Policy:
    return load_policy(directory, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def score(directory: str, rollouts: Sequence[Sequence[int]]) -> list[list[float | None]]:
    """log π of each token given those before it, in nats; None for the first of a rollout."""
    policy = _policy(directory)
    size = policy.model.get_input_embeddings().weight.shape[0]
    answer: list[list[float | None]] = []
    for rollout in rollouts:
        if (largest := max(rollout)) >= size:
            raise UsageError(
                f"The run has the token {largest}, and the model in {directory} has {size}: "
                "it is another model's."
            )
        ids = torch.tensor([rollout], device=policy.device)  # (1, T)
        with torch.inference_mode(), policy.compute():
            logits = policy.model(ids).logits[0, :-1].float()  # (T - 1, V)
        logps = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]  # (T - 1,)
        answer.append([None, *logps.tolist()])
    return answer
