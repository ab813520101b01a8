"""Retention in verl: kept responses of earlier steps, scored by the workers.

They are put into a partition of TransferQueue of their own, scored in the pass by which verl
measured π_old, and cleared again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from ...recording.retention import KeptResponse

PARTITION = "lldscope"


def score_kept(
    due: Sequence[KeptResponse], multiple: int, score: Callable[[KVBatchMeta], Any]
) -> list[np.ndarray]:
    """(T,) log π of each token of what is due, nats; 0 on the prompt.

    multiple: the workers take only so many rows, or a multiple of it; the first one fills up.
    score: from a batch to the log-probabilities of its responses, nested.
    """
    if not due:
        return []
    rows = [_row(r) for r in due]
    rows += rows[:1] * (-len(rows) % multiple)
    keys = [f"{PARTITION}-{i}" for i in range(len(rows))]
    # As verl's tags are: workers share the rows out by these lengths.
    tags = [
        {"prompt_len": len(row["prompts"]), "response_len": len(row["responses"]),
         "seq_len": len(row["input_ids"])}
        for row in rows
    ]
    tq.kv_batch_put(
        keys=keys, partition_id=PARTITION, fields=list_of_dict_to_tensordict(rows), tags=tags
    )
    try:
        logps = score(KVBatchMeta(keys=keys, tags=tags, partition_id=PARTITION)).unbind()
    finally:
        tq.kv_clear(keys=keys, partition_id=PARTITION)
    return [
        np.concatenate([np.zeros(len(r.ids) - len(logp)), logp.double().numpy()])
        for r, logp in zip(due, logps, strict=False)
    ]


def _row(response: KeptResponse) -> dict[str, Any]:
    """The fields of a rollout that verl's scoring reads."""
    ids, policy_mask = torch.from_numpy(response.ids).long(), torch.from_numpy(response.mask)
    first = int(policy_mask.argmax())
    return {
        "input_ids": ids,
        "position_ids": torch.arange(len(ids)),
        "prompts": ids[:first],
        "responses": ids[first:],
        "response_mask": policy_mask[first:],
        "loss_mask": policy_mask[first:],
    }
