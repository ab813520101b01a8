"""From where on one run differs from another, by more than that one's own noise.

Both are aligned by step. The noise of a signal is that of the first run: what it moves by from step
to step, and around its running median, whichever is larger. A difference of two runs that noisy is
tested over the last 1, 2, 4 and 8 steps; with the limit that is used, ALPHA of pairs that differ by
Gaussian noise alone are said to part, by a signal. The step that is named is the most likely
beginning of what exceeded the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from ..core.schema import SIGNALS, signals_in
from ..diagnosis import detectors as d
from ..diagnosis.evidence import floats
from ..run import Run
from .settings import differing, flat

DIFF_SCHEMA = 1
ALPHA = 0.01
WINDOWS = (1, 2, 4, 8)  # steps
LEAST = 8  # steps that both have measured
AROUND = 11  # steps of the running median
NOT_COMPARED = frozenset(signals_in("apart"))


@dataclass(frozen=True)
class Divergence:
    """A signal in two runs. From `step` on the second differs by more than the noise of the first;
    `first` and `second` are the means of both from there to where that is certain, and `sigmas`
    their difference in standard deviations of noise; None where it does not, `sigmas` also where
    the first run has no noise. `differs` is the first step at which they are not equal."""

    signal: str
    unit: str
    differs: int | None
    step: int | None
    first: float | None
    second: float | None
    noise: float
    sigmas: float | None


def sentence(first: str, second: str, steps: Sequence[tuple[str, int | None]]) -> str:
    """What was found in two runs of these names; `steps` are those of `divergences`, by signal."""
    pairs = [(name, step) for name, step in steps if step is not None]
    if not steps:
        return "No signal was measured at eight steps of both."
    if not pairs:
        return f"{second} stays within the noise of {first} in all {len(steps)} signals."
    name, step = pairs[0]
    return (
        f"{second} differs from {first} by more than its noise from step {step:,} on, first in "
        f"{name}; {len(pairs)} of {len(steps)} signals differ."
    )


def divergences(a: pd.DataFrame, b: pd.DataFrame) -> list[Divergence]:
    """Each signal that both have measured; those that differ come first, in the order of their
    steps."""
    both = a.merge(b, on="step", suffixes=("", "_b")).sort_values("step", ignore_index=True)
    results = []
    for column in SIGNALS.columns:
        if column.name in NOT_COMPARED or not {column.name} <= {*a} & {*b}:
            continue
        x, y = floats(both, column.name), floats(both, f"{column.name}_b")
        finite = np.isfinite(x) & np.isfinite(y)
        if np.count_nonzero(finite) >= LEAST:
            step = both["step"].to_numpy()[finite]
            results.append(_compared(column.name, column.unit, step, x[finite], y[finite]))
    return sorted(results, key=lambda one: (one.step is None, one.step, -(one.sigmas or 0)))


def _compared(name: str, unit: str, step: d.Series, x: d.Series, y: d.Series) -> Divergence:
    noise = _noise(x)
    unequal = np.flatnonzero(~np.isclose(x, y, rtol=1e-9, atol=0.0))
    differs = int(step[unequal[0]]) if len(unequal) else None
    scale = max(math.sqrt(2) * noise, 1e-9 * float(np.abs(x).max()), 1e-300)
    z = (y - x) / scale
    row = _first(z)
    if row is None:
        return Divergence(name, unit, differs, None, None, None, noise, None)
    start = _beginning(z, row)
    after = slice(start, row + 1)
    means = float(x[after].mean()), float(y[after].mean())
    sigmas = float(abs(z[after].mean())) if noise > 0 else None
    return Divergence(name, unit, differs, int(step[start]), *means, noise, sigmas)


def _noise(x: d.Series) -> float:
    """The standard deviation of a signal around its own course, robust against its jumps."""
    steps = 1.4826 * float(np.median(np.abs(np.diff(x)))) / math.sqrt(2)
    half = AROUND // 2
    series = np.pad(x, half, mode="edge")
    medians = np.median(np.lib.stride_tricks.sliding_window_view(series, AROUND), axis=1)
    return max(steps, 1.4826 * float(np.median(np.abs(x - medians))))


def _first(z: d.Series) -> int | None:
    """The first row at which a mean of the last steps is beyond the limit."""
    limit = NormalDist().inv_cdf(1 - ALPHA / (2 * len(z) * len(WINDOWS)))
    over = np.zeros(len(z), dtype=bool)
    for window in WINDOWS:
        over |= np.abs(d.trailing_mean(z, window, window)) * math.sqrt(window) > limit
    return int(np.flatnonzero(over)[0]) if over.any() else None


def _beginning(z: d.Series, row: int) -> int:
    """The row from which on the difference up to this one is most beyond noise."""
    back = np.cumsum(z[row::-1][: WINDOWS[-1]])
    return row - int(np.argmax(np.abs(back) / np.sqrt(np.arange(1, len(back) + 1))))


def diff(a: Run, b: Run) -> dict[str, Any]:
    """Two runs as plain data: the settings that differ, and from where on each signal differs."""
    configs = [flat(run.info.get("config")) for run in (a, b)]
    return {
        "schema": DIFF_SCHEMA,
        "runs": [{"run": run.name, "id": run.info.get("id"), "path": run.place} for run in (a, b)],
        "settings": [{"setting": k, "values": v} for k, v in differing(configs)],
        "signals": [asdict(one) for one in divergences(a.signals(), b.signals())],
    }
