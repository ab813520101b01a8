"""Made-up and published curves whose phases are known, as signals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from rule_cases import frame

from lldscope.core.schema import SIGNALS

CASES = Path(__file__).parents[1] / "cases"
SAMPLES = Path(__file__).parents[2] / "sample_runs"
CASE_FILES: dict[str, list[dict[str, Any]]] = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((CASES / "rules").glob("*.yaml"))
}
CASE = {case["name"]: case for cases in CASE_FILES.values() for case in cases}
DYING = CASE["three phases with Δ measured"]
WELL = CASE["healthy run, Δ around a small gain"]
HARDER = CASE["the level falls because harder questions get solved, Δ stays positive"]


def recorded_fault(name: str) -> pd.DataFrame:
    """A training into which a fault was put at step 35; the file says with which command."""
    table = pd.read_csv(CASES / "faults" / f"{name}.csv", comment="#")
    return table.reindex(columns=list(SIGNALS.names))


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
