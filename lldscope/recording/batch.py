"""A rollout batch as every trainer has it, for the tables: numbers without the trainer's types.

Shapes: N rollouts, T completion positions, padded on the right. A trainer's adapter, or a loop of
your own, fills in a `Batch` and hands it to `lldscope.recording.columns.record`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .turns import Turn


class Scores(NamedTuple):
    """A number per token (N, T), and in which rollouts it was measured, (N,) bool. A NaN in what
    was measured is a NaN."""

    values: Any
    rows: Any


@dataclass
class Batch:
    """One step's rollouts, of one rank. Arrays are numpy or torch, and numpy afterwards.

    mask (N, T) bool: tokens that the policy wrote; tool text and padding are 0. prompt_ids,
    completion_ids: token ids without padding, the latter with tool text. rewards (N,), NaN where
    there is none; then the step has no mean reward. group_ids, response_ids (N,) integers; the
    default numbers rollouts from 0. advantages (N,) or (N, T).

    Log-probabilities in nats: `old` of the trainer's policy at rollout time, `inner` at the moment
    of the loss, `post` after the step's last update, `behaviour` of the engine that sampled (NaN
    where it did not score), `reference` of the frozen reference; `entropy` at rollout time. old,
    inner, post and entropy are (N, T), or `Scores` if not all rollouts were measured.

    turns: the actions of each rollout, as many as runs of ones in its mask; None: plain text.
    protocol: what they were read from, "tools" or "tags", None if there is neither.
    llds_gate (N, T) bool, llds_penalty (N, T): as in `lldscope.losses.llds.LLDS`.
    decode: token ids to text; None keeps no texts.
    """

    step: int
    mask: Any
    prompt_ids: Sequence[Sequence[int]]
    completion_ids: Sequence[Sequence[int]]
    rewards: Any
    correct: Sequence[bool | None]
    group_ids: Any
    response_ids: Any = None
    advantages: Any = None
    old: Any = None
    inner: Any = None
    post: Any = None
    behaviour: Any = None
    reference: Any = None
    entropy: Any = None
    llds_gate: Any = None
    llds_penalty: Any = None
    turns: Sequence[Sequence[Turn]] | None = None
    protocol: str | None = None
    truncated: Sequence[bool] | None = None
    data_source: Sequence[str | None] | None = None
    decode: Callable[[list[int]], str] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where shapes do not fit."""
        self.mask = array(self.mask).astype(bool)
        self.rewards = array(self.rewards)
        self.group_ids = array(self.group_ids)
        n = len(self.mask)
        self.response_ids = np.arange(n) if self.response_ids is None else array(self.response_ids)
        for name in ("old", "inner", "post", "entropy"):
            setattr(self, name, _scores(getattr(self, name), n))
        for name in ("advantages", "behaviour", "reference", "llds_gate", "llds_penalty"):
            if getattr(self, name) is not None:
                setattr(self, name, array(getattr(self, name)))
        self._check(n)

    def _check(self, n: int) -> None:
        rows = ("prompt_ids", "completion_ids", "rewards", "correct", "group_ids", "response_ids",
                "advantages", "turns", "truncated", "data_source")  # fmt: skip
        for name in rows:
            value = getattr(self, name)
            if value is not None and len(value) != n:
                raise ValueError(f"{name} has {len(value)} rows, mask has {n}")
        for name in ("old", "inner", "post", "entropy"):
            found = getattr(self, name)
            if found is not None and found.values.shape != self.mask.shape:
                raise ValueError(f"{name} has shape {found.values.shape}, mask {self.mask.shape}")
        for name in ("behaviour", "reference", "llds_gate", "llds_penalty"):
            found = getattr(self, name)
            if found is not None and found.shape != self.mask.shape:
                raise ValueError(f"{name} has shape {found.shape}, mask {self.mask.shape}")


def array(values: Any) -> np.ndarray:
    """numpy, with floating numbers in double precision."""
    if hasattr(values, "detach"):  # a torch tensor; numpy knows no bfloat16
        values = values.detach()
        values = (values.double() if values.is_floating_point() else values).cpu().numpy()
    found = np.asarray(values)
    return found.astype(np.float64) if found.dtype.kind == "f" else found


def _scores(given: Any, n: int) -> Scores | None:
    if given is None:
        return None
    if isinstance(given, Scores):
        return Scores(array(given.values), array(given.rows).astype(bool))
    return Scores(array(given), np.ones(n, bool))


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of their own lengths as (N, T), zeros at the right."""
    found = np.zeros((len(rows), max(map(len, rows), default=0)), np.result_type(*rows))
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
    return found
