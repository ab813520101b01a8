"""Correct responses that lost likelihood, token by token, beside a wrong one of their group.

The tokens table is a sample: where it holds none of a response, the recorded text is shown without
Δ, and where neither was recorded, nothing. Text of a model is untrusted; here it is only carried.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..runs import Run
from .losses import records

EXAMPLES = 3
MOST_TOKENS = 600  # shown of one response
MOST_CHARACTERS = 3000  # shown of one recorded text
QUESTION = 300  # characters of the end of a prompt, where the question is

# Words of a wrong response beside them first, then with tokens, then by how much was lost.
_CORRECT = """
WITH told AS (
    SELECT r.step, r.rank, r.response_id, r.data_source, r.group_id, r.correct, r.text,
        t.n IS NOT NULL AS has_tokens
    FROM responses r
    LEFT JOIN (SELECT step, rank, response_id, count(*) AS n FROM tokens
               WHERE step BETWEEN $1 AND $2 GROUP BY ALL) t USING (step, rank, response_id)
    WHERE r.step BETWEEN $1 AND $2 AND (t.n IS NOT NULL OR r.text IS NOT NULL)
)
SELECT told.*, l.delta
FROM told JOIN response_likelihood l USING (step, rank, response_id)
LEFT JOIN (SELECT step, data_source, group_id, count(*) AS n FROM told WHERE NOT correct
           GROUP BY ALL) w
    ON w.step = told.step AND w.group_id = told.group_id
   AND w.data_source IS NOT DISTINCT FROM told.data_source
WHERE l.correct AND l.mixed AND l.delta < 0 AND isfinite(l.delta)
ORDER BY w.n IS NULL, NOT has_tokens, l.delta, told.step, told.rank, told.response_id
LIMIT $3
"""

_WRONG = """
SELECT r.step, r.rank, r.response_id, r.reward, t.n IS NOT NULL AS has_tokens, r.text
FROM responses r
LEFT JOIN (SELECT step, rank, response_id, count(*) AS n FROM tokens
           WHERE step = $1 GROUP BY ALL) t USING (step, rank, response_id)
WHERE r.step = $1 AND r.group_id = $2 AND r.data_source IS NOT DISTINCT FROM $3
  AND NOT r.correct AND (t.n IS NOT NULL OR r.text IS NOT NULL)
ORDER BY r.rank, r.response_id
"""

_TOKENS = """
SELECT position, action_index, text, logp_post - logp_old AS delta FROM tokens
WHERE step = $1 AND rank = $2 AND response_id = $3 ORDER BY position
"""

_QUESTIONS = """
SELECT t.step, r.data_source, r.group_id, arg_min(t.question, (t.rank, t.response_id)) AS question
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


def questions(run: Run, first: int, last: int) -> dict[tuple[int, str | None, int], str]:
    """(step, data source, group) → the end of its prompt, where tokens of it were recorded."""
    rows = records(run.sql(_QUESTIONS, [first, last, QUESTION]))
    return {
        (row["step"], row["data_source"], row["group_id"]): row["question"].strip()
        for row in rows
        if row["group_id"] is not None and row["question"]
    }


def examples(run: Run, first: int, last: int) -> list[dict[str, Any]]:
    """The correct responses of the window that lost most, of those whose words were recorded;
    first those with the words of a wrong response of their group."""
    chosen = records(run.sql(_CORRECT, [first, last, EXAMPLES]))
    return [_example(run, row) for row in chosen]


def _example(run: Run, row: dict[str, Any]) -> dict[str, Any]:
    correct = _response(run, row)
    partners = []
    if row["group_id"] is not None:
        key = [row["step"], row["group_id"], row["data_source"]]
        partners = [_response(run, r) for r in records(run.sql(_WRONG, key))]
    wrong = max(partners, key=lambda p: _shared(correct["pieces"], p["pieces"]), default=None)
    shared = _shared(correct["pieces"], wrong["pieces"]) if wrong else None
    return {
        "step": row["step"],
        "group_id": row["group_id"],
        "data_source": row["data_source"],
        "delta": row["delta"],
        "correct": correct,
        "wrong": wrong,
        "shared_characters": shared,
        "shared_delta": None if shared is None else _delta_of(correct["pieces"], shared),
    }


def _delta_of(pieces: list[dict[str, Any]], characters: int) -> float | None:
    """Σ Δ of the tokens that lie whole within the first characters; None if none has a Δ."""
    known, at = [], 0
    for piece in pieces:
        at += len(piece["text"])
        if at <= characters and piece["delta"] is not None:
            known.append(piece["delta"])
    return round(sum(known), 3) if known else None


def _response(run: Run, row: dict[str, Any]) -> dict[str, Any]:
    """A response as pieces of text: action (None: not the policy's own) and Δ (None: unknown)."""
    response: dict[str, Any] = {"response_id": row["response_id"], "prompt": None}
    if not row["has_tokens"]:
        text = row["text"]
        piece = {"text": text[:MOST_CHARACTERS], "action_index": 0, "delta": None}
        return response | {"pieces": [piece], "cut": max(0, len(text) - MOST_CHARACTERS)}
    key = [row["step"], row["rank"], row["response_id"]]
    tokens = run.sql(_TOKENS, key)
    tokens["text"] = tokens["text"].astype(object).where(tokens["text"].notna(), "▯")
    own = np.flatnonzero(tokens["action_index"].notna())
    start = int(own[0]) if len(own) else len(tokens)
    prompt = "".join(tokens["text"][:start])
    shown = tokens.iloc[start : start + MOST_TOKENS]
    return response | {
        "prompt": prompt[-QUESTION:].strip() or None,
        "pieces": _pieces(shown),
        "cut": len(tokens) - start - len(shown),
    }


def _pieces(tokens: pd.DataFrame) -> list[dict[str, Any]]:
    """A piece per token of the policy; tool text in one piece per turn."""
    pieces: list[dict[str, Any]] = []
    for row in records(tokens[["text", "action_index", "delta"]]):
        if row["action_index"] is None and pieces and pieces[-1]["action_index"] is None:
            pieces[-1]["text"] += row["text"]
        else:
            delta = row["delta"] if row["delta"] is None else round(row["delta"], 3)
            pieces.append(row | {"delta": delta if row["action_index"] is not None else None})
    return pieces


def _shared(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> int:
    """Characters with which both begin alike."""
    texts = ["".join(p["text"] for p in pieces) for pieces in (a, b)]
    return next(
        (i for i, (x, y) in enumerate(zip(*texts, strict=False)) if x != y), min(map(len, texts))
    )
