"""Runs for testing pages. Their numbers are made up, not measured: nothing was trained."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import lldscope

GROUPS, SIZE = 4, 6


def write_run(path: Path, steps: int, *, dies: bool = False, ends: str = "finished") -> Path:
    """A whole run with one step a second up to now; one that dies decays from step 60 on."""
    with lldscope.Recorder(path, trainer="made-up numbers") as recorder:
        for step in range(steps):
            write_step(recorder, step, dies=dies, at=time.time() - steps + step)
            if step % 40 == 39:
                recorder.event("checkpoint", step=step)
        recorder.close(ends, None if ends == "finished" else "out of memory")
    return path


def write_step(recorder: lldscope.Recorder, step: int, *, dies: bool, at: float) -> None:
    """One step: in a dying run Δ of correct responses falls first, entropy and gradients follow."""
    rng = np.random.default_rng(step)
    decay = max(0.0, (step - 60) / 25) if dies else 0.0
    surge = max(0.0, (step - 110) / 10) if dies else 0.0
    n = GROUPS * SIZE
    responses = np.arange(n)
    correct = responses % SIZE < (3 if rng.random() < 0.5 else 2) - (surge > 1.5)
    rows = np.repeat(responses, 2)  # a search and an answer each
    tokens = rng.integers(10, 30, 2 * n)
    old = tokens * (-0.7 - 0.3 * ~correct[rows] - surge / 4)
    gain = np.where(correct[rows], 0.6 - decay, -0.3) + rng.normal(0, 0.2, 2 * n)
    recorder.actions(
        step=step, response_id=rows, action_index=np.tile([0, 1], n), n_tokens=tokens,
        kind=["search", "answer"] * n, logp_old_sum=old, logp_post_sum=old + gain / 2,
    )
    recorder.responses(
        step=step, response_id=responses, group_id=responses // SIZE, reward=correct.astype(float),
        correct=correct, n_actions=2, n_tokens=40, n_searches=1, n_invalid=0, truncated=False,
    )
    recorder.updates(
        step=step, update=[0, 1], grad_norm=rng.gamma(9, 0.1, 2) * 3**surge, grad_finite=True,
        skipped=False,
    )
    total = int(tokens.sum())
    recorder.step(
        step=step, time=at, n_responses=n, n_correct=correct.sum(), reward_sum=correct.sum(),
        reward_sq_sum=correct.sum(), n_tokens=total,
        entropy_sum=total * (0.4 + 0.5 * surge + rng.normal(0, 0.01)),
    )
