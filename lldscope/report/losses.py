"""What lost likelihood, and beside which incorrect responses: SQL over the views of one run.

Everything is over a window of steps and over mixed groups, as the signals are. Δ is that of
`schema`: log π after the step's updates minus before, summed over a response or an action, in nats.
None stands for what was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from ..runs import Run
from .contrasts import Contrast, contrasts
from .rows import records, rows

MOST = 10  # groups and responses listed

GroupKey = tuple[int, str | None, int | None]  # step, data source, group id


@dataclass(frozen=True)
class ActionLoss:
    """Mean Δ of the actions of one index and class, before the window and in it."""

    action_index: int
    correct: bool
    before: float | None
    n_before: int
    in_window: float | None
    n_in_window: int


@dataclass(frozen=True)
class SourceLoss:
    """Correct responses of a data source; `lost` is the sum of their negative Δ, positive."""

    data_source: str | None
    n_responses: int
    delta: float
    lld_share: float
    lost: float


@dataclass(frozen=True)
class GroupLoss:
    """A group whose correct responses lost likelihood on average, and its incorrect ones."""

    step: int
    data_source: str | None
    group_id: int
    n_correct: int
    n_incorrect: int
    delta: float
    delta_incorrect: float | None
    wrong_logp: float | None
    wrong_tokens: float | None
    n_good_first: int | None
    question: str | None = None


@dataclass(frozen=True)
class LosingResponse:
    """A correct response that lost likelihood; `logp` is per token."""

    step: int
    response_id: int
    group_id: int | None
    data_source: str | None
    n_tokens: int | None
    logp: float | None
    delta: float
    question: str | None = None


@dataclass(frozen=True)
class HeavyResponse:
    """An incorrect response in a group that lost, and its weight: Σ ‖e − π‖² · |advantage|."""

    step: int
    response_id: int
    group_id: int
    data_source: str | None
    n_tokens: int | None
    logp: float | None
    advantage: float | None
    error_norm: float | None
    weight: float | None
    group_delta: float
    question: str | None = None


@dataclass(frozen=True)
class FirstActions:
    """First actions that retrieved what a correct one of their group did, by class."""

    correct: bool
    n: int
    delta: float


@dataclass(frozen=True)
class Losses:
    """All of it, from `first_step` to `last_step`, both included."""

    first_step: int
    last_step: int
    n_groups: int
    n_displaced: int
    by_action: list[ActionLoss]
    by_source: list[SourceLoss]
    groups: list[GroupLoss]
    correct: list[LosingResponse]
    wrong: list[HeavyResponse]
    first_actions: list[FirstActions]
    contrasts: list[Contrast]

    @property
    def displaced_share(self) -> float | None:
        return self.n_displaced / self.n_groups if self.n_groups else None


_GROUPS = """
SELECT l.step, l.data_source, l.group_id,
    count(*) FILTER (l.correct)                               AS n_correct,
    count(*) FILTER (NOT l.correct)                           AS n_incorrect,
    avg(l.delta) FILTER (l.correct AND isfinite(l.delta))     AS delta,
    avg(l.delta) FILTER (NOT l.correct AND isfinite(l.delta)) AS delta_incorrect,
    sum(l.logp_old) FILTER (NOT l.correct) / sum(l.n_tokens) FILTER (NOT l.correct) AS wrong_logp,
    avg(l.n_tokens) FILTER (NOT l.correct)                    AS wrong_tokens,
    any_value(f.n_good_first)                                 AS n_good_first
FROM response_likelihood l
LEFT JOIN (
    SELECT step, data_source, group_id,
        CASE WHEN count(docs_hash) > 0
             THEN coalesce(sum(n) FILTER (found AND docs_hash IS NOT NULL), 0) END AS n_good_first
    FROM (
        SELECT r.step, r.data_source, r.group_id, a.docs_hash,
            count(*) FILTER (NOT r.correct) AS n, bool_or(r.correct) AS found
        FROM actions a JOIN response_class r USING (step, rank, response_id)
        WHERE a.action_index = 0 AND r.mixed AND r.step BETWEEN $1 AND $2
        GROUP BY ALL
    ) GROUP BY ALL
) f ON f.step = l.step AND f.group_id = l.group_id
    AND f.data_source IS NOT DISTINCT FROM l.data_source
WHERE l.mixed AND l.group_id IS NOT NULL AND l.step BETWEEN $1 AND $2
GROUP BY ALL
HAVING delta IS NOT NULL
ORDER BY delta, l.step, l.data_source, l.group_id
"""

_SOURCES = """
SELECT data_source, count(*) AS n_responses, avg(delta) AS delta,
    avg((delta <= 0)::INT) AS lld_share, sum(greatest(0, -delta)) AS lost
