"""A rollout batch as every trainer has it: plain numbers, without the trainer's types.

Shapes: N rollouts, T completion positions, padded on the right. Each trainer's adapter, or a loop
of your own, fills in a `Batch`; `lldscope.recording.columns` makes the tables' rows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .transcripts import Turn


class Scores(NamedTuple):
    """Numbers per token (N, T), and the rollouts in which they were measured, (N,) bool. A NaN that
    was measured stays a NaN."""

    values: Any
    rows: Any


SCORES = ("old", "inner", "post", "reference", "entropy")
PER_ROW = (
    "prompt_ids", "completion_ids", "rewards", "correct", "group_ids", "response_ids",
    "advantages", "turns", "truncated", "data_source", "texts",
    "questions", "golden", "reward_parts",
)
PER_TOKEN = ("action", "behaviour", "error_norm", "llds_gate", "llds_penalty")


@dataclass
class Batch:
    """One step's rollouts, of one rank. Arrays may be numpy or torch; they are numpy afterwards.

    mask (N, T) bool: tokens that the policy wrote; tool text and padding are 0. None: only texts
    are known, and `turns` says which actions there are. action (N, T): the number of each token's
    action within its rollout; None takes maximal runs of ones in the mask.
    prompt_ids, completion_ids: token ids without padding, the latter with tool text; prompt_ids may
    be hashes of the prompts instead, as texts, and both may be None. rewards (N,), NaN where there
    is none; then the step has no mean reward. group_ids, response_ids (N,) integers, counted over
    all ranks; response_ids default to 0 … N − 1; groups may be masked. advantages (N,) or (N, T).

    Log-probabilities in nats: `old` of the trainer's policy at rollout time, `inner` at the moment
    of the loss, `post` after the step's last update, `behaviour` of the engine that sampled (NaN
    where it did not score), `reference` of the frozen reference; `entropy` and `error_norm`,
    ‖e_y − π‖², at rollout time. old, inner, post, reference and entropy are (N, T), or `Scores` if
    not all rollouts were measured.

    turns: the actions of each rollout, in order; None for a rollout whose actions are not known,
    and None for the batch if all actions are plain text. protocol: the source of the turns,
    "tools" or "tags"; None without one.
    llds_gate (N, T) bool, llds_penalty (N, T): as in `lldscope.losses.llds.LLDS`.
    policy_version: optimizer updates made before the rollouts were sampled, one number or (N,).
    decode: token ids to text; None records no texts. texts: the text of each rollout, from a log.
    questions: the questions, whose ends are kept; golden: the accepted answers; reward_parts: the
    reward by component.
    """

    step: int
    mask: Any
    prompt_ids: Any
    completion_ids: Any
    rewards: Any
    correct: Sequence[bool | None]
    group_ids: Any
    response_ids: Any = None
    action: Any = None
    advantages: Any = None
    old: Any = None
    inner: Any = None
    post: Any = None
    behaviour: Any = None
    reference: Any = None
    entropy: Any = None
    error_norm: Any = None
    llds_gate: Any = None
    llds_penalty: Any = None
    turns: Sequence[Sequence[Turn] | None] | None = None
    protocol: str | None = None
    truncated: Sequence[bool] | None = None
    data_source: Sequence[str | None] | None = None
    policy_version: Any = None
    decode: Callable[[list[int]], str] | None = None
    texts: Sequence[str | None] | None = None
    questions: Sequence[str | None] | None = None
    golden: Sequence[Sequence[str] | None] | None = None
    reward_parts: Sequence[Mapping[str, float] | None] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where shapes do not fit."""
        n = len(self.rewards)
        if self.mask is not None:
            self.mask = array(self.mask).astype(bool)
            n = len(self.mask)
        if self.response_ids is None:
            self.response_ids = np.arange(n)
        for name in SCORES:
            setattr(self, name, _scores(getattr(self, name), n))
        for name in ("rewards", "group_ids", "response_ids", "advantages", *PER_TOKEN):
            if getattr(self, name) is not None:
                setattr(self, name, array(getattr(self, name)))
        for name in PER_ROW:
            value = getattr(self, name)
            if value is not None and len(value) != n:
                raise ValueError(f"{name} has {len(value)} rows, mask has {n}")
        for name in SCORES + PER_TOKEN:
            value = getattr(self, name)
            shape = None if value is None else getattr(value, "values", value).shape
            expected = None if self.mask is None else self.mask.shape
            if shape not in (None, expected):
                raise ValueError(f"{name} has shape {shape}, mask {expected}")


def array(values: Any) -> np.ndarray:
    """numpy, with floating-point numbers in double precision."""
    if hasattr(values, "detach"):  # a torch tensor; numpy knows no bfloat16
        values = values.detach()
        values = (values.double() if values.is_floating_point() else values).cpu().numpy()
    numbers = np.asanyarray(values)
    return numbers.astype(np.float64, copy=False) if numbers.dtype.kind == "f" else numbers


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of different lengths as (N, T), zeros at the right."""
    table = np.zeros((len(rows), max(map(len, rows), default=0)), np.result_type(*rows))
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table


def reaches(rewards: Sequence[float] | np.ndarray, least: float) -> list[bool | None]:
    """Which rewards are at least `least`; None where there is no reward (NaN)."""
    return [None if r != r else bool(r >= least) for r in rewards]


def numbered(names: Sequence[Hashable]) -> np.ndarray:
    """(N,) numbers from 0 for names, in the order in which they first come."""
    number = {name: k for k, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names], np.int64)


def runs_of(mask: Iterable[Any]) -> list[tuple[int, int]]:
    """The maximal runs of true entries, as (start, end)."""
    edges = np.flatnonzero(np.diff([bool(on) for on in mask], prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _scores(values: Any, n: int) -> Scores | None:
    if values is None:
        return None
    if isinstance(values, Scores):
        return Scores(array(values.values), array(values.rows).astype(bool))
    return Scores(array(values), np.ones(n, bool))
