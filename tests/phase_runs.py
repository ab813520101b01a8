"""Made-up and published curves whose phases are known, as signals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from lldscope.core.schema import SIGNALS

CASES = Path(__file__).parent / "cases"
SAMPLES = Path(__file__).parents[1] / "sample_runs"
CASE = {c["name"]: c for c in yaml.safe_load((CASES / "rules.yaml").read_text(encoding="utf-8"))}
DYING = CASE["three phases with Δ measured"]
WELL = CASE["healthy run, Δ around a small gain"]
HARDER = CASE["the level falls because harder questions get solved, Δ stays positive"]
RECOVERS = CASE["decay that recovers by itself"]


def frame(signals: dict[str, np.ndarray]) -> pd.DataFrame:
    """A signals frame with the given columns; everything else was not measured."""
    n = len(next(iter(signals.values())))
    empty = {name: np.full(n, np.nan) for name in SIGNALS.names}
    table = pd.DataFrame({**empty, "step": np.arange(n), **signals})
    if "delta_correct" in signals:
        table["n_delta_correct"] = np.where(table["delta_correct"].isna(), 0, 10)
        table["delta_correct_sum"] = table["delta_correct"] * 10
    return table


def drawn(case: dict, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    end = max(point[0] for points in case["signals"].values() for point in points)
    steps = np.arange(end + 1)
    made = {}
    for name, points in case["signals"].items():
        line = np.interp(steps, *zip(*points, strict=True))
        made[name] = line + rng.normal(0, case.get("noise", {}).get(name, 0.0), len(steps))
    return frame(made)


def paper_figure(every: int = 1, noise: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """Figure 2 by interpolation, the gradient norm on its logarithm; `noise` in nats/token, with
    as much again for the other two curves; the likelihood on every `every`-th step only."""
    points = pd.read_csv(CASES / "paper_fig2.csv", comment="#")
    steps = np.arange(1, points["step"].max() + 1)
    rng = np.random.default_rng(seed)
    shaken = rng.normal(0, noise, (3, len(steps)))
    level = np.interp(steps, points["step"], points["correct_logp_per_token"]) + shaken[0]
    gradient = np.interp(steps, points["step"], np.log10(points["grad_norm"])) + shaken[1]
    return frame(
        {
            "step": steps,
            "reward": np.interp(steps, points["step"], points["reward_mean"]) + 0.3 * shaken[2],
            "correct_logp": np.where(steps % every == 0, level, np.nan),
            "grad_norm": 10**gradient,
        }
    )
