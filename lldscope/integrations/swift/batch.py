"""From ms-swift's rollout batch, samples and collated micro-batches, to a `Batch`; and kept
responses of earlier steps (retention) as a batch that its own method scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...recording.batch import Batch, numbered, padded, reaches
from ...recording.retention import KeptResponse
from ..common.hooks import evaluation_mode


@dataclass
class Pending:
    """A rollout batch between its generation and its last update."""

    step: int
    samples: list[Any]
    micro_batches: list[dict[str, Any]]
    rewards: np.ndarray
    entropies: list[Any]
    norms: list[float | None] = field(default_factory=list)
    lr: float | None = None
    started: float = field(default_factory=time.perf_counter)


def batch_of(trainer: Any, pending: Pending, post: Sequence[Any], correct: float) -> Batch:
    """The step's rollouts. post: of each micro-batch, (B, T). correct: as in `instrument`."""
    rows: dict[str, list[Any]] = {}
    for k, micro in enumerate(pending.micro_batches):
        inputs, grpo = micro["model_inputs"], micro["grpo_batch"]
        tensors = {
            "old": grpo.old_per_token_logps, "post": post[k], "advantages": grpo.advantages,
            "reference": grpo.ref_per_token_logps, "behaviour": grpo.rollout_per_token_logps,
            "entropy": pending.entropies[k] if k < len(pending.entropies) else None,
        }
        for i in range(len(grpo.completion_mask)):
            _add_row(rows, inputs, grpo.completion_mask, tensors, i)
        rows.setdefault("truncated", []).extend(grpo.truncated_mask.bool().tolist())
    n = len(rows["mask"])
    tables: dict[str, Any] = {
        name: padded(rows[name]) for name in rows
        if name not in ("prompt_ids", "completion_ids", "truncated") and len(rows[name]) == n
    }
    tokenizer = getattr(trainer, "processing_class", None) or trainer.tokenizer
    return Batch(
        step=pending.step, rewards=pending.rewards, correct=reaches(pending.rewards, correct),
        group_ids=numbered([s.prompt_id or i // trainer.num_generations
                            for i, s in enumerate(pending.samples)]),
        prompt_ids=rows["prompt_ids"], completion_ids=rows["completion_ids"],
        truncated=rows["truncated"], decode=tokenizer.decode, **tables,
    )


def _add_row(
    rows: dict[str, list[Any]], inputs: Any, masks: Any, tensors: dict[str, Any], i: int
) -> None:
    """One rollout of a micro-batch. `masks` (B, T) and the tensors (B, T) are of the last T tokens;
    the completion begins with the first that the policy wrote."""
    mask, ids = masks[i].bool(), inputs["input_ids"][i]
    attended = inputs["attention_mask"][i].bool()
    positions = mask.nonzero()[:, 0]
    first = int(positions[0]) if len(positions) else len(mask)
    there = attended[len(ids) - len(mask) :].clone()
    there[:first] = False
    start = len(ids) - len(mask) + first
    columns = {"mask": mask[there]} | {k: v[i][there] for k, v in tensors.items() if v is not None}
    for name, values in columns.items():
        values = values.detach().float().cpu().numpy() if name != "mask" else values.cpu().numpy()
        rows.setdefault(name, []).append(values)
    rows.setdefault("prompt_ids", []).append(ids[:start][attended[:start]].tolist())
    rows.setdefault("completion_ids", []).append(ids[len(ids) - len(mask) :][there].tolist())


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
