"""One response turn by turn: its actions, its tokens, and the others of its group.

Text of a model is untrusted: this module passes it on as recorded, but cuts long text.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import pandas as pd

from ..runs import Run
from .responses import KEY, describe

MOST_TOKENS = 8000  # of one response
MOST_CHARACTERS = 200  # of one token
MOST_TEXT = 20_000  # characters of a recorded text
MOST_GROUP = 128  # responses of one group

_ACTIONS = """
SELECT action_index, kind, n_tokens, logp_old_sum AS logp_old, logp_post_sum AS logp_post,
    logp_post_sum::DOUBLE - logp_old_sum::DOUBLE AS delta,
    entropy_sum / nullif(n_tokens, 0) AS entropy, llds_gate, tool_ok
FROM actions WHERE step = ? AND rank = ? AND response_id = ? ORDER BY action_index
"""

# `not_finite`: recorded NaN or Inf as text; pandas does not tell NaN from NULL.
_TOKENS = """
SELECT position, action_index, token_id, left(text, $4) AS text, length(text) AS characters,
    logp_behaviour, logp_old, logp_post, logp_post::DOUBLE - logp_old::DOUBLE AS delta, entropy,
    CASE WHEN NOT (coalesce(isfinite(logp_old), true) AND coalesce(isfinite(logp_post), true))
         THEN concat('log π old ', logp_old, ', post ', logp_post) END AS not_finite
FROM tokens WHERE step = $1 AND rank = $2 AND response_id = $3
ORDER BY position LIMIT $5
"""

_TEXT = """
SELECT left(text, $4) AS text, length(text) AS characters FROM responses
WHERE step = $1 AND rank = $2 AND response_id = $3
"""

# The beginnings of other responses of a group.
_BEGINNINGS = """
SELECT rank, response_id, action_index, token_id, left(text, $3) AS text,
    length(text) AS characters
FROM tokens WHERE step = $1 AND position <= $2 AND (rank, response_id) IN ({keys})
ORDER BY rank, response_id, position
"""

_GROUP = """
SELECT step, rank, response_id FROM responses WHERE step = $1 AND group_id = $2
    AND data_source IS NOT DISTINCT FROM $3 ORDER BY rank, response_id LIMIT $4
"""


class Key(NamedTuple):
    """Which response."""

    step: int
    rank: int
    response_id: int


@dataclass(frozen=True)
class Trajectory:
    """One response. `about` is its row of `describe`, `group` are the rows of its group; `tokens`
    are the first MOST_TOKENS tokens."""

    key: Key
    about: dict[str, Any]
    group: list[dict[str, Any]]
    actions: list[dict[str, Any]]
    tokens: pd.DataFrame
    text: str | None
    text_characters: int


def read_trajectory(
    run: Run, key: Key, group: list[dict[str, Any]] | None = None
) -> Trajectory | None:
    """The response of this key; None if there is none. `group`: the rows of `group_of`, if they are
    known already."""
    texts = rows_of(run.sql(_TEXT, [*key, MOST_TEXT]))
    if not texts:
        return None
    if group is None:
        group = group_of(run, rows_of(describe(run, pd.DataFrame([key], columns=KEY)))[0])
    return Trajectory(
        key,
        next(row for row in group if key_of(row) == key),
        group,
        rows_of(run.sql(_ACTIONS, key)),
        read_tokens(run, key),
        texts[0]["text"],
        int(texts[0]["characters"] or 0),
    )


def read_tokens(run: Run, key: Key) -> pd.DataFrame:
    """The tokens of a response, with log π in nats and Δ, its change."""
    return run.sql(_TOKENS, [*key, MOST_CHARACTERS, MOST_TOKENS])


def group_of(run: Run, about: dict[str, Any]) -> list[dict[str, Any]]:
    """The responses of the same group as rows of `describe`; without a group, the response
    alone."""
    if about["group_id"] is None:
        return [about]
    parameters = [about["step"], about["group_id"], about["data_source"], MOST_GROUP]
    rows = rows_of(describe(run, run.sql(_GROUP, parameters)))
    return rows if key_of(about) in map(key_of, rows) else [*rows, about]


def paired_with(run: Run, base: Trajectory) -> Key | None:
    """The response of the other class, in the same group, that has most first tokens in common with
    this one. Without recorded tokens: the first response of the other class, if possible one that
    was scored after the update. None if the group has no response of the other class, or the class
    is unknown."""
    correct = base.about["correct"]
    others = [row for row in base.group if correct is not None and row["correct"] == (not correct)]
    if not others:
        return None
    mine = base.tokens
    keys = ", ".join(f"({k.rank}, {k.response_id})" for k in map(key_of, others))
    last = int(mine["position"].max()) if len(mine) else 0
    rows = run.sql(_BEGINNINGS.format(keys=keys), [base.key.step, last, MOST_CHARACTERS])
    beginnings = dict(iter(rows.groupby(["rank", "response_id"])))

    def similarity(row: dict[str, Any]) -> tuple[int, bool]:
        beginning = beginnings.get((row["rank"], row["response_id"]))
        shared = -1 if beginning is None else shared_prefix(mine, beginning)
        return shared, row["delta"] is not None

    return key_of(max(others, key=similarity))


def key_of(row: dict[str, Any]) -> Key:
    return Key(int(row["step"]), int(row["rank"]), int(row["response_id"]))


def shared_prefix(a: pd.DataFrame, b: pd.DataFrame) -> int:
    """The number of tokens with which both responses begin, counted from the policy's first own
    token. Tokens are equal if id and text are."""
    both = []
    for tokens in (a, b):
        mask = tokens["action_index"].notna().cummax()
        rest = tokens.loc[mask, ["token_id", "text", "characters"]]
        both.append([*map(tuple, rest.astype(object).where(rest.notna(), None).values)])
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*both, strict=False)))


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dictionaries of plain values; None if a value was not measured."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(k): v for k, v in row.items()} for row in plain.to_dict("records")]
