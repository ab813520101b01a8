"""Do correct responses lose more beside incorrect ones that are unlikely, long, or began well?

Groups are compared with groups of the same step, so that what all of a step share does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..signals.detectors import Series
from ..signals.evidence import Flags

LEAST_STEPS = 5  # steps with groups on both sides before a contrast is computed

# For each contrast a column of the groups, and which of its values within a step have the property.
_PROPERTIES: dict[str, tuple[str, Callable[[Series], Flags]]] = {
    "low_likelihood": ("wrong_logp", lambda values: values < np.median(values)),
    "long": ("wrong_tokens", lambda values: values > np.median(values)),
    "good_first_action": ("n_good_first", lambda values: values > 0),
}


@dataclass(frozen=True)
class Contrast:
    """Mean Δ of correct responses in groups with and without a property, over `n_steps` steps.

    `error` is the standard error of `difference`; `supported` where that is more than two of them
    below 0. None with fewer than LEAST_STEPS steps.
    """

    contrast: str
    n_steps: int
    with_: float | None = None
    without: float | None = None
    difference: float | None = None
    error: float | None = None
    supported: bool | None = None


def contrasts(groups: pd.DataFrame) -> list[Contrast]:
    """One contrast for each property; `groups` has a row per mixed group (`losses`)."""
    computed = []
    for name, (column, test) in _PROPERTIES.items():
        pairs = []
        for _, of_step in groups.dropna(subset=[column, "delta"]).groupby("step"):
            there = test(of_step[column].to_numpy(dtype=float))
            if there.any() and not there.all():
                delta = of_step["delta"].to_numpy(dtype=float)
                pairs.append((delta[there].mean(), delta[~there].mean()))
        computed.append(_contrast(name, np.array(pairs)))
    return computed


def _contrast(name: str, pairs: np.ndarray) -> Contrast:
    if len(pairs) < LEAST_STEPS:
        return Contrast(name, len(pairs))
    gap = pairs[:, 0] - pairs[:, 1]
    mean, error = float(gap.mean()), float(gap.std(ddof=1) / np.sqrt(len(gap)))
    there, elsewhere = (float(side.mean()) for side in pairs.T)
    return Contrast(name, len(pairs), there, elsewhere, mean, error, mean < -2.0 * error)
