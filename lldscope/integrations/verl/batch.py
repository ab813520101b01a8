"""From a rollout batch of verl, as its TransferQueue holds it, to a `Batch`.

verl's fields are nested tensors: N rows of different lengths. Rows that verl adds to make the batch
divisible are left out. An agent loop with several outputs per session has a row, and so a response,
for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ...recording.batch import Batch, array, numbered, reaches, runs_of
from ...recording.transcripts import Turn, tagged_turns

FIELDS = (
    "uid", "prompts", "responses", "response_mask", "rm_scores", "old_log_probs", "entropy",
    "advantages", "rollout_log_probs", "ref_log_prob", "data_source", "extra_fields",
)

Correct = float | str


def batch_of(
    data: Any,
    post: Any,
    *,
    step: int,
    padding: Sequence[bool],
    correct: Correct,
    decode: Callable[[list[int]], str],
    limit: int,
    old: Any = None,
) -> Batch:
    """The step's rollouts, in verl's order.

    data: those of FIELDS that exist, N rows each; post: the log-probabilities after the update,
    nested. padding (N,): rows that verl added. limit: the most tokens of a response. old: π_old
    where verl has not measured it (bypass mode); None takes `old_log_probs`.

    A response is correct if its score is at least `correct`, or if the reward function's extra
    value of that name is at least 1 (True).
    """
    rows = [i for i, is_padding in enumerate(padding) if not is_padding]
    fields = set(data.keys())

    def pad(values: Any) -> np.ndarray:
        tensors = values.unbind() if values.is_nested else values
        return array(torch.nn.utils.rnn.pad_sequence([tensors[i] for i in rows], batch_first=True))

    def pad_field(name: str) -> np.ndarray | None:
        return pad(data[name]) if name in fields else None

    def values_of(name: str) -> list[Any] | None:
        if name not in fields:
            return None
        values = list(data[name])
        return [values[i] for i in rows]

    prompts, responses = (
        [data[name].unbind()[i].tolist() for i in rows] for name in ("prompts", "responses")
    )
    mask = pad(data["response_mask"]).astype(bool)
    truncated = [len(ids) >= limit for ids in responses]
    turns = [
        _turns(mask[i, : len(ids)], ids, decode, truncated[i]) for i, ids in enumerate(responses)
    ]
    rewards = pad(data["rm_scores"]).sum(1)
    extras = [(e or {}).get("reward_extra_info") or {} for e in values_of("extra_fields") or []]
    kinds = {turn.kind for of_row in turns for turn in of_row}
    return Batch(
        step=step,
        mask=mask,
        prompt_ids=prompts,
        completion_ids=responses,
        rewards=rewards,
        correct=_correct(rewards, extras, correct),
        group_ids=numbered(values_of("uid") or []),
        advantages=pad_field("advantages"),
        old=pad(old) if old is not None else pad_field("old_log_probs"),
        post=pad(post),
        behaviour=pad_field("rollout_log_probs"),
        reference=pad_field("ref_log_prob"),
        entropy=pad_field("entropy"),
        turns=turns,
        protocol=None if kinds <= {"text"} else "tags",
        truncated=truncated,
        data_source=values_of("data_source"),
        decode=decode,
    )


def _turns(
    policy_mask: np.ndarray, ids: list[int], decode: Callable[[list[int]], str], truncated: bool
) -> list[Turn]:
    """The actions of one response, runs of True in `mask` (tokens,), by their text."""
    spans = [*runs_of(policy_mask), (len(ids), len(ids))]
    if len(spans) == 1:
        return []
    texts = [decode(ids[start:end]) for start, end in spans[:-1]]
    fed = [decode(ids[end:start]) for (_, end), (start, _) in pairwise(spans)]
    return tagged_turns(texts, fed, truncated=truncated)


def _correct(
    rewards: np.ndarray, extras: Sequence[dict[str, Any]], rule: Correct
) -> list[bool | None]:
    if isinstance(rule, str):
        values = [e.get(rule) for e in extras] or [None] * len(rewards)
        return [None if value is None else bool(float(value) >= 1) for value in values]
    return reaches(rewards, rule)
