"""Log-probabilities of recorded tokens under a checkpoint, for `lldscope lint --checkpoint`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lldscope.core.errors import UsageError

from .logprobs import sequence_logps
from .model import load_policy


def score(directory: str, rollouts: Sequence[Sequence[int]]) -> list[list[float | None]]:
    """log π of each token given those before it, in nats; None for the first of a rollout."""
    model = load_policy(
        directory, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ).model
    size = model.get_input_embeddings().weight.shape[0]
    if (largest := max(map(max, rollouts))) >= size:
        raise UsageError(
            f"The run has the token {largest}, and the model in {directory} has {size}: "
            "it is another model's."
        )
    masks = [[0, *[1] * (len(rollout) - 1)] for rollout in rollouts]
    with torch.inference_mode():
        logps = sequence_logps(model, rollouts, masks, len(rollouts))
    return [[None, *row[1:].tolist()] for row in logps]
