"""The responses of a run, filtered, sorted and read a page at a time, however many there are.

Δ is that of `response_likelihood`: log π after the step's updates minus before, summed over the
actions of a response, in nats; NULL unless every action was re-scored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..diagnosis.evidence import SMOOTH
from ..runs import Run

PAGE = 50  # responses read at once
PREVIEW = 160  # characters of question and answer
SECONDS = 20.0  # limit for one page
KEY = ["step", "rank", "response_id"]

# Order of responses → its SQL, and the table that it needs besides `responses`.
ORDERS = {
    "step": ("r.step", None),
    "group": ("r.group_id", None),
    "reward": ("r.reward", None),
    "tokens": ("r.n_tokens", None),
    "delta": ("l.delta", "likelihood"),
    "logp": ("l.logp_old / l.n_tokens", "likelihood"),
}

_JOINS = {
    "likelihood": "LEFT JOIN (FROM response_likelihood WHERE {steps}) l "
    "USING (step, rank, response_id)",
    "tokens": "LEFT JOIN (SELECT DISTINCT step, rank, response_id, true AS sampled FROM tokens "
    "WHERE {steps}) t USING (step, rank, response_id)",
    "said": "LEFT JOIN (SELECT step, rank, response_id, string_agg(text, '' ORDER BY position) "
    "AS text FROM tokens WHERE {steps} GROUP BY ALL) s USING (step, rank, response_id)",
}

# The question, or else the end of the prompt; and the end of the response. Without tokens, both are
# from the beginning and the end of the recorded text.
_PREVIEW = """
SELECT r.step, r.rank, r.response_id,
    coalesce(
        any_value(r.question),
        right(string_agg(t.text, '' ORDER BY t.position) FILTER (t.position < a.first), {most}),
        left(any_value(r.text), {most})) AS question,
    coalesce(
        right(string_agg(t.text, '' ORDER BY t.position) FILTER (t.position >= a.first), {most}),
        right(any_value(r.text), {most})) AS answer
FROM responses r
LEFT JOIN (FROM tokens WHERE {steps}) t USING (step, rank, response_id)
LEFT JOIN (SELECT step, rank, response_id, min(position) AS first FROM tokens
    WHERE {steps} AND action_index IS NOT NULL GROUP BY ALL) a USING (step, rank, response_id)
WHERE r.{steps} AND (r.step, r.rank, r.response_id) IN ({keys})
GROUP BY ALL
"""

_DESCRIBED = """
SELECT r.step, r.rank, r.response_id, r.group_id, r.data_source, r.correct, r.reward, r.advantage,
    r.n_tokens, r.n_actions, r.n_searches, r.answered, r.truncated, r.text IS NOT NULL AS has_text,
    r.golden, r.reward_parts,
    l.delta, l.logp_old / l.n_tokens AS logp, l.mixed,
    CASE WHEN NOT isfinite(l.delta) THEN l.delta::VARCHAR END AS not_finite,
    coalesce(t.sampled, false) AS has_tokens
FROM responses r {likelihood} {tokens}
WHERE r.{steps}
"""


@dataclass(frozen=True)
class ResponseQuery:
    """Conditions on responses; None: any. Bounds are included. `tokens`: with or without recorded
    tokens. `text` occurs in the recorded prompt or response, in upper or lower case. A response
    meets no condition on a value that was not measured."""

    first: int | None = None
    last: int | None = None
    correct: bool | None = None
    tokens: bool | None = None
    text: str | None = None


@dataclass(frozen=True)
class Page:
    """Some rows of an answer, in order, and how many there are in all."""

    rows: pd.DataFrame
    total: int
    offset: int


def find_responses(
    run: Run, query: ResponseQuery, order: str = "step", descending: bool = False, offset: int = 0
) -> Page:
    """A page of the responses that match; an offset beyond the end gives the last page. Raises
    UsageError if the query takes too long."""
    keys, total = _keys(run, query, order, descending, offset)
    if not len(keys) and offset:
        _, total = _keys(run, query, order, descending, 0)
        offset = max(0, (total - 1) // PAGE * PAGE)
        keys, total = _keys(run, query, order, descending, offset)
    return Page(describe(run, keys), total, offset)


def describe(run: Run, keys: pd.DataFrame) -> pd.DataFrame:
    """The columns of the list of responses, for these keys in their order."""
    steps = ", ".join(str(int(s)) for s in sorted(set(keys["step"]))) or "NULL"
    inside = f"step IN ({steps})"
    joins = {name: join.format(steps=inside) for name, join in _JOINS.items() if name != "said"}
    rows = run.sql(_DESCRIBED.format(steps=inside, **joins), None, SECONDS)
    listed = ", ".join(f"({int(s)}, {int(r)}, {int(i)})" for s, r, i in keys[KEY].to_numpy())
    sql = _PREVIEW.format(steps=inside, keys=listed or "(NULL, NULL, NULL)", most=PREVIEW)
    previews = run.sql(sql, None, SECONDS)
    return keys[KEY].merge(rows, on=KEY, how="left").merge(previews, on=KEY, how="left")


# Groups of a step by the loss of their correct responses; without Δ, groups of mixed reward.
_GROUPS_OF_STEP = """
WITH r AS (
    SELECT *, coalesce(group_id, -1 - response_id) AS g FROM responses WHERE step = $1
), groups AS (
    SELECT rank, g, count(*) AS n, count(*) OVER () AS n_groups,
        avg(l.delta) FILTER (r.correct) AS delta, stddev_pop(r.reward) > 0 AS mixed
    FROM r LEFT JOIN (FROM response_likelihood WHERE step = $1) l USING (step, rank, response_id)
    GROUP BY rank, g
)
SELECT r.step, r.rank, r.response_id, g, n, n_groups, groups.delta AS group_delta
FROM r JOIN (
    FROM groups ORDER BY delta NULLS LAST, mixed DESC NULLS LAST, rank, g LIMIT $2
) groups USING (rank, g)
LEFT JOIN (FROM response_likelihood WHERE step = $1) l USING (step, rank, response_id)
QUALIFY row_number() OVER (
    PARTITION BY rank, g, r.correct ORDER BY l.delta NULLS LAST, response_id
) <= $3
ORDER BY group_delta NULLS LAST, groups.mixed DESC NULLS LAST, rank, g,
    r.correct DESC NULLS LAST, l.delta NULLS LAST, response_id
