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
