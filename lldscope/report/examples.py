"""Correct responses that lost likelihood, token by token, beside an incorrect one of their group.

The tokens table is a sample: where it has none of a response, the recorded text is shown without Δ;
where neither was recorded, the response is left out. Text of a model is untrusted and is escaped by
whoever renders it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..core.numbers import signed
from ..explore.trajectories import rows_of
from ..runs import Run
from .losses import GroupKey

EXAMPLES = 3
MOST_TOKENS = 600  # of one response
MOST_CHARACTERS = 3000  # of one recorded text
QUESTION = 300  # characters of the end of a prompt, where the question is

# Those with a recorded incorrect response in their group first, then those with tokens, then by Δ.
_CORRECT = """
WITH recorded AS (
    SELECT r.step, r.rank, r.response_id, r.data_source, r.group_id, r.correct, r.text,
        t.n IS NOT NULL AS has_tokens
    FROM responses r
    LEFT JOIN (SELECT step, rank, response_id, count(*) AS n FROM tokens
               WHERE step BETWEEN $1 AND $2 GROUP BY ALL) t USING (step, rank, response_id)
    WHERE r.step BETWEEN $1 AND $2 AND (t.n IS NOT NULL OR r.text IS NOT NULL)
)
SELECT recorded.*, l.delta
FROM recorded JOIN response_likelihood l USING (step, rank, response_id)
LEFT JOIN (SELECT step, data_source, group_id, count(*) AS n FROM recorded WHERE NOT correct
           GROUP BY ALL) w
    ON w.step = recorded.step AND w.group_id = recorded.group_id
   AND w.data_source IS NOT DISTINCT FROM recorded.data_source
WHERE l.correct AND l.mixed AND l.delta < 0 AND isfinite(l.delta)
ORDER BY w.n IS NULL, NOT has_tokens, l.delta, recorded.step, recorded.response_id LIMIT $3
"""

_WRONG = """
SELECT r.step, r.rank, r.response_id, r.reward, t.n IS NOT NULL AS has_tokens, r.text
FROM responses r
LEFT JOIN (SELECT step, rank, response_id, count(*) AS n FROM tokens
           WHERE step = $1 GROUP BY ALL) t USING (step, rank, response_id)
WHERE r.step = $1 AND r.group_id = $2 AND r.data_source IS NOT DISTINCT FROM $3
  AND NOT r.correct AND (t.n IS NOT NULL OR r.text IS NOT NULL)
ORDER BY r.response_id
"""

_TOKENS = """
SELECT position, action_index, text, logp_post - logp_old AS delta FROM tokens
WHERE step = $1 AND rank = $2 AND response_id = $3 ORDER BY position
"""

_QUESTIONS = """
SELECT t.step, r.data_source, r.group_id, arg_min(t.question, t.response_id) AS question
FROM (
    SELECT step, rank, response_id, right(string_agg(text, '' ORDER BY position), $3) AS question
    FROM tokens JOIN (
        SELECT step, rank, response_id, min(position) AS first FROM tokens
        WHERE action_index IS NOT NULL AND step BETWEEN $1 AND $2 GROUP BY ALL
    ) USING (step, rank, response_id)
    WHERE position < first GROUP BY ALL
) t
JOIN responses r USING (step, rank, response_id)
GROUP BY t.step, r.data_source, r.group_id
"""


@dataclass(frozen=True)
class Piece:
    """A piece of a response: a token of the policy, or the tool text of a turn, whose action is
    None. Δ is None where it is unknown."""

    text: str
    action_index: int | None
    delta: float | None


@dataclass(frozen=True)
class Response:
    """A response in pieces; `cut` is how many tokens, or characters, are left out at its end."""

    response_id: int
    prompt: str | None
    pieces: list[Piece]
    cut: int

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True)
class Example:
    """A correct response and the incorrect one of its group that shares the longest prefix."""

    step: int
    group_id: int | None
    data_source: str | None
    delta: float
    correct: Response
    wrong: Response | None = None
    shared_characters: int | None = None
    shared_delta: float | None = None

    @property
    def shared(self) -> str:
        """The prefix both share, and what it lost, as a sentence; empty without a partner."""
        if self.shared_characters is None:
            return ""
        delta = self.shared_delta
        change = "" if delta is None else f"; there the correct one changed by {signed(delta)} nats"
        return f"Both begin with the same {self.shared_characters:,} characters{change}."


def questions(run: Run, first: int, last: int) -> dict[GroupKey, str]:
    """The end of the prompt of each group, where its tokens were recorded."""
    return {
        (row["step"], row["data_source"], row["group_id"]): row["question"].strip()
        for row in rows_of(run.sql(_QUESTIONS, [first, last, QUESTION]))
        if row["group_id"] is not None and row["question"]
    }


def examples(run: Run, first: int, last: int) -> list[Example]:
    """The correct responses of the window that lost most, of those that were recorded; first those
    with a recorded incorrect response in their group."""
    rows = rows_of(run.sql(_CORRECT, [first, last, EXAMPLES]))
    return [_example(run, row) for row in rows]


def _example(run: Run, row: dict[str, Any]) -> Example:
    correct = _response(run, row)
    partners = []
    if row["group_id"] is not None:
        key = [row["step"], row["group_id"], row["data_source"]]
        partners = [_response(run, r) for r in rows_of(run.sql(_WRONG, key))]

    def shared(partner: Response) -> int:
        return shared_prefix(correct.text, partner.text)

    wrong = max(partners, key=shared, default=None)
    about = row["step"], row["group_id"], row["data_source"], row["delta"], correct
    if wrong is None:
        return Example(*about)
    return Example(*about, wrong, shared(wrong), _delta_of(correct, shared(wrong)))


def _delta_of(response: Response, characters: int) -> float | None:
    """Σ Δ of the tokens that end within the first characters; None if none of them has a Δ."""
    measurements, end = [], 0
    for piece in response.pieces:
        end += len(piece.text)
        if end <= characters and piece.delta is not None:
            measurements.append(piece.delta)
    return round(sum(measurements), 3) if measurements else None


def _response(run: Run, row: dict[str, Any]) -> Response:
    if not row["has_tokens"]:
        text = row["text"]
        piece = Piece(text[:MOST_CHARACTERS], 0, None)
        return Response(row["response_id"], None, [piece], max(0, len(text) - MOST_CHARACTERS))
    tokens = run.sql(_TOKENS, [row["step"], row["rank"], row["response_id"]])
    tokens["text"] = tokens["text"].astype(object).where(tokens["text"].notna(), "▯")
    actions_at = np.flatnonzero(tokens["action_index"].notna())
    start = int(actions_at[0]) if len(actions_at) else len(tokens)
    prompt = "".join(tokens["text"][:start])[-QUESTION:].strip() or None
    excerpt = tokens.iloc[start : start + MOST_TOKENS]
    cut = len(tokens) - start - len(excerpt)
    return Response(row["response_id"], prompt, _pieces(excerpt), cut)


def _pieces(tokens: pd.DataFrame) -> list[Piece]:
    """A piece per token of the policy; tool text in one piece per turn."""
    pieces: list[Piece] = []
    for row in rows_of(tokens):
        text, action, delta = row["text"], row["action_index"], row["delta"]
        if action is None and pieces and pieces[-1].action_index is None:
            pieces[-1] = Piece(pieces[-1].text + text, None, None)
        else:
            measured = delta is not None and action is not None
            pieces.append(Piece(text, action, round(delta, 3) if measured else None))
    return pieces


def shared_prefix(a: str, b: str) -> int:
    """Characters with which both begin."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
