"""Rows from a rollout batch: the one place where a `Batch` becomes tables.

Every trainer's step comes through here. Sums are over action tokens, at the grain of the table
(`core.schema`); unmeasured values are None or masked. NaN and Inf pass unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .batch import Batch
from .ratios import ratio_sums, rounding_error_sq
from .repetition import repeated_share
from .token_samples import Columns, largest_drops, texts_of, tokens_of
from .transcripts import Turn

UNKNOWN = Turn(None)
TEXTS_PER_STEP = 4
"""Rollouts whose text and tokens are recorded, in a step that records any."""
MOST_QUESTION, MOST_JSON = 400, 2000
"""Characters of a question, and of golden answers and reward parts as JSON, that are recorded."""


def record(
    recorder: Any,
    batch: Batch,
    *,
    updates: Mapping[str, Any] | None = None,
    tokens_every: int = 0,
    seconds_record: Callable[[], float] | None = None,
    **of_step: Any,
) -> None:
    """Record one step: its responses and actions, and last the row of `steps`.

    updates: columns of the table `updates`, an entry per optimizer update. tokens_every: steps
    between those whose texts and tokens are recorded, of TEXTS_PER_STEP rollouts; 0 is never.
    seconds_record: called for the seconds of recording once all other rows are recorded. of_step:
    columns of `steps` that are not in the batch, such as `lr`.
    """
    rows = tables(batch, updates=updates, tokens_every=tokens_every)
    sums = rows.pop("steps")
    write(recorder, rows)
    if seconds_record is not None:
        of_step["seconds_record"] = seconds_record()
    recorder.step(**sums, **of_step)


def write(recorder: Any, rows: Mapping[str, Columns]) -> None:
    """Record columns by table, except `steps`, which comes last by `recorder.step`."""
    for table, columns in rows.items():
        getattr(recorder, table)(**columns)


def tables(
    batch: Batch, *, updates: Mapping[str, Any] | None = None, tokens_every: int = 0
) -> dict[str, Columns]:
    """Columns by table: responses, actions, steps; updates and tokens on request."""
    rows = StepRows(batch)
    due = tokens_every > 0 and batch.step % tokens_every == 0 and batch.decode is not None
    selection = largest_drops(batch, TEXTS_PER_STEP) if due else []
    columns = {
        "responses": rows.responses() | {"text": batch.texts or texts_of(batch, selection)},
        "actions": rows.actions(),
        "steps": rows.sums(),
    }
    if updates is not None:
        n = len(next(iter(updates.values())))
        columns["updates"] = {"step": batch.step, "update": list(range(n)), **updates}
    if selection:
        columns["tokens"] = tokens_of(batch, rows.action, selection)
    return columns


def _column(
    values: Sequence[Any] | None, form: Callable[[Any], str | None]
) -> list[str | None] | None:
    """The values as text; None for missing values, and None if the whole column is missing."""
    texts = [form(value) if value else None for value in values or ()]
    return texts if any(texts) else None


def _as_json(value: Any) -> str | None:
    """Readable JSON; None if it is too long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_JSON else None


def prompt_hash(ids: Sequence[int] | str | None) -> str | None:
    """Eight hexadecimal digits for a prompt's token ids; a hash stays as it is."""
    if ids is None or isinstance(ids, str):
        return ids
    return hashlib.blake2s(np.array(ids, np.int64).tobytes(), digest_size=4).hexdigest()


def weighted_mean(values: Sequence[float | None], weights: Sequence[int]) -> float | None:
    """A loss over the updates of a step, weighted by their tokens; None if one is None."""
    total = sum(weights)
    present = [v for v in values if v is not None]
    if total == 0 or len(present) < len(values):
        return None
    return sum(v * w for v, w in zip(present, weights, strict=True)) / total


def action_numbers(batch: Batch) -> np.ndarray:
    """(N, T): number of each token's action within its rollout, −1 off the actions.

    Where a trainer does not say, an action is a maximal run of ones of the mask (arXiv 2512.04220
    v2, §3): it starts where the token before is none of the policy's.
    """
    action = batch.action
    if action is None:
        action = (batch.mask & ~_before(batch.mask, False)).cumsum(1) - 1
    return np.where(batch.mask, action, -1)


