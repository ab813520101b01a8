"""Retention: do correct responses of earlier steps keep their likelihood?

Δ of a step looks at responses that the step itself trained on. To see what the step does to other
responses, a few correct responses of earlier steps are kept, and scored again after the last update
of each of the next RETENTION_STEPS steps. docs/research/retention.md says what to call when.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..core.schema import RETENTION_STEPS
from .batch import Batch
from .columns import action_numbers
from .rescore import mixed_groups
from .token_samples import Columns

RESPONSES = 2
"""Default number of responses kept per step."""


@dataclass
class KeptResponse:
    """A response and its log-probabilities under the trainer's policy.

    ids (T,): token ids, prompt and tool text included. action (T,): the action of each token, −1
    outside actions. old (actions,): Σ log π_old of each action, nats, under the policy that sampled
    it; previous (actions,): the same under the policy after step `scored`, the last that scored it.
    """

    step: int
    response_id: int
    ids: np.ndarray
    action: np.ndarray
    old: np.ndarray
    previous: np.ndarray
    scored: int

    @property
    def mask(self) -> np.ndarray:
        """(T,) int: 1 on the tokens that the policy wrote."""
        return (self.action >= 0).astype(np.int64)


class Retention:
    """The kept responses of one rank, and the rows of the table `retention`.

    Of each step's correct responses of mixed groups a simple random sample of at most `responses`
    is kept for RETENTION_STEPS steps. Memory is bounded by responses × RETENTION_STEPS × tokens of
    a response × 8 bytes.

    In each step, after its last update: score what is `due`, record its `rows`, then `keep` the
    step's own responses. `record` does all three.
    """

    def __init__(self, responses: int = RESPONSES) -> None:
        self._n = responses
        self._retained: list[KeptResponse] = []

    @property
    def most(self) -> int:
        return self._n * RETENTION_STEPS

    def record(
        self,
        recorder: Any,
        batch: Batch,
        score: Callable[[Sequence[KeptResponse]], Sequence[Any]],
    ) -> None:
        """After the last update of the batch's step: score and record what is due, and keep
        responses of the batch.

        `score` turns the responses that are due into the `logps` of `rows`. It is called even if
        nothing is due: with sharded weights, other ranks may have responses to score.
        """
        due = self.due(batch.step)
        logps = score(due)
        if due:
            recorder.retention(**self.rows(batch.step, logps))
        self.keep(batch)

    def keep(self, batch: Batch) -> None:
        """Keep correct responses of a step with a measured `old`, and drop expired ones."""
        # Those of later steps are of a branch that was given up.
        self._retained = [
            r for r in self._retained if batch.step - RETENTION_STEPS < r.step < batch.step
        ]
        if batch.old is None or not self._n:
            return
        mixed = mixed_groups(batch.correct, batch.group_ids).values()
        right = [r for rows in mixed for r in rows if batch.correct[r] and batch.old.rows[r]]
        rng = random.Random(f"retention {batch.step}")
        sample = sorted(rng.sample(right, min(self._n, len(right))))
        action = action_numbers(batch)
        self._retained += [_retained(batch, row, action[row]) for row in sample]

    def due(self, step: int) -> list[KeptResponse]:
        """The responses to score after the last update of this step, oldest first."""
        return [r for r in self._retained if step - RETENTION_STEPS <= r.step < step]

    def rows(self, step: int, logps: Sequence[Any]) -> Columns:
        """Columns of the table `retention` for what is `due`.

        logps: for each response in that order (T,) log π_post of its tokens, nats; off the actions
        anything. A response that could not be scored is None.
        """
        columns: Columns = {name: [] for name in (
            "age", "response_id", "action_index", "n_tokens", "logp_old_sum", "logp_previous_sum",
            "logp_post_sum",
        )}
        for r, logp in zip(self.due(step), logps, strict=True):
            n = len(r.old)
            where = r.action[r.action >= 0]
            before = r.previous.tolist() if r.scored == step - 1 else [None] * n
            after: list[float | None] = [None] * n
            if logp is not None:
                values = np.asarray(logp, np.float64)[r.action >= 0]
                r.previous, r.scored = np.bincount(where, values, n), step
                after = r.previous.tolist()
            columns["age"] += [step - r.step] * n
            columns["response_id"] += [r.response_id] * n
            columns["action_index"] += range(n)
            columns["n_tokens"] += np.bincount(where, minlength=n).tolist()
            columns["logp_old_sum"] += r.old.tolist()
            columns["logp_previous_sum"] += before
            columns["logp_post_sum"] += after
        return {"step": step, **columns}

    def state(self) -> dict[str, np.ndarray]:
        """All kept responses as plain arrays, for a checkpoint (`numpy.savez`)."""
        return {
            f"{i}.{name}": np.asarray(value)
            for i, r in enumerate(self._retained) for name, value in vars(r).items()
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore a `state`. A state of an earlier version holds no responses."""
        names = [field.name for field in fields(KeptResponse)]

        def value(key: str) -> Any:
            return state[key] if state[key].ndim else state[key].item()

        self._retained = [
            KeptResponse(**{name: value(f"{i}.{name}") for name in names})
            for i in range(len(state) // len(names))
        ]


def _retained(batch: Batch, row: int, action: np.ndarray) -> KeptResponse:
    prompt, completion = batch.prompt_ids[row], batch.completion_ids[row]
    action = action[: len(completion)]
    assert batch.old is not None
    old = batch.old.values[row, : len(completion)]
    sums = np.bincount(action[action >= 0], old[action >= 0])
    return KeptResponse(
        step=batch.step,
        response_id=int(batch.response_ids[row]),
        ids=np.concatenate([prompt, completion]).astype(np.int32),
        action=np.concatenate([np.full(len(prompt), -1), action]).astype(np.int32),
        old=sums,
        previous=sums,
        scored=batch.step - 1,  # old is the policy after the step before
    )
