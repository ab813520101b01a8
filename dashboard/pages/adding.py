"""Below the charts: any other metric as a chart, found by substring or regular expression.

The browser searches the names, which it has, and adds a chart without loading the page again; the
address keeps it (assets/lldscope.js).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from lldscope.core.terminal import visible

from ..data.metrics import chart_of
from ..data.snapshot import Snapshot
from .drawing import MOST_ADDED, all_keys

# Metrics that are offered before anything is typed, where they are there.
OFFERED = ("action-map", "step_kl", "lr", "loss_policy", "success", "step_seconds")


def adding(
    snapshots: Sequence[Snapshot], defaults: Sequence[str], compared: bool = False
) -> html.Section:
    """A field that finds metrics of these runs."""
    columns = [column for snapshot in snapshots for column in snapshot.columns]
    keys = [key for key in all_keys(snapshots, compared) if key not in defaults]
    offered = [key for key in keys if key in OFFERED or key.startswith("eval/")]
    options = [[key, _label(key, columns), key in offered] for key in keys]
    field = dcc.Input(
        id="find-chart", type="search", className="find",
        placeholder=f"{len(keys)} more: part of a name, or a regular expression",
    )
    parts: list[Any] = [
        html.Label([html.Span("add a chart", className="key"), field]),
        html.Div(id="matches", className="matches"),
        dcc.Store(id="metrics", data={"options": options, "most": MOST_ADDED}),
    ]
    return html.Section(parts, className="adding", id="adding")


def _label(key: str, columns: Sequence[str]) -> str:
    chart = chart_of(key, columns)
    unit = f" ({chart.unit})" if chart and chart.unit else ""
    return visible(f"{chart.title if chart else key}{unit}", 80)
