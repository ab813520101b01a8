"""Retention: do correct responses of earlier steps keep their likelihood?

One step's Δ looks at responses that were just trained on. What the training on other questions does
to a response shows later: here correct responses are kept, and scored again a few steps on, by the
policy after that step's last update. docs/retention.md says what to call when.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.schema import RETENTION_HORIZONS
from .batch import Batch
from .columns import StepRows
from .rescore import mixed_groups
from .token_samples import Columns

RESPONSES = 16
"""Responses kept of a step, unless a trainer is told otherwise."""


@dataclass(frozen=True)
class KeptResponse:
    """A response and what the trainer's policy thought of it when it was sampled.

    ids (T,): token ids, prompt and tool text included. action (T,): the action of each token, −1
    off the actions. old (actions,): Σ log π_old of each action, nats.
    """

    step: int
    response_id: int
    ids: np.ndarray
    action: np.ndarray
    old: np.ndarray

    @property
    def mask(self) -> np.ndarray:
        """(T,) int: 1 on the tokens that the policy wrote."""
        return (self.action >= 0).astype(np.int64)


class Retention:
    """The correct responses of the last steps, of one rank, and the rows of the table `retention`.

    Of each step's correct responses of mixed groups a simple random sample is kept, at most
    `responses` of them, until the longest of the horizons has passed: memory is bounded by
    `responses` × (longest horizon + 1) × tokens of a response × 8 bytes.

    In each step, after its last update: score what is `due`, record its `rows`, then `keep` the
    step's own responses.
    """

    def __init__(
        self, responses: int = RESPONSES, horizons: Sequence[int] = RETENTION_HORIZONS
    ) -> None:
        self._n = responses
        self._horizons = tuple(horizons)
        self._kept: dict[int, list[KeptResponse]] = {}

    def keep(self, batch: Batch) -> None:
        """Keep correct responses of a step, whose `old` was measured, and forget what is over."""
        self._kept = {s: r for s, r in self._kept.items()
                      if batch.step - max(self._horizons) < s < batch.step}  # fmt: skip
        if batch.old is None or not self._n:
            return
        mixed = mixed_groups(batch.correct, batch.group_ids).values()
        right = [r for rows in mixed for r in rows if batch.correct[r] and batch.old.rows[r]]
        rng = random.Random(f"retention {batch.step}")
        chosen = sorted(rng.sample(right, min(self._n, len(right))))
        action = StepRows(batch).action
        self._kept[batch.step] = [_kept(batch, row, action[row]) for row in chosen]

    def due(self, step: int) -> list[KeptResponse]:
        """What is to be scored after the last update of this step, by one horizon after another."""
        return [r for h in self._horizons for r in self._kept.get(step - h, ())]

    def rows(self, step: int, logps: Sequence[Any]) -> Columns:
        """Columns of the table `retention` for what is `due`.

        logps: for each response in that order (T,) log π_post of its tokens, nats; off the actions
        anything. A response that could not be scored is None.
        """
        columns: Columns = {name: [] for name in (
            "horizon", "response_id", "action_index", "n_tokens", "logp_old_sum", "logp_post_sum"
        )}  # fmt: skip
        for response, logp in zip(self.due(step), logps, strict=True):
            where = response.action[response.action >= 0]
            n = len(response.old)
            post = [None] * n
            if logp is not None:
                written = np.asarray(logp, np.float64)[response.action >= 0]
                post = np.bincount(where, written, n).tolist()
            columns["horizon"] += [step - response.step] * n
            columns["response_id"] += [response.response_id] * n
            columns["action_index"] += range(n)
            columns["n_tokens"] += np.bincount(where, minlength=n).tolist()
            columns["logp_old_sum"] += response.old.tolist()
            columns["logp_post_sum"] += post
        return {"step": step, **columns}

    def state(self) -> dict[str, np.ndarray]:
        """Everything that is kept, as plain arrays, for a checkpoint (`numpy.savez`)."""
        kept = [r for responses in self._kept.values() for r in responses]

        def joined(name: str, kind: Any) -> np.ndarray:
            arrays = [getattr(r, name) for r in kept]
            return np.concatenate(arrays).astype(kind) if arrays else np.zeros(0, kind)

        return {
            "responses": np.array(
                [(r.step, r.response_id, len(r.ids), len(r.old)) for r in kept], np.int64
            ).reshape(-1, 4),
            "ids": joined("ids", np.int32),
            "action": joined("action", np.int32),
            "old": joined("old", np.float64),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go back to a `state`. Raises ValueError for one whose arrays do not fit together."""
        table = state["responses"]
        ends, actions = table[:, 2].cumsum(), table[:, 3].cumsum()
        if len(table) and (ends[-1], ends[-1], actions[-1]) != (
            len(state["ids"]), len(state["action"]), len(state["old"])
        ):  # fmt: skip
            raise ValueError("the kept responses do not fit together")
        self._kept = {}
        for (step, response_id, length, n), end, last in zip(
            table.tolist(), ends.tolist(), actions.tolist(), strict=True
        ):
            tokens = slice(end - length, end)
            response = KeptResponse(
                step, response_id, state["ids"][tokens], state["action"][tokens],
                state["old"][last - n : last],
            )  # fmt: skip
            self._kept.setdefault(step, []).append(response)


def _kept(batch: Batch, row: int, action: np.ndarray) -> KeptResponse:
    prompt, completion = batch.prompt_ids[row], batch.completion_ids[row]
    action = action[: len(completion)]
    assert batch.old is not None
    old = batch.old.values[row, : len(completion)]
    return KeptResponse(
        step=batch.step,
        response_id=int(batch.response_ids[row]),
        ids=np.concatenate([prompt, completion]).astype(np.int32),
        action=np.concatenate([np.full(len(prompt), -1), action]).astype(np.int32),
        old=np.bincount(action[action >= 0], old[action >= 0]),
    )
