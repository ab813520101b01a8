"""Whether a checkpoint's weights are those that recorded log-probabilities are of."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ..core.errors import UsageError

if TYPE_CHECKING:
    from ..run import Run

STEPS = 8  # with recorded tokens, spread over the run
ROLLOUTS = 4  # of each
SAME = 0.03
"""Mean absolute difference, nats a token, up to which weights count as the same: bfloat16 scored
in other shapes differs by about 0.01 to 0.02."""

_ROLLOUTS = """
SELECT list(token_id ORDER BY position) AS ids,
    list(CASE WHEN action_index IS NULL THEN NULL ELSE logp_old END ORDER BY position) AS logp
FROM tokens WHERE step = {step}
GROUP BY rank, response_id
HAVING count(token_id) = count(*) AND min(position) = 0 AND max(position) = count(*) - 1
    AND count(logp_old) FILTER (action_index >= 0) > 0
ORDER BY rank, response_id LIMIT {rollouts}
"""


@dataclass(frozen=True)
class Comparison:
    """A step's recorded log π_old beside what the weights give: tokens compared, and the mean of
    the absolute differences in nats."""

    step: int
    tokens: int
    difference: float

    @property
    def same(self) -> bool:
        return self.difference <= SAME


def compare_weights(run: Run, checkpoint: Path) -> list[Comparison]:
    """Score recorded rollouts with the weights in a Hugging Face directory.

    Raises UsageError where no whole rollout with token ids is recorded, or where the directory is
    no model that the tokens can be of.
    """
    scorers = list(entry_points(group="lldscope.score", name="score"))
    if not scorers:
        raise UsageError("--checkpoint needs the trainer: pip install 'lldscope[train]'.")
    steps = [step for (step,) in run.rows("SELECT DISTINCT step FROM tokens ORDER BY step").rows]
    spread = {round(i * (len(steps) - 1) / (STEPS - 1)) for i in range(STEPS)} if steps else set()
    rollouts = {
        step: rows
        for step in (steps[i] for i in sorted(spread))
        if (rows := run.rows(_ROLLOUTS.format(step=step, rollouts=ROLLOUTS)).rows)
    }
    if not rollouts:
        raise UsageError(
            "No whole rollout with token ids is recorded, so that no weights can be compared: "
            "record the table `tokens` (docs/integrations.md)."
        )
    ids = [ids for rows in rollouts.values() for ids, _ in rows]
    logps = iter(scorers[0].load()(str(checkpoint), ids))
    return [_compare(step, rows, [next(logps) for _ in rows]) for step, rows in rollouts.items()]


def _compare(step: int, rows: list[tuple[Any, ...]], logps: list[list[float | None]]) -> Comparison:
    differences = [
        abs(new - old)
        for (_, recorded), scored in zip(rows, logps, strict=True)
        for old, new in zip(recorded, scored, strict=True)
        if old is not None and new is not None
    ]
    return Comparison(step, len(differences), fmean(differences))