FROM response_likelihood
WHERE correct AND mixed AND isfinite(delta) AND step BETWEEN $1 AND $2
GROUP BY data_source ORDER BY lost DESC, data_source
"""

_CORRECT = """
SELECT step, response_id, group_id, data_source, n_tokens, logp_old / n_tokens AS logp, delta
FROM response_likelihood
WHERE correct AND mixed AND isfinite(delta) AND delta < 0 AND step BETWEEN $1 AND $2
ORDER BY delta, step, rank, response_id LIMIT $3
"""

# How much an incorrect response pushes the correct ones down grows with its prediction error, which
# is large where its tokens are unlikely, and with its length (GWHES, arXiv 2505.18830).
_WRONG = """
SELECT l.step, l.response_id, l.group_id, l.data_source, l.n_tokens,
    l.logp_old / l.n_tokens AS logp, abs(r.advantage) AS advantage, a.error_norm,
    a.error_norm * abs(r.advantage) AS weight, g.delta AS group_delta
FROM response_likelihood l
JOIN responses r USING (step, rank, response_id)
JOIN (
    SELECT step, rank, response_id,
        CASE WHEN count(error_norm_sum) = count(*) THEN sum(error_norm_sum::DOUBLE) END
            AS error_norm
    FROM actions WHERE step BETWEEN $1 AND $2 GROUP BY ALL
) a USING (step, rank, response_id)
JOIN (
    SELECT step, data_source, group_id, avg(delta) AS delta FROM response_likelihood
    WHERE correct AND mixed AND isfinite(delta) AND step BETWEEN $1 AND $2 GROUP BY ALL
) g ON g.step = l.step AND g.group_id = l.group_id
    AND g.data_source IS NOT DISTINCT FROM l.data_source
WHERE NOT l.correct AND g.delta < 0
ORDER BY coalesce(weight, -l.logp_old) DESC, l.step, l.rank, l.response_id LIMIT $3
"""

_FIRST_ACTIONS = """
SELECT r.correct, count(*) AS n, avg(a.logp_post_sum::DOUBLE - a.logp_old_sum::DOUBLE) AS delta
FROM actions a
JOIN response_class r USING (step, rank, response_id)
JOIN (
    SELECT DISTINCT r.step, r.data_source, r.group_id, a.docs_hash
    FROM actions a JOIN response_class r USING (step, rank, response_id)
    WHERE a.action_index = 0 AND r.mixed AND r.correct AND a.docs_hash IS NOT NULL
      AND r.step BETWEEN $1 AND $2
) g ON g.step = r.step AND g.group_id = r.group_id AND g.docs_hash = a.docs_hash
    AND g.data_source IS NOT DISTINCT FROM r.data_source
WHERE a.action_index = 0 AND isfinite(a.logp_post_sum - a.logp_old_sum)
GROUP BY r.correct ORDER BY r.correct
"""


def losses(run: Run, first: int, last: int, asked: Mapping[GroupKey, str]) -> Losses:
    """What lost likelihood from step `first` to `last`; `asked` are the known questions."""
    groups = run.sql(_GROUPS, [first, last])
    return Losses(
        first_step=first,
        last_step=last,
        n_groups=len(groups),
        n_displaced=int((groups["delta"] < 0).sum()),
        by_action=by_action(run.action_signals(), first, last),
        by_source=rows(SourceLoss, run.sql(_SOURCES, [first, last])),
        groups=rows(GroupLoss, _with_question(groups[groups["delta"] < 0].head(MOST), asked)),
        correct=rows(LosingResponse, _with_question(run.sql(_CORRECT, [first, last, MOST]), asked)),
        wrong=rows(HeavyResponse, _with_question(run.sql(_WRONG, [first, last, MOST]), asked)),
        first_actions=rows(FirstActions, run.sql(_FIRST_ACTIONS, [first, last])),
        contrasts=contrasts(groups),
    )


def _with_question(frame: pd.DataFrame, asked: Mapping[GroupKey, str]) -> pd.DataFrame:
    keys = [(r["step"], r["data_source"], r["group_id"]) for r in records(frame)]
    return frame.assign(question=pd.Series(map(asked.get, keys), frame.index, dtype=object))


def by_action(actions: pd.DataFrame, first: int, last: int) -> list[ActionLoss]:
    """Mean Δ per action, by class and action index; each action counts once.

    `actions` has the columns of `schema.ACTION_SIGNALS`.
    """
    known = actions[actions["n_delta"].fillna(0) > 0]
    losses = []
    for _, alike in known.groupby(["action_index", "correct"]):
        first_row, before = alike.iloc[0], alike[alike["step"] < first]
        means = (*_mean(before), *_mean(alike[alike["step"].between(first, last)]))
        losses.append(
            ActionLoss(int(first_row["action_index"]), bool(first_row["correct"]), *means)
        )
    return sorted(losses, key=lambda row: (not row.correct, row.action_index))


def _mean(actions: pd.DataFrame) -> tuple[float | None, int]:
    n = float(actions["n_delta"].sum())
    total = float((actions["delta"] * actions["n_delta"]).sum())
    return (total / n if n else None), int(n)
