"""The charts of a page: their keys, figures and cards, and the field that adds a chart.

The address keeps which charts were added (assets/lldscope.js).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from lldscope.core.charts import Chart
from lldscope.core.terminal import visible
from lldscope.explore.responses import action_map
from lldscope.figures.chart_figures import CHARTS, Figure, make_chart, make_overlay
from lldscope.figures.series import x_axis
from lldscope.figures.view import View

from ..data.metrics import chart_of, has_values, keys_of, with_columns
from ..data.snapshot import Snapshot
from ..figures.action_map import ACTION_MAP, make_action_map
from . import components
from .frame import Query

MOST_ADDED = 60  # charts that an address may add
DEFAULTS = {chart.id: chart for chart in CHARTS}
ALSO = ("kl", "clip_share")  # signals that have a chart where they were recorded


def default_keys(snapshots: Sequence[Snapshot]) -> list[str]:
    """The charts of a page before the reader adds some; KL and clip share only if recorded."""
    tables = [snapshot.subject.table for snapshot in snapshots]
    return [*DEFAULTS, *(key for key in ALSO if any(has_values(table, key) for table in tables))]


def keys_asked(snapshots: Sequence[Snapshot], query: Query) -> list[str]:
    """The default charts, and those that the address adds."""
    return list(dict.fromkeys([*default_keys(snapshots), *query.get("chart", [])[:MOST_ADDED]]))


def charts_of(
    keys: Sequence[str], snapshots: Sequence[Snapshot], compared: bool = False
) -> list[Chart]:
    """The charts of these keys; a key that no run has is passed over."""
    columns = [column for snapshot in snapshots for column in snapshot.columns]
    charts: dict[str, Chart] = {}
    for key in keys:
        chart = DEFAULTS.get(key) or chart_of(key, columns)
        if chart is not None and not (compared and chart is ACTION_MAP):
            charts[chart.id] = chart
    return list(charts.values())


def cards_of(
    charts: Sequence[Chart], figures: Sequence[Figure], view: View, name: str | None = None
) -> list[Any]:
    """A card for each chart: of the run of this `name`, or of several."""
    cards = []
    for chart, figure in zip(charts, figures, strict=True):
        note = chart.note if name else f"{chart.compared or chart.note}; vertical line: decay alarm"
        legend = components.legend_of(chart) if name else []
        cards.append(components.chart_card(chart, figure, legend, note, chart.id in view.log))
    return cards


def draw(
    snapshots: Sequence[Snapshot],
    charts: Sequence[Chart],
    view: View,
    subset: set[str] | None = None,
    names: Sequence[str] = (),
) -> list[Figure]:
    """The charts of one run, or of the runs in `subset`."""
    of_charts = [[with_columns(s, chart) for s in snapshots] for chart in charts]
    if subset is not None:
        return [
            make_overlay(chart, subjects, subset, view, names)
            for chart, subjects in zip(charts, of_charts, strict=True)
        ]
    axis = x_axis([subjects[0].table for subjects in of_charts], view.by)
    return [
        make_action_map(action_map(snapshots[0].run), subject, axis) if chart is ACTION_MAP
        else make_chart(chart, subject, view, axis)
        for chart, (subject,) in zip(charts, of_charts, strict=True)
    ]


def adding(
    snapshots: Sequence[Snapshot], charts: Sequence[Chart], defaults: Sequence[str],
    compared: bool = False,
) -> html.Section:
    """A field that finds metrics of these runs; each chosen metric gets a chart after the
    `defaults`."""
    columns = [column for snapshot in snapshots for column in snapshot.columns]
    keys = dict.fromkeys(k for s in snapshots for k in keys_of(s.columns, s.subject.table)
                         if k not in defaults and not (compared and k == ACTION_MAP.id))
    field = dcc.Dropdown(
        id="more", options=[{"value": key, "label": _label(key, columns)} for key in keys],
        value=[chart.id for chart in charts if chart.id not in defaults], multi=True, maxHeight=400,
        placeholder=f"{len(keys)} more metrics",
    )
    label = html.Label("add charts", htmlFor="more", className="key")
    return html.Section([label, field], className="adding", id="adding")


def _label(key: str, columns: Sequence[str]) -> str:
    chart = chart_of(key, columns)
    unit = f" ({chart.unit})" if chart and chart.unit else ""
    return visible(f"{chart.title if chart else key}{unit}", 80)
