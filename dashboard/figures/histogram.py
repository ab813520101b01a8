"""A histogram by step as a chart: steps across, values up, the stronger the more rows. Pure.

Rectangles are bars with a base, which the small bundle of plotly.js can draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lldscope.core import palette
from lldscope.core.charts import Chart
from lldscope.figures import marks
from lldscope.figures.chart_figures import Figure
from lldscope.figures.labels import alarm_labels
from lldscope.figures.layout import chart_layout
from lldscope.figures.series import Thinned, XAxis, at_steps, positions, trace, x_axis
from lldscope.figures.view import Subject, View

FAINTEST, STRONGEST = 0.06, 0.95  # opacity of a bin with next to none, with all rows of its steps


@dataclass(frozen=True)
class Histogram(Chart):
    """A chart of how rows are distributed: of `value`, an expression over the rows of `source`."""

    source: str = ""
    value: str = ""
    whole: bool = False  # values are whole numbers


@dataclass(frozen=True)
class Bins:
    """`cells`: first and last step, low and high end, count of each bin that is not empty.
    `columns`: first and last step, median and count of each range of steps. `every`: only each so
    many steps were counted."""

    cells: pd.DataFrame
    columns: pd.DataFrame
    every: int = 1


def steps_in_view(subject: Subject, view: View, axis: XAxis) -> tuple[int, int] | None:
    """The first and the last step that the view shows; None where it shows all."""
    zoom = axis.shown(view.zoom)
    if zoom is None:
        return None
    x, step = positions(subject.table, axis), subject.table["step"].to_numpy()
    inside = step[(x >= zoom[0]) & (x <= zoom[1])]
    return (int(inside.min()), int(inside.max())) if len(inside) else (0, -1)


def make_histogram(
    chart: Histogram, bins: Bins, subject: Subject, view: View, axis: XAxis | None = None
) -> Figure:
    """The chart, with the phases and alarms of the run. `axis`: that of the charts beside it."""
    axis = axis or x_axis([subject.table], view.by)
    window = axis.shown(view.zoom) or axis.extent
    layout = chart_layout(chart, axis, window)
    layout["yaxis"]["rangemode"] = "normal"
    layout["shapes"] = marks.alarm_lines(subject.table, subject.alerts, axis, window)
    layout["annotations"] = list(alarm_labels(subject.table, subject.alerts, axis, window))
    cells, columns = bins.cells, bins.columns
    notes = [f"{int(columns['n'].sum()):,} rows"] if len(columns) else ["Not measured in this run"]
    if bins.every > 1:
        notes.append(f"of every {bins.every:,}th step")
    layout["meta"] |= {"remarks": " ".join(notes), "measured": len(columns) > 0}
    median = Thinned(_middles(subject, axis, columns), columns["median"].tolist(), 0, 0, 0)
    line = trace(median, "median", palette.VERMILLION, 1.5, "solid")
    line["mode"] = "lines" if len(columns) > 1 else "markers"
    return {"data": [_rectangles(cells, subject, axis), line], "layout": layout}


def _rectangles(cells: pd.DataFrame, subject: Subject, axis: XAxis) -> dict[str, Any]:
    left, right = _edges(subject, axis, cells)
    of_steps = cells.groupby("first")["n"].transform("sum")
    share = np.sqrt(cells["n"] / of_steps)
    r, g, b = (int(palette.BLUE[i : i + 2], 16) for i in (1, 3, 5))
    scale = [[i, f"rgba({r},{g},{b},{a})"] for i, a in enumerate((FAINTEST, STRONGEST))]
    return {
        "type": "bar",
        "name": "rows",
        "x": ((left + right) / 2).tolist(),
        "y": (cells["high"] - cells["low"]).tolist(),
        "base": cells["low"].tolist(),
        "width": (right - left).tolist(),
        "marker": {
            "color": share.round(3).tolist(), "colorscale": scale, "cmin": 0, "cmax": 1,
            "line": {"width": 0},
        },
        "meta": 0,
        "yaxis": "y",
        "hoverinfo": "skip",
    }


def _middles(subject: Subject, axis: XAxis, columns: pd.DataFrame) -> list[float]:
    left, right = _edges(subject, axis, columns)
    return ((left + right) / 2).tolist()


def _edges(subject: Subject, axis: XAxis, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Where ranges of steps begin and end on the axis: half a step before and after."""
    both = [rows["first"] - 0.5, rows["last"] + 0.5]
    if axis.by == "step":
        return both[0].to_numpy(float), both[1].to_numpy(float)
    left, right = (np.array(at_steps(subject.table, axis, list(ends))) for ends in both)
    return left, right
