"""Kept correct responses that lost most likelihood, and the step that cost each of them most.

What happened to a response that is no longer trained on is the doing of other questions: those of
the steps since it was sampled, above all of the one in which it lost most.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..explore.trajectories import rows_of
from ..runs import Run

MOST = 8

_FORGOTTEN = """
WITH last AS (
    SELECT rank, step - age AS sampled, response_id, max(step) AS until,
        arg_max(since, step) AS lost, arg_min(step, change) AS worst, min(change) AS worst_change
    FROM response_retention WHERE since IS NOT NULL GROUP BY ALL
)
SELECT l.sampled, l.response_id, r.data_source, right(r.text, 200) AS text, l.until, l.lost,
    l.worst, l.worst_change, s.delta_correct AS gained, s.reward, s.step_kl,
    (SELECT count(DISTINCT (step, data_source, group_id)) FROM responses
     WHERE step BETWEEN l.sampled + 1 AND l.until) AS questions_since
FROM last l
LEFT JOIN responses r ON (r.step, r.rank, r.response_id) = (l.sampled, l.rank, l.response_id)
LEFT JOIN signals s ON s.step = l.worst
WHERE l.lost < 0 AND l.worst_change < 0
ORDER BY l.lost, l.sampled, l.response_id LIMIT $1
"""


@dataclass(frozen=True)
class Forgotten:
    """A correct response of step `sampled` that lost `lost` nats until step `until`, while
    `questions_since` other questions were trained on. In step `worst` it lost most,
    `worst_change`; what that step gave its own correct responses (`gained`, mean Δ), its reward
    and how far it moved the policy. `text` is the end of its recorded text, untrusted."""

    sampled: int
    response_id: int
    data_source: str | None
    text: str | None
    until: int
    lost: float
    worst: int
    worst_change: float
    gained: float | None
    reward: float | None
    step_kl: float | None
    questions_since: int


def forgotten(run: Run) -> list[Forgotten]:
    """The kept responses that lost most, at most MOST of them; none where retention was not
    measured."""
    return [Forgotten(**row) for row in rows_of(run.sql(_FORGOTTEN, [MOST]))]
