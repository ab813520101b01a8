"""Δ of correct responses by action index and step, as a map. Pure.

Its cells are bars with a base, which the small bundle of plotly.js can draw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lldscope.core import palette
from lldscope.core.charts import Chart
from lldscope.figures import marks
from lldscope.figures.chart_figures import Figure
from lldscope.figures.layout import chart_layout
from lldscope.figures.marks import alarm_labels
from lldscope.figures.series import XAxis, at_steps
from lldscope.figures.view import Subject

ACTION_MAP = Chart(
    "action-map", "Δ by action and step", "action",
    "correct responses, mean over actions; blue gained, vermillion lost, grey: not measured", (),
)
_SCALE = [[0.0, palette.VERMILLION], [0.5, "rgba(128,128,128,0.18)"], [1.0, palette.BLUE]]


def make_action_map(cells: pd.DataFrame, subject: Subject, axis: XAxis) -> Figure:
    """The chart, with the alarms of the run; a cell is some steps wide and one action high."""
    window = axis.extent
    layout = chart_layout(ACTION_MAP, axis, window)
    layout["annotations"], layout["shapes"] = [], []
    if not len(cells):
        layout["meta"] |= {"remarks": "Not measured in this run", "measured": False}
        return {"data": [], "layout": layout}
    layout["annotations"] = list(alarm_labels(subject.table, subject.alerts, axis, window))
    layout["shapes"] = marks.alarm_lines(subject.table, subject.alerts, axis, window)
    layout["yaxis"] |= {"dtick": 1, "autorange": "reversed", "rangemode": "normal"}
    ends = [cells["first_step"] - 0.5, cells["last_step"] + 0.5]
    if axis.by == "step":
        left, right = (end.to_numpy(float) for end in ends)
    else:
        left, right = (np.array(at_steps(subject.table, axis, list(end))) for end in ends)
    delta = cells["delta"].to_numpy(float)
    full = full_color(delta)
    layout["meta"] |= {"remarks": f"full colour at ±{full:g} nats", "measured": True}
    bars: dict[str, Any] = {
        "type": "bar", "name": "Δ", "yaxis": "y", "opacity": 1.0,
        "x": ((left + right) / 2).tolist(), "width": (right - left).tolist(),
        "y": [0.9] * len(cells), "base": (cells["action_index"] - 0.45).tolist(),
        "customdata": [
            f"action {a}, steps {s}–{e}: Δ {d:+.3g} nats"
            for a, s, e, d in zip(cells["action_index"], cells["first_step"], cells["last_step"],
                                  delta, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "color": np.nan_to_num(delta).tolist(), "colorscale": _SCALE,
            "cmin": -full, "cmax": full, "line": {"width": 0},
        },
    }
    return {"data": [bars], "layout": layout}


def full_color(deltas: np.ndarray) -> float:
    """|Δ| at which a cell has the full colour: nine in ten lie below it."""
    sizes = np.abs(deltas[np.isfinite(deltas)])
    return float(f"{max(float(np.quantile(sizes, 0.9)) if len(sizes) else 1.0, 0.01):.1g}")