"""


def groups_of_step(run: Run, step: int, groups: int, responses: int) -> pd.DataFrame:
    """Responses of a step: at most `responses` of each class, from at most `groups` groups; the
    groups whose correct responses lost most likelihood come first. Rows are those of `describe`,
    with `place` and size `n` of the group, the step's number of groups `n_groups`, and
    `group_delta`, the mean Δ of the group's correct responses."""
    keys = run.sql(_GROUPS_OF_STEP, [step, groups, responses], SECONDS)
    return keys.drop(columns="g").assign(
        place=keys.groupby(["rank", "g"], sort=False).ngroup()
    ).merge(describe(run, keys).drop(columns="step"), on=["rank", "response_id"], how="left")


def _keys(
    run: Run, query: ResponseQuery, order: str, descending: bool, offset: int
) -> tuple[pd.DataFrame, int]:
    by, needs = ORDERS[order]
    tables, clauses, values = _conditions(query, needs)
    way = "DESC" if descending else "ASC"
    sql = (
        f"SELECT r.step, r.rank, r.response_id, count(*) OVER () AS total FROM responses r "
        f"{tables} {clauses} ORDER BY {by} {way} NULLS LAST, r.step, r.rank, r.response_id "
        f"LIMIT {PAGE} OFFSET {int(offset)}"
    )
    rows = run.sql(sql, values, SECONDS)
    return rows, int(rows["total"].iloc[0]) if len(rows) else 0


def _conditions(query: ResponseQuery, needs: str | None = None) -> tuple[str, str, list[Any]]:
    """The joins that filters and order need, the WHERE clause, and its values."""
    tests = [
        ("r.step >= ?", query.first, None),
        ("r.step <= ?", query.last, None),
        ("r.correct = ?", query.correct, None),
        ("coalesce(t.sampled, false) = ?", query.tokens, "tokens"),
        (
            "contains(lower(coalesce(r.text, '') || coalesce(s.text, '')), lower(?))",
            query.text or None, "said",
        ),
    ]
    active = [test for test in tests if test[1] is not None]
    tables = {needs, *(table for _, _, table in active)}
    low = 0 if query.first is None else query.first
    high = 2**31 - 1 if query.last is None else query.last
    inside = f"step BETWEEN {int(low)} AND {int(high)}"
    joins = [join.format(steps=inside) for name, join in _JOINS.items() if name in tables]
    where = " AND ".join(f"({sql})" for sql, _, _ in active)
    return " ".join(joins), f"WHERE {where}" if where else "", [value for _, value, _ in active]


# -- from an alarm to the responses behind it -----------------------------------------------------


@dataclass(frozen=True)
class LargestDrops:
    """The steps `first` to `last` to show for an alarm at `step`: the last SMOOTH steps, or the
    nearest step with tokens of a correct response that lost likelihood, if only that one has them.
    `tokens`: whether the steps have such tokens."""

    step: int
    first: int
    last: int
    tokens: bool


# The nearest step with tokens of a correct response that lost likelihood; steps from $2 to $1 come
# before all others.
_NEAREST_DROP = """
SELECT step FROM response_likelihood SEMI JOIN tokens USING (step, rank, response_id)
WHERE correct AND delta < 0
GROUP BY step ORDER BY step NOT BETWEEN $2 AND $1, abs(step - $1), step > $1 LIMIT 1
"""


def largest_drops_at(run: Run, step: int) -> LargestDrops:
    """The largest drops around an alarm."""
    first = max(0, step - SMOOTH + 1)
    nearest = run.sql(_NEAREST_DROP, [step, first], SECONDS)["step"].tolist()
    if not nearest or first <= nearest[0] <= step:
        return LargestDrops(step, first, step, bool(nearest))
    return LargestDrops(step, nearest[0], nearest[0], True)


# -- Δ by action and step -------------------------------------------------------------------------

_ACTION_MAP = """
WITH a AS (FROM action_signals WHERE correct),
    s AS (SELECT min(step) AS first, 1 + (max(step) - min(step)) // $1 AS width FROM a)
SELECT min(step) AS first_step, max(step) AS last_step, least(action_index, $2) AS action_index,
    sum(delta * n_delta) / nullif(sum(n_delta) FILTER (delta IS NOT NULL), 0) AS delta
FROM a, s GROUP BY (step - first) // width, 3 ORDER BY 1, 3
"""
MOST_BINS = 130  # columns of the map of actions
MOST_ACTIONS = 12  # its rows; later actions are one row


def action_map(run: Run) -> pd.DataFrame:
    """Mean Δ of the actions of correct responses: a row for each range of steps and action index.
    The last of MOST_ACTIONS indices also stands for all later actions. `delta` is NaN if no action
    of the row was re-scored."""
    return run.sql(_ACTION_MAP, [MOST_BINS, MOST_ACTIONS - 1])
