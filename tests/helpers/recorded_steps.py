"""Steps with made-up numbers, written through the real recorder; waiting for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import lldscope


def record_steps(
    recorder: lldscope.Recorder, steps: range, *, seed: int = 0, groups: int = 4, size: int = 4
) -> None:
    """Steps with plausible, made-up numbers in every main table, deterministic in (seed, step)."""
    for step in steps:
        rng = np.random.default_rng([seed, step])
        n = groups * size
        ids = np.arange(n)
        correct = rng.random(n) < 0.5
        n_actions = rng.integers(1, 4, n)
        tokens = rng.integers(3, 20, n_actions.sum())
        old = -rng.gamma(2.0, 1.0, len(tokens)) * tokens / 4
        post = old + rng.normal(0.02, 0.3, len(tokens))
        rescored = np.repeat(ids % 3 > 0, n_actions)
        recorder.updates(
            step=step, update=np.arange(3), grad_norm=rng.gamma(3.0, 0.2, 3), grad_finite=True,
            skipped=False, ratio_max=1.5, n_clipped=rng.integers(0, 3, 3), n_tokens=50,
        )
        recorder.responses(
            step=step, response_id=ids, group_id=ids // size, data_source="made_up",
            reward=correct.astype(float), advantage=np.where(correct, 1.0, -1.0), correct=correct,
            n_actions=n_actions, n_tokens=np.add.reduceat(tokens, n_actions.cumsum() - n_actions),
            n_searches=n_actions - 1, n_invalid=rng.integers(0, 2, n),
            truncated=rng.random(n) < 0.1,
        )
        recorder.actions(
            step=step, response_id=np.repeat(ids, n_actions),
            action_index=np.concatenate([np.arange(k) for k in n_actions]), kind="search",
            n_tokens=tokens, logp_old_sum=old, logp_post_sum=np.ma.array(post, mask=~rescored),
            docs_hash=[f"d{i}" for i in rng.integers(0, 3, len(tokens))], tool_ok=True,
            llds_gate=rng.random(len(tokens)) < 0.2,
        )
        recorder.step(
            step=step, n_responses=n, n_correct=correct.sum(), reward_sum=correct.sum(),
            reward_sq_sum=correct.sum(), n_tokens=tokens.sum(), entropy_sum=0.4 * tokens.sum(),
            time=1.7e9 + step, loss_policy=0.1, lr=1e-4,
        )


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another process or thread does; fail when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
