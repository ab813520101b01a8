"""Retention in ms-swift: kept responses of earlier steps, scored by the trainer's own method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ...recording.retention import KeptResponse
from ..common.hooks import evaluation_mode


def score_kept(
    method: Callable[..., Any], trainer: Any, due: Sequence[KeptResponse]
) -> list[np.ndarray]:
    """(T,) log π of each token of what is due, nats; 0 before the first that the policy wrote.

    method: ms-swift's `_get_per_token_logps_and_entropies`, with as many sequences at once as a
    micro-batch has. The model is in evaluation mode.
    """
    size = trainer.args.per_device_train_batch_size
    logps_of_rows: list[np.ndarray] = []
    for start in range(0, len(due), size):
        part = due[start : start + size]
        inputs, grpo = _collated(part, trainer.accelerator.device)
        with torch.no_grad(), evaluation_mode(trainer.model):
            logps = method(trainer.model, inputs, grpo)[0].double().cpu().numpy()
        width = inputs["input_ids"].shape[1]
        whole = np.pad(logps, ((0, 0), (width - logps.shape[1], 0)))
        logps_of_rows += [row[: len(r.ids)] for row, r in zip(whole, part, strict=True)]
    return logps_of_rows


def _collated(responses: Sequence[KeptResponse], device: Any) -> tuple[dict[str, Any], Any]:
    """ms-swift's inputs of a model and its batch, padded on the right."""
    from swift.rl_core.data import GRPOBatch

    width = max(len(r.ids) for r in responses)
    ids, attention, policy_mask = (
        torch.zeros(len(responses), width, dtype=torch.long) for _ in range(3)
    )
    for i, r in enumerate(responses):
        n = len(r.ids)
        ids[i, :n], attention[i, :n] = torch.from_numpy(r.ids.astype(np.int64)), 1
        policy_mask[i, :n] = torch.from_numpy(r.mask)
    first = min(int(r.mask.argmax()) for r in responses)
    inputs = {"input_ids": ids.to(device), "attention_mask": attention.to(device)}
    return inputs, GRPOBatch(
        completion_mask=policy_mask[:, first:].bool().to(device),
        truncated_mask=torch.zeros(len(responses), dtype=torch.bool, device=device),
        seq_lengths=attention.sum(1).to(device),
        logits_to_keep=width - first,
    )
