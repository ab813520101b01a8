"""Runs of one group as one line: their mean at each step, and a band from lowest to highest.

Each run counts once at each step it has, whatever its number of responses; what is averaged are the
trailing means, so the line is inside its band. That is right for one signal over steps, and for
nothing that sums over them. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..core.terminal import visible
from .marks import onset_line
from .series import Numbers, Thinned, XAxis, floats, positions, thin, trace

if TYPE_CHECKING:
    from .view import Subject

BAND = 0.16  # opacity


def lines_of(names: Sequence[str], groups: Mapping[str, str]) -> dict[str, list[str]]:
    """Line → its runs, in order: a line for each group, and for each run that is in none."""
    lines: dict[str, list[str]] = {}
    for name in names:
        # a slash at the end keeps groups apart from runs of the same name
        key = f"{groups[name]}/" if name in groups else name
        lines.setdefault(key, []).append(name)
    return lines


def spread_of(
    tables: Sequence[pd.DataFrame], values: Sequence[Numbers], axis: XAxis
) -> pd.DataFrame:
    """A row for each step that any run has: its place `x` on the axis, `mean`, `min` and `max` of
    the runs. On an axis that counts from an event, by steps since that."""
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
    """Traces: the band and the mean. Marks: each run's decay alarm,
    faintly. And the points of the mean."""
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
