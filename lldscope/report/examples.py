"""Correct responses that lost likelihood, token by token, beside an incorrect one of their group.

The tokens table is a sample: where it has none of a response, the recorded text is shown without Δ;
where neither was recorded, the response is left out. Text of a model is untrusted and is escaped by
whoever renders it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.numbers import signed
from ..explore.trajectories import Key, Trajectory, paired_with, read_trajectory, rows_of
from ..runs import Run

EXAMPLES = 3
MOST_TOKENS = 600  # of one response
MOST_CHARACTERS = 3000  # of one recorded text
QUESTION = 300  # characters of the end of a prompt, where the question is

# Those with a recorded incorrect response in their group first, then those with tokens, then by Δ.
_CORRECT = """
WITH recorded AS (
    SELECT r.step, r.rank, r.response_id, r.data_source, r.group_id, r.correct,
        t.n IS NOT NULL AS has_tokens
    FROM responses r
    LEFT JOIN (SELECT step, rank, response_id, count(*) AS n FROM tokens
               WHERE step BETWEEN $1 AND $2 GROUP BY ALL) t USING (step, rank, response_id)
    WHERE r.step BETWEEN $1 AND $2 AND (t.n IS NOT NULL OR r.text IS NOT NULL)
)
SELECT recorded.step, recorded.rank, recorded.response_id
FROM recorded JOIN response_likelihood l USING (step, rank, response_id)
LEFT JOIN (SELECT step, data_source, group_id, count(*) AS n FROM recorded WHERE NOT correct
           GROUP BY ALL) w
    ON w.step = recorded.step AND w.group_id = recorded.group_id
   AND w.data_source IS NOT DISTINCT FROM recorded.data_source
WHERE l.correct AND l.mixed AND l.delta < 0 AND isfinite(l.delta)
ORDER BY w.n IS NULL, NOT has_tokens, l.delta, recorded.step, recorded.response_id LIMIT $3
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
    """A correct response and the incorrect one of its group that begins most like it."""

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


def examples(run: Run, first: int, last: int) -> list[Example]:
    """The correct responses of the window that lost most, of those that were recorded; first those
    with a recorded incorrect response in their group."""
    keys = rows_of(run.sql(_CORRECT, [first, last, EXAMPLES]))
    trajectories = (read_trajectory(run, Key(**key)) for key in keys)
    return [_example(run, one) for one in trajectories if one is not None]


def _example(run: Run, base: Trajectory) -> Example:
    about, correct = base.about, _response(base)
    facts = about["step"], about["group_id"], about["data_source"], about["delta"], correct
    key = paired_with(run, base)
    partner = None if key is None else read_trajectory(run, key, group=base.group)
    if partner is None or not (partner.n_tokens or partner.text):
        return Example(*facts)
    wrong = _response(partner)
    shared = shared_prefix(correct.text, wrong.text)
    return Example(*facts, wrong, shared, _delta_of(correct, shared))


def _delta_of(response: Response, characters: int) -> float | None:
    """Σ Δ of the tokens that end within the first characters; None if none of them has a Δ."""
    measurements, end = [], 0
    for piece in response.pieces:
        end += len(piece.text)
        if end <= characters and piece.delta is not None:
            measurements.append(piece.delta)
    return round(sum(measurements), 3) if measurements else None


def _response(trajectory: Trajectory) -> Response:
    key = trajectory.key.response_id
    if not trajectory.n_tokens:
        piece = Piece((trajectory.text or "")[:MOST_CHARACTERS], 0, None)
        return Response(key, None, [piece], max(0, trajectory.text_characters - MOST_CHARACTERS))
    rows = rows_of(trajectory.tokens)
    start = next((i for i, row in enumerate(rows) if row["action_index"] is not None), len(rows))
    prompt = "".join(row["text"] or "▯" for row in rows[:start])[-QUESTION:].strip() or None
    response = rows[start : start + MOST_TOKENS]
    pieces: list[Piece] = []
    for row in response:
        text, action, delta = row["text"] or "▯", row["action_index"], row["delta"]
        if action is None and pieces and pieces[-1].action_index is None:
            pieces[-1] = Piece(pieces[-1].text + text, None, None)  # tool text, a piece per turn
        else:
            has_delta = delta is not None and action is not None
            pieces.append(Piece(text, action, round(delta, 3) if has_delta else None))
    return Response(key, prompt, pieces, trajectory.n_tokens - start - len(response))


def shared_prefix(a: str, b: str) -> int:
    """Characters with which both begin."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
