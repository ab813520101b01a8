"""What lost likelihood: SQL over the views of one run, over a window of steps and mixed groups.

Δ is log π after the step's updates minus before, summed over a response or an action, in nats. None
stands for what was not measured. What *causes* the losses is a question for `lldscope blame`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.numbers import percent
from ..explore.trajectories import MOST_CHARACTERS, rows_of
from ..runs import Run

MOST_TOKENS = 3
CONTEXT = 8  # tokens shown before and after one


@dataclass(frozen=True)
class WorstToken:
    """A token of a correct response, its probability before and after the step's updates, and the
    text around it. Text of a model is untrusted."""

    step: int
    rank: int
    response_id: int
    position: int
    action_index: int
    before: str
    text: str
    after: str
    p_old: float
    p_post: float
    delta: float

    @property
    def place(self) -> str:
        """Where it is, and what became of it."""
        post = percent(self.p_post) if self.p_post >= 0.001 else "under 0.1 %"
        return (
            f"step {self.step}, response {self.response_id}, action {self.action_index}: "
            f"probability {percent(self.p_old)} → {post}"
        )


@dataclass(frozen=True)
class Losses:
    """Losses from `first_step` to `last_step`, both included: in how many of the mixed groups the
    correct responses lost likelihood on average, and the worst `tokens`, one of each group."""

    first_step: int
    last_step: int
    n_groups: int
    n_displaced: int
    tokens: list[WorstToken]


_GROUPS = """
SELECT count(*) AS n, count(*) FILTER (delta < 0) AS n_displaced FROM (
    SELECT avg(delta) FILTER (correct AND isfinite(delta)) AS delta FROM response_likelihood
    WHERE mixed AND group_id IS NOT NULL AND step BETWEEN $1 AND $2
    GROUP BY step, data_source, group_id
) WHERE delta IS NOT NULL
"""

_TOKENS = """
WITH worst AS (
    SELECT t.step, t.rank, t.response_id, t.position, t.action_index,
        exp(t.logp_old::DOUBLE) AS p_old, exp(t.logp_post::DOUBLE) AS p_post,
        t.logp_post::DOUBLE - t.logp_old::DOUBLE AS delta
    FROM tokens t JOIN response_class r USING (step, rank, response_id)
    WHERE r.correct AND r.mixed AND t.action_index IS NOT NULL AND t.step BETWEEN $1 AND $2
        AND isfinite(t.logp_old) AND isfinite(t.logp_post) AND t.logp_post < t.logp_old
    QUALIFY row_number() OVER (
        PARTITION BY t.step, r.data_source, r.group_id,
            CASE WHEN r.group_id IS NULL THEN (t.rank, t.response_id) END
        ORDER BY t.logp_post - t.logp_old, t.rank, t.response_id, t.position
    ) = 1
    ORDER BY delta, t.step, t.rank, t.response_id LIMIT $3
)
SELECT * EXCLUDE (place, part),
    coalesce(string_agg(part, '' ORDER BY place) FILTER (place < 0), '')  AS before,
    coalesce(string_agg(part, '' ORDER BY place) FILTER (place = 0), '▯') AS text,
    coalesce(string_agg(part, '' ORDER BY place) FILTER (place > 0), '')  AS after
FROM (
    SELECT w.*, t.position - w.position AS place, left(t.text, $5) AS part
    FROM worst w JOIN tokens t USING (step, rank, response_id)
    WHERE t.position BETWEEN w.position - $4 AND w.position + $4
)
GROUP BY ALL ORDER BY delta, step, rank, response_id
"""


def losses(run: Run, first: int, last: int) -> Losses:
    """What lost likelihood from step `first` to `last`."""
    window = [first, last]
    (groups,) = rows_of(run.sql(_GROUPS, window))
    return Losses(
        first_step=first,
        last_step=last,
        n_groups=groups["n"],
        n_displaced=groups["n_displaced"],
        tokens=worst_tokens(run, first, last),
    )


def worst_tokens(run: Run, first: int, last: int) -> list[WorstToken]:
    """The recorded tokens of correct responses of these steps that lost most; one of each group,
    because the responses of a group often lose the same token."""
    bounds = [first, last, MOST_TOKENS, CONTEXT, MOST_CHARACTERS]
    return [WorstToken(**row) for row in rows_of(run.sql(_TOKENS, bounds))]
