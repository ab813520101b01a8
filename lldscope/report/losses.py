"""What lost likelihood: SQL over the views of one run, over a window of steps and mixed groups.

Δ is log π after the step's updates minus before, summed over a response or an action, in nats. None
stands for what was not measured. What *causes* the losses is a question for `lldscope blame`.

`examples` shows correct responses token by token beside an incorrect one of their group. The tokens
table is a sample: where it has none of a response, the recorded text is shown without Δ; where
neither was recorded, the response is left out. Text of a model is untrusted and is escaped by
whoever renders it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.numbers import percent, signed
from ..explore.trajectories import (
    MOST_CHARACTERS,
    Key,
    Trajectory,
    paired_with,
    read_trajectory,
    rows_of,
)
from ..runs import Run

MOST_TOKENS = 3
CONTEXT = 8  # tokens shown before and after one

Row = dict[str, Any]


@dataclass(frozen=True)
class WorstToken:
    """A token of a correct response, its probability before and after the step's updates, and the
    text around it. Text of a model is untrusted."""

    step: int
    response_id: int
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
    """Losses from `first_step` to `last_step`, both included; rows have the columns of their query.

    `by_action` is mean Δ by action index and class, before the window and in it; `by_source` has
    the correct responses of each data source (`lost`: the sum of their negative Δ, positive).
    `tokens` are the worst of correct responses, one of each.
    """

    first_step: int
    last_step: int
    n_groups: int
    n_displaced: int
    by_action: list[Row]
    by_source: list[Row]
    tokens: list[WorstToken]


_BY_ACTION = """
SELECT action_index, correct,
    sum(delta * n_delta) FILTER (before_it) / sum(n_delta) FILTER (before_it) AS before,
    sum(delta * n_delta) FILTER (in_it) / sum(n_delta) FILTER (in_it)         AS in_window,
    coalesce(sum(n_delta) FILTER (in_it), 0)::BIGINT                          AS n_in_window
FROM (SELECT *, step < $1 AS before_it, step BETWEEN $1 AND $2 AS in_it FROM action_signals)
WHERE n_delta > 0 GROUP BY action_index, correct ORDER BY correct DESC, action_index
"""

_GROUPS = """
SELECT count(*) AS n, count(*) FILTER (delta < 0) AS n_displaced FROM (
    SELECT avg(delta) FILTER (correct AND isfinite(delta)) AS delta FROM response_likelihood
    WHERE mixed AND group_id IS NOT NULL AND step BETWEEN $1 AND $2
    GROUP BY step, data_source, group_id
) WHERE delta IS NOT NULL
"""

_SOURCES = """
SELECT data_source, count(*) AS n_responses, avg(delta) AS delta,
    avg((delta <= 0)::INT) AS lld_share, sum(greatest(0, -delta)) AS lost
FROM response_likelihood
WHERE correct AND mixed AND isfinite(delta) AND step BETWEEN $1 AND $2
GROUP BY data_source ORDER BY lost DESC, data_source
"""

_TOKENS = """
SELECT t.step, t.rank, t.response_id, t.position, t.action_index,
    exp(t.logp_old::DOUBLE) AS p_old, exp(t.logp_post::DOUBLE) AS p_post,
    t.logp_post::DOUBLE - t.logp_old::DOUBLE AS delta
FROM tokens t JOIN response_class r USING (step, rank, response_id)
WHERE r.correct AND r.mixed AND t.action_index IS NOT NULL AND t.step BETWEEN $1 AND $2
    AND isfinite(t.logp_old) AND isfinite(t.logp_post) AND t.logp_post < t.logp_old
QUALIFY row_number() OVER (PARTITION BY t.step, t.rank, t.response_id
                           ORDER BY t.logp_post - t.logp_old, t.position) = 1
ORDER BY delta, t.step, t.rank, t.response_id LIMIT $3
"""

_AROUND = """
SELECT
    coalesce(string_agg(part, '' ORDER BY position) FILTER (position < $4), '') AS before,
    coalesce(string_agg(part, '' ORDER BY position) FILTER (position = $4), '▯') AS text,
    coalesce(string_agg(part, '' ORDER BY position) FILTER (position > $4), '') AS after
FROM (SELECT position, left(text, $6) AS part FROM tokens
      WHERE step = $1 AND rank = $2 AND response_id = $3 AND position BETWEEN $4 - $5 AND $4 + $5)
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
        by_action=rows_of(run.sql(_BY_ACTION, window)),
        by_source=rows_of(run.sql(_SOURCES, window)),
        tokens=[_token(run, row) for row in rows_of(run.sql(_TOKENS, [*window, MOST_TOKENS]))],
    )


def _token(run: Run, row: Row) -> WorstToken:
    key = [row.pop("step"), row.pop("rank"), row.pop("response_id")]
    place = [*key, row.pop("position"), CONTEXT, MOST_CHARACTERS]
    (text,) = rows_of(run.sql(_AROUND, place))
    return WorstToken(step=key[0], response_id=key[2], **row, **text)


EXAMPLES = 3
RESPONSE_TOKENS = 600  # of one response
TEXT_CHARACTERS = 3000  # of one recorded text
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
        piece = Piece((trajectory.text or "")[:TEXT_CHARACTERS], 0, None)
        return Response(key, None, [piece], max(0, trajectory.text_characters - TEXT_CHARACTERS))
    rows = rows_of(trajectory.tokens)
    start = next((i for i, row in enumerate(rows) if row["action_index"] is not None), len(rows))
    prompt = "".join(row["text"] or "▯" for row in rows[:start])[-QUESTION:].strip() or None
    response = rows[start : start + RESPONSE_TOKENS]
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
