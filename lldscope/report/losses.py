"""What lost likelihood, and beside which incorrect responses: SQL over the views of one run.

Everything is over a window of steps and over mixed groups, as the signals are. Δ is that of
`schema`: log π after the step's updates minus before, summed over a response or an action, in nats.
None stands for what was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..diagnosis.detectors import Series
from ..diagnosis.evidence import Flags
from ..explore.trajectories import rows_of
from ..runs import Run

MOST = 10  # groups and responses listed
LEAST_STEPS = 5  # steps with groups on both sides before a contrast is computed

Row = dict[str, Any]
GroupKey = tuple[int, str | None, int | None]  # step, data source, group id

# For each contrast a column of the groups, and which of its values within a step have the property.
_PROPERTIES: dict[str, tuple[str, Callable[[Series], Flags]]] = {
    "low_likelihood": ("wrong_logp", lambda values: values < np.median(values)),
    "long": ("wrong_tokens", lambda values: values > np.median(values)),
    "good_first_action": ("n_good_first", lambda values: values > 0),
}


@dataclass(frozen=True)
class Losses:
    """Losses from `first_step` to `last_step`, both included; rows have the columns of their query.

    `by_action` is mean Δ by action index and class, before the window and in it; `by_source` has
    the correct responses of each data source (`lost`: the sum of their negative Δ, positive).
    `groups` are those whose correct responses lost likelihood on average, `correct` the correct
    responses that lost most, and `wrong` the incorrect ones with the largest weight in groups that
    lost: Σ ‖e − π‖² · |advantage|. `first_actions` are those that retrieved what a correct one of
    their group did, by class. `logp` is per token. `contrasts`: see there.
    """

    first_step: int
    last_step: int
    n_groups: int
    n_displaced: int
    by_action: list[Row]
    by_source: list[Row]
    groups: list[Row]
    correct: list[Row]
    wrong: list[Row]
    first_actions: list[Row]
    contrasts: list[Row]

    @property
    def displaced_share(self) -> float | None:
        return self.n_displaced / self.n_groups if self.n_groups else None


_BY_ACTION = """
SELECT action_index, correct,
    sum(delta * n_delta) FILTER (before_it) / sum(n_delta) FILTER (before_it) AS before,
    coalesce(sum(n_delta) FILTER (before_it), 0)::BIGINT                      AS n_before,
    sum(delta * n_delta) FILTER (in_it) / sum(n_delta) FILTER (in_it)         AS in_window,
    coalesce(sum(n_delta) FILTER (in_it), 0)::BIGINT                          AS n_in_window
FROM (SELECT *, step < $1 AS before_it, step BETWEEN $1 AND $2 AS in_it FROM action_signals)
WHERE n_delta > 0 GROUP BY action_index, correct ORDER BY correct DESC, action_index
"""

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


def losses(run: Run, first: int, last: int, texts: Mapping[GroupKey, str]) -> Losses:
    """What lost likelihood from step `first` to `last`; `texts` are the known questions."""
    window = [first, last]
    groups = run.sql(_GROUPS, window)

    def with_question(frame: pd.DataFrame) -> list[Row]:
        rows = rows_of(frame)
        keys = ((row["step"], row["data_source"], row["group_id"]) for row in rows)
        return [{**row, "question": texts.get(key)} for row, key in zip(rows, keys, strict=True)]

    return Losses(
        first_step=first,
        last_step=last,
        n_groups=len(groups),
        n_displaced=int((groups["delta"] < 0).sum()),
        by_action=rows_of(run.sql(_BY_ACTION, window)),
        by_source=rows_of(run.sql(_SOURCES, window)),
        groups=with_question(groups[groups["delta"] < 0].head(MOST)),
        correct=with_question(run.sql(_CORRECT, [*window, MOST])),
        wrong=with_question(run.sql(_WRONG, [*window, MOST])),
        first_actions=rows_of(run.sql(_FIRST_ACTIONS, window)),
        contrasts=contrasts(groups),
    )


def contrasts(groups: pd.DataFrame) -> list[Row]:
    """Do correct responses lose more beside incorrect ones that are unlikely, long, or began well?

    For each property the mean Δ of correct responses in groups `with` it and `without`, over
    `n_steps` steps: groups are compared with groups of the same step, so that what all of a step
    share does not count. `error` is the standard error of `difference`; `supported` where that is
    more than two of them below 0. None with fewer than LEAST_STEPS steps. `groups` has a row per
    mixed group.
    """
    rows = []
    for name, (column, test) in _PROPERTIES.items():
        pairs = []
        for _, of_step in groups.dropna(subset=[column, "delta"]).groupby("step"):
            there = test(of_step[column].to_numpy(dtype=float))
            if there.any() and not there.all():
                delta = of_step["delta"].to_numpy(dtype=float)
                pairs.append((delta[there].mean(), delta[~there].mean()))
        values: list[Any] = [None] * 5
        if len(pairs) >= LEAST_STEPS:
            sides = np.array(pairs).T
            gap = sides[0] - sides[1]
            mean, error = float(gap.mean()), float(gap.std(ddof=1) / np.sqrt(len(gap)))
            values = [*map(float, sides.mean(axis=1)), mean, error, mean < -2.0 * error]
        keys = ("with", "without", "difference", "error", "supported")
        row = {"contrast": name, "n_steps": len(pairs), **dict(zip(keys, values, strict=True))}
        rows.append(row)
    return rows
