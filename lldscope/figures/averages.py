"""Runs of one group as one line: their mean at each step, and a band from lowest to highest.

Each run counts once per step, whatever its number of responses. The line averages trailing means,
so it lies inside its band. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from ..core.terminal import visible
from .marks import onset_line
from .series import Numbers, Thinned, XAxis, floats, positions, thin, trace
from .view import Subject

BAND = 0.16  # opacity


def lines_of(names: Sequence[str], groups: Mapping[str, str]) -> dict[str, list[str]]:
    """Line → its runs, in order: one line per group, and one per run without a group."""
    lines: dict[str, list[str]] = {}
    for name in names:
        # The slash at the end keeps a group apart from a run of the same name.
        key = f"{groups[name]}/" if name in groups else name
        lines.setdefault(key, []).append(name)
    return lines


def spread_of(
    tables: Sequence[pd.DataFrame], values: Sequence[Numbers], axis: XAxis
) -> pd.DataFrame:
    """A row for each step of any run: its position `x` on the axis, and `mean`, `min` and `max` of
    the runs. On the axis of steps since the onset of decay, rows are matched by these steps."""
    rows = [
        pd.DataFrame({
            "step": floats(table, "onset" if axis.by == "onset" else "step"),
            "x": positions(table, axis), "y": y,
        })
        for table, y in zip(tables, values, strict=True)
    ]
    by_step = pd.concat(rows).replace([np.inf, -np.inf], np.nan).dropna().groupby("step")
    return by_step["y"].agg(["mean", "min", "max"]).assign(x=by_step["x"].mean())


def group_line(
    name: str, style: tuple[str, str], runs: Sequence[Subject], values: Sequence[Numbers],
    axis: XAxis, zoom: tuple[float, float] | None, most: int,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Thinned]:
    """The traces of band and mean; a faint mark for the decay alarm of each run; and the points of
    the mean."""
    of = spread_of([run.table for run in runs], values, axis).astype(float)
    color, dash = style
    label = escape(visible(name))
    low, high, mean = (
        thin(of["x"].to_numpy(), of[name].to_numpy(), zoom, most) for name in ("min", "max", "mean")
    )
    fill = "rgba({}, {}, {}, {})".format(*(int(color[i : i + 2], 16) for i in (1, 3, 5)), BAND)
    traces = [
        trace(low, f"{label}, lowest run", color, 0, "solid"),
        trace(high, f"{label}, highest run", color, 0, "solid")
        | {"fill": "tonexty", "fillcolor": fill},
        trace(mean, f"{label}, mean", color, 2.5, dash),
    ]
    onsets = [
        shape | {"opacity": 0.35, "label": {}}
        for run in runs
        for shape in onset_line(run.table, run.alerts, axis, color, dash)
    ]
    return traces, onsets, mean
