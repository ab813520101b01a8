"""Runs as long as a real one, for measuring pages: made-up numbers, nothing was trained.

python -m benchmarks.long_run PATH [STEPS [RESPONSES [ACTIONS]]]

By default 5,000 steps of 500 responses with 4 actions each: 10,000,000 rows of actions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import lldscope

STEPS, RESPONSES, ACTIONS = 5000, 500, 4
SIZE = 5  # responses of a group
WAIT_ROWS, WAIT_STEPS = 40_000, 500  # between waits for the writer, so that no call is dropped


def write_long_run(
    path: Path | str, steps: int = STEPS, responses: int = RESPONSES, actions: int = ACTIONS
) -> Path | str:
    """A finished run with one step every 30 s up to now; it decays in its last fifth."""
    with lldscope.Recorder(path, trainer="made-up numbers") as recorder:
        start = time.time() - 30.0 * steps
        wait = max(1, min(WAIT_STEPS, WAIT_ROWS // (responses * actions)))
        for step in write_steps(recorder, steps, responses, actions, start, 30.0):
            if step % wait == wait - 1:
                recorder.flush()
            if step % 500 == 499:
                recorder.event("checkpoint", step=step)
    if recorder.dropped:
        raise SystemExit(f"the recorder was too slow for this script: {dict(recorder.dropped)}")
    return path


def write_steps(
    recorder: lldscope.Recorder,
    steps: int,
    responses: int,
    actions: int,
    start: float,
    seconds: float = 1.0,
    first: int = 0,
) -> Iterator[int]:
    """Record one step after the other, and give its number after each."""
    rng = np.random.default_rng(first)
    rows = np.repeat(np.arange(responses), actions)
    index = np.tile(np.arange(actions), responses)
    kind = np.where(index < actions - 1, "search", "answer").tolist()
    for step in range(first, steps):
        decay = max(0.0, (step - 0.8 * steps) / (0.2 * steps))
        correct = rng.random(responses) < 0.2 + 0.5 * step / steps - 0.5 * decay
        tokens = rng.integers(10, 60, len(rows))
        old = tokens * (-0.7 - 0.3 * ~correct[rows] - decay)
        gain = np.where(correct[rows], 0.4 - 1.5 * decay, -0.3)
        gain = (gain + rng.normal(0, 0.3, len(rows))) / actions
        recorder.actions(
            step=step, response_id=rows, action_index=index, n_tokens=tokens, kind=kind,
            tool_ok=True, logp_old_sum=old, logp_post_sum=old + gain,
            logp_min=old / tokens - 2, docs_hash=rng.integers(0, 1 << 62, len(rows)).astype(str),
        )
        recorder.responses(
            step=step, response_id=np.arange(responses), group_id=np.arange(responses) // SIZE,
            reward=correct.astype(float), correct=correct, n_actions=actions,
            n_tokens=40 * actions, n_searches=actions - 1, n_invalid=0, truncated=False,
            answered=True,
        )
        recorder.updates(
            step=step, update=[0, 1, 2, 3], grad_norm=rng.gamma(9, 0.1, 4) * 5**decay,
            grad_finite=True, skipped=False,
        )
        recorder.step(
            step=step, time=start + seconds * step, n_responses=responses,
            n_correct=correct.sum(), reward_sum=correct.sum(), reward_sq_sum=correct.sum(),
            n_tokens=int(tokens.sum()), entropy_sum=tokens.sum() * rng.normal(0.5, 0.02),
        )
        yield step


if __name__ == "__main__":
    print(write_long_run(Path(sys.argv[1]), *map(int, sys.argv[2:])))