class StepRows:
    """The rows of one step, of this rank.

    action (N, T): number of each token's action within its rollout, −1 off the actions.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        if batch.mask is None:
            self._rows_of_turns(batch.turns or [])
            return
        mask, self.action = batch.mask, action_numbers(batch)
        starts = mask & (self.action != _before(self.action, -1))
        # The flat order of the actions is that of the rollouts, and of the tokens in them.
        self._places = np.flatnonzero(mask)
        self._starts = np.flatnonzero(starts[mask])
        self._row = np.nonzero(starts)[0]
        self._index = self.action[starts]
        n_actions = starts.sum(1).tolist()
        self._n_actions = np.array(n_actions, np.int64)
        self._turns = batch.turns or [[Turn("text")] * n for n in n_actions]

    def _rows_of_turns(self, turns: Sequence[Sequence[Turn] | None]) -> None:
        """Rows of actions from `turns`, for batches of texts."""
        self._turns = turns
        n_actions = [len(of_row or ()) for of_row in turns]
        self.action = np.empty((len(turns), 0), np.int64)
        self._n_actions = np.array(n_actions, np.int64)
        self._row = np.repeat(np.arange(len(turns)), n_actions)
        self._index = np.concatenate([np.arange(n) for n in n_actions] or [self._n_actions])

    def sums(self) -> Columns:
        """Counts and sums of the whole batch, for `steps`; None if a rollout lacks the value."""
        b = self._batch
        rewarded = not np.isnan(b.rewards).any()
        return {
            "step": b.step,
            "n_responses": len(b.rewards),
            "n_correct": None if None in b.correct else sum(map(bool, b.correct)),
            "reward_sum": float(b.rewards.sum()) if rewarded else None,
            "reward_sq_sum": float(np.square(b.rewards).sum()) if rewarded else None,
            "n_tokens": None if b.mask is None else int(b.mask.sum()),
            "entropy_sum": float(self._of("entropy").sum())
            if b.entropy is not None and b.entropy.rows.all()
            else None,
            "kl_sum": self._k3_sum(),
        }

    def responses(self) -> Columns:
        """One row per rollout."""
        b = self._batch
        n_tokens = None if b.mask is None else b.mask.sum(1)
        advantages = b.advantages
        if advantages is not None and advantages.ndim == 2 and n_tokens is not None:
            advantages = np.where(b.mask, advantages, 0).sum(1) / np.maximum(n_tokens, 1)
        answers = [None if t is None else bool(t) and t[-1].kind == "answer" for t in self._turns]
        return {
            "step": b.step,
            "response_id": b.response_ids,
            "group_id": b.group_ids,
            "data_source": b.data_source,
            "policy_version": b.policy_version,
            "prompt_hash": b.prompt_ids and [prompt_hash(ids) for ids in b.prompt_ids],
            "reward": np.ma.array(b.rewards, mask=np.isnan(b.rewards)),
            "advantage": advantages,
            "correct": list(b.correct),
            "n_actions": self._n_actions,
            "n_tokens": n_tokens,
            "n_searches": self._count("search") if b.protocol else None,
            "n_invalid": self._count("invalid") if b.protocol == "tags" else None,
            "answered": answers if b.protocol else None,
            "truncated": b.truncated,
            "repeat_share": b.completion_ids and repeated_share(b.completion_ids, self.action),
            "question": _column(b.questions, lambda q: q.strip()[-MOST_QUESTION:]),
            "golden": _column(b.golden, _as_json),
            "reward_parts": _column(b.reward_parts, _as_json),
        }

    def actions(self) -> Columns:
        """One row per action; Δ only if the rollout was scored before and after."""
        b = self._batch
        turns = [
            of_row[j] if (of_row := self._turns[i]) is not None else UNKNOWN
            for i, j in zip(self._row.tolist(), self._index.tolist(), strict=True)
        ]
        gate, behaviour = self._sums("llds_gate"), self._sums("behaviour")
        return (
            {
                "step": b.step,
                "response_id": b.response_ids[self._row],
                "action_index": self._index,
                "kind": [turn.kind for turn in turns],
                "n_tokens": None
                if b.mask is None
                else np.diff(self._starts, append=int(b.mask.sum())),
                # The engine did not score a token that is NaN, so the sum was not measured.
                "logp_behaviour_sum": None
                if behaviour is None
                else np.ma.masked_invalid(behaviour),
                "logp_old_sum": self._masked_sums("old"),
                "logp_inner_sum": self._masked_sums("inner"),
                "logp_post_sum": self._masked_sums("post", "old"),
                "logp_ref_sum": self._masked_sums("reference"),
                "entropy_sum": self._masked_sums("entropy"),
                "error_norm_sum": self._sums("error_norm"),
                "llds_gate": None if gate is None else gate > 0,
                "llds_sum": self._sums("llds_penalty"),
                "tool_ok": [turn.tool_ok for turn in turns],
                "docs_hash": [turn.docs_hash for turn in turns],
            }
            | self._drops()
            | self._ratios(behaviour)
        )

    def _drops(self) -> Columns:
        """Measurements of π_old per token, and of its change."""
        b = self._batch
        if b.old is None:
            return {}
        old = self._of("old")
        lowest = np.minimum.reduceat(old, self._starts) if len(old) else old
        columns: Columns = {"logp_min": np.ma.array(lowest, mask=~b.old.rows[self._row])}
        if b.post is None:
            return columns
        post, unmeasured = self._of("post"), ~(b.old.rows & b.post.rows)[self._row]
        with np.errstate(invalid="ignore"):
            n_down = self._per_action((post < old).astype(np.int64))
            drop = self._per_action(np.maximum(old - post, 0))
        return columns | {
            "n_tokens_down": np.ma.array(n_down, mask=unmeasured),
            "drop_sum": np.ma.array(drop, mask=unmeasured),
            "rounding_sq_sum": self._rounding(old, post, unmeasured),
        }

    def _rounding(self, old: np.ndarray, post: np.ndarray, unmeasured: np.ndarray) -> Any:
        b = self._batch
        mask = self._tokens(np.repeat((b.old.rows & b.post.rows)[:, None], b.mask.shape[1], 1))
        errors = np.zeros(len(old))
        for values in (old, post):
            measurement = rounding_error_sq(values[mask])
            if measurement is None:
                return None
            errors[mask] += measurement
        return np.ma.array(self._per_action(errors), mask=unmeasured)

    def _ratios(self, behaviour: np.ndarray | None) -> Columns:
        """Distributions of the ratios old/behaviour (of the engine) and inner/old over an action's
        tokens. behaviour: its sums, not finite where the engine did not score a token."""
        b = self._batch
        columns: Columns = {}
        if b.old is None:
            return columns
        old, present = self._of("old"), b.old.rows[self._row]
        if behaviour is not None:
            engine, mask = self._of("behaviour"), present & np.isfinite(behaviour)
            columns |= ratio_sums("engine", old, engine, self._starts, mask)
        if b.inner is not None:
            inner, mask = self._of("inner"), present & b.inner.rows[self._row]
            columns |= ratio_sums("inner", inner, old, self._starts, mask)
        return columns

    def _count(self, kind: str) -> list[int | None]:
        return [None if t is None else sum(turn.kind == kind for turn in t) for t in self._turns]

    def _tokens(self, values: np.ndarray) -> np.ndarray:
        """Of an (N, T) measurement, the action tokens'."""
        return values.reshape(-1)[self._places]

    def _per_action(self, values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, self._starts) if len(values) else values

    def _of(self, name: str) -> np.ndarray:
        """The action tokens' values of a measurement of the batch."""
        measurement = getattr(self._batch, name)
        return self._tokens(getattr(measurement, "values", measurement))

    def _sums(self, name: str) -> np.ndarray | None:
        """Per-action sums of a measurement; None if it was not made."""
        return None if getattr(self._batch, name) is None else self._per_action(self._of(name))

    def _masked_sums(self, name: str, other: str | None = None) -> Any:
        """Per-action sums, masked for rollouts without a measurement (or without one of
        `other`)."""
        scores = getattr(self._batch, name)
        if scores is None:
            return None
        present = scores.rows if other is None else scores.rows & getattr(self._batch, other).rows
        return np.ma.array(self._sums(name), mask=~present[self._row])

    def _k3_sum(self) -> float | None:
        """Σ of the k3 estimate of KL(π_old ‖ π_ref) over the batch."""
        b = self._batch
        if b.reference is None or b.old is None or not (b.old.rows & b.reference.rows).all():
            return None
        gap = self._of("reference") - self._of("old")
        return float((np.exp(gap) - gap - 1).sum())


def _before(values: np.ndarray, first: Any) -> np.ndarray:
    """Each token's predecessor, `first` for the first."""
    return np.pad(values, ((0, 0), (1, 0)), constant_values=first)[:, :-1]
