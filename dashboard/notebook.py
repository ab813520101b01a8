"""`run.plot()`: the dashboard's charts of a run as one Plotly figure, for notebooks.

Needs plotly, not Dash: only the pure functions from tables to figures are used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lldscope.core.charts import Chart
from lldscope.core.errors import UsageError
from lldscope.figures.chart_figures import CHARTS, make_chart
from lldscope.figures.layout import has_evidence
from lldscope.figures.view import View, subject_of
from lldscope.monitor.health import check
from lldscope.runs import Run

ROW = 280  # height of a chart with its title, pixels


def plot(run: Run, signals: Sequence[str] | None = None) -> Any:
    """Charts of the run over steps, one below the other, as a plotly.graph_objects.Figure.

    `signals` names charts by id or by a signal they show; by default all of them. Raises UsageError
    for a name that no chart knows.
    """
    import plotly.graph_objects as go

    charts = CHARTS if signals is None else tuple(dict.fromkeys(map(_chart, signals)))
    subject = subject_of(run.name, run, check(run))
    data: list[Any] = []
    layout: dict[str, Any] = {"shapes": [], "annotations": []}
    for i, chart in enumerate(charts):
        _add(data, layout, make_chart(chart, subject, View()), chart, i, len(charts))
    layout |= {
        "height": 90 + ROW * len(charts), "hovermode": "x", "showlegend": True,
        "legend": {"orientation": "h", "yanchor": "top", "y": 0.0},
        "margin": {"l": 60, "r": 60, "t": 40, "b": 40}, "title": {"text": subject.called},
    }
    return go.Figure({"data": data, "layout": layout})


def _chart(name: str) -> Chart:
    for chart in CHARTS:
        columns = [line.column for line in chart.lines]
        if name == chart.id or name in columns or f"{name}_trim" in columns:
            return chart
    ids = ", ".join(chart.id for chart in CHARTS)
    raise UsageError(f"No chart shows {name}. There are: {ids}, and the signals they draw.")


def _add(
    data: list[Any], layout: dict[str, Any], figure: Any, chart: Chart, i: int, n: int
) -> None:
    """Put a chart into its row: its axes, shapes and notes get numbers of their own."""
    x, y, right = (
        ("x", "y", "y2") if i == 0 else (f"x{2 * i + 1}", f"y{2 * i + 1}", f"y{2 * i + 2}")
    )
    top = 1.0 - i / n
    frame = figure["layout"]
    across = {"anchor": y, "matches": "x" if i else None}
    layout[x.replace("x", "xaxis")] = frame["xaxis"] | across
    up = {
        "anchor": x,
        "gridcolor": "rgba(128,128,128,0.2)",
        "domain": [top - 0.86 / n, top - 0.28 / n],
    }
    layout[y.replace("y", "yaxis")] = frame["yaxis"] | up
    if has_evidence(chart) or "yaxis2" in frame:
        layout[right.replace("y", "yaxis")] = frame["yaxis2"] | {
            "overlaying": y, "anchor": x, "side": "right", "domain": None,
        }
    for trace in figure["data"]:
        of = {"xaxis": x, "yaxis": right if trace["yaxis"] == "y2" else y}
        ghost = trace["name"].endswith(", raw")
        data.append(
            trace | of | {"showlegend": not ghost, "name": f"{chart.title}: {trace['name']}"}
        )
    layout["annotations"].append(
        {
            "text": f"<b>{chart.title}</b>, {chart.note}", "showarrow": False, "xanchor": "left",
            "x": 0, "xref": f"{x} domain", "y": top - 0.02 / n, "yref": "paper", "yanchor": "top",
        }
    )
    for shape in frame["shapes"]:
        along = f"{x} domain" if shape.get("xref") == "paper" else x
        place = {"paper": f"{y} domain", "y2": right}.get(shape.get("yref", "y"), y)
        layout["shapes"].append(shape | {"xref": along, "yref": place})
    for note in frame["annotations"]:
        along = x if note["xref"] == "x" else f"{x} domain"
        layout["annotations"].append(note | {"xref": along, "yref": f"{y} domain"})
