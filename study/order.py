"""What falls when in plain GRPO."""

from __future__ import annotations

from statistics import median

import pandas as pd

from .analyses import SMOOTH, trailing
from .results import Result, Results
from .tables import GRPO, table

SURGE = 1.5  # × its lowest ten-step mean, of the entropy
CLEARLY = 1.1  # × its start, of the (negative) level: a tenth under it


def order(results: Results) -> str:
    """In plain GRPO, median and range: when the reward was at its best, under nine tenths and (for
    ten steps) under three quarters of that, and when likelihood and entropy told of it."""
    names = ("best", "under 0.9", "fall", "decay alarm", "entropy", "level")
    head = (
        "runs", "reward at its best", "under 0.9 of it", "fall (under 0.75)", "decay alarm",
        f"entropy {SURGE:g} × its lowest", "level a tenth under its start",
    )
    runs = [events(run) for run in results.of(GRPO)]
    columns = [[v for e in runs if (v := e[name]) is not None] for name in names]
    cells = [
        f"{median(k):g} ({min(k)}–{max(k)}), {len(k)} of {len(runs)}" if k else "–" for k in columns
    ]
    return table(head, [[str(len(runs)), *cells]])


def events(run: Result) -> dict[str, int | None]:
    """Step of each event, from ten-step means (the entropy: three-step means over the lowest of
    ten, as the alarm has it); None for one that did not come."""
    reward, level = _whole(run, "reward"), _whole(run, "correct_logp").dropna()
    entropy = run.signals.set_index("step")["entropy"].astype(float)
    lowest = entropy.rolling(SMOOTH).mean().cummin()
    until = reward[: run.fall] if run.fall is not None else reward
    best = int(until.idxmax())
    return {
        "best": best,
        "under 0.9": first(reward[best:] < 0.9 * reward[best]),
        "fall": run.fall,
        "decay alarm": run.decay,
        "entropy": first(entropy.rolling(3).mean() >= SURGE * lowest),
        "level": first(level < CLEARLY * level.iloc[0]) if len(level) else None,
    }


def _whole(run: Result, column: str) -> pd.Series:
    """Means over SMOOTH steps, from the step on that has so many; the first one is the start."""
    return trailing(run.signals, column).iloc[SMOOTH - 1 :]


def first(condition: pd.Series) -> int | None:
    """The first step at which it holds."""
    steps = condition.index[condition.to_numpy(bool)]
    return int(steps[0]) if len(steps) else None
