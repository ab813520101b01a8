"""Made-up signals to try rules on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lldscope.core.schema import SIGNALS


def frame(columns: dict[str, Any]) -> pd.DataFrame:
    """A frame like `signals` with the given columns, shape (steps,); all others are NaN."""
    length = len(next(iter(columns.values())))
    empty = {name: np.full(length, np.nan) for name in SIGNALS.names}
    table = pd.DataFrame({**empty, "step": np.arange(length), **columns})
    if "delta_correct" in columns and "n_delta_correct" not in columns:
        table["n_delta_correct"] = np.where(table["delta_correct"].isna(), 0, 10)
        table["delta_correct_sum"] = table["delta_correct"] * 10
    return table


def simulate(case: dict[str, Any], seed: int) -> pd.DataFrame:
    """The signals of a case: for each a list of [step, value] points joined by lines, plus normal
    noise (`noise`, standard deviation) from a seed."""
    rng = np.random.default_rng(seed)
    end = max(point[0] for points in case["signals"].values() for point in points)
    steps = np.arange(int(end) + 1)
    columns = {}
    for name, points in case["signals"].items():
        at, values = np.array(points, dtype=float).T
        line = np.interp(steps, at, values)
        columns[name] = line + rng.normal(0, case.get("noise", {}).get(name, 0.0), len(steps))
    return frame(columns)


# What a signal is about while all is well. Shares are at most 1.
USUAL = {
    "reward": 0.4, "success": 0.4, "entropy": 0.4, "grad_norm": 0.5, "kl": 0.02, "clip_share": 0.01,
    "correct_logp": -0.5, "incorrect_logp": -0.8, "delta_correct": 0.2, "retention_delta": 0.02,
    "step_kl": 1e-3, "response_tokens": 200.0, "valid_searches": 1.0, "tool_calls": 1.2,
    "answered_share": 0.9, "truncated_share": 0.06, "repeat_share": 0.05, "tool_fail_share": 0.05,
    "merged_action_share": 0.001, "action_logp_min": -8.0, "zero_signal_share": 0.5,
    "all_right_share": 0.25, "all_wrong_share": 0.2, "prompt_collision_share": 0.05,
    "advantage_offset": 0.01, "engine_gap": 0.005, "engine_diff": 0.01, "engine_prob_diff": 0.004,
    "engine_k3": 1e-3, "engine_ratio": 1.0, "engine_chi2": 2e-3, "engine_far_share": 1e-3,
    "rollout_age": 0.5, "lr": 1e-6, "eval_score": 0.4, "component/format": 0.2,
    "component/correct": 0.3,
}


def random_signals(seed: int) -> tuple[pd.DataFrame, dict[int, str]]:
    """Signals that bend at random, some of them missing, rare, at rest or of the other sign, and
    declared changes."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(30, 260))
    columns = {"step": np.arange(n) * int(rng.choice([1, 1, 1, 5, 10]))}
    for name, usual in USUAL.items():
        kind = rng.choice(["course", "course", "course", "constant", "rare", "late", "absent"])
        at = np.sort(rng.integers(0, n, 5))
        bends = np.cumsum(rng.normal(0, rng.choice([0.5, 1.5]), 5) * rng.integers(0, 2, 5))
        course = np.interp(np.arange(n), at, bends)
        course += rng.normal(0, 0.7)
        values = usual * np.exp(course + rng.choice([0.02, 0.1, 0.3]) * rng.normal(size=n))
        if name.endswith("_share") or name == "success":
            values = np.minimum(values, 1.0)
        if kind == "constant":
            values[at[1] :] = rng.choice([0.0, 1.0, values[at[1]]])
        if name == "delta_correct" or (name == "reward" and seed % 3 == 0):
            values *= np.where(np.arange(n) < at[2], 1.0, -1.0)
        hidden = {"rare": np.arange(n) % 10 > 0, "late": np.arange(n) < at[1], "absent": True}
        columns[name] = np.where(hidden.get(str(kind), False), np.nan, values)
    columns["n_nonfinite"] = (rng.random(n) < 0.01).astype(float)
    columns["n_responses"] = np.full(n, 64.0)
    if seed % 2:
        columns["eval_n"] = np.full(n, 128.0)
    at = rng.choice(columns["step"], seed % 3)
    return frame(columns), {int(step): str(rng.choice(["data", "lr", "resume"])) for step in at}
