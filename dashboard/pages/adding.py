"""Below the charts: any other metric as a chart, found by typing; the address keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from typing import Any

from dash import dcc, html

from ..data.histograms import HISTOGRAMS
from ..data.metrics import chart_of, keys_of
from ..data.snapshot import Snapshot
from ..figures.wording import visible
from .links import attrs

# Metrics that are offered by a button where they are there.
OFFERED = (
    "kl", "lr", "loss_policy", "clip_share", "success", "step_seconds", "histogram/advantage",
    "histogram/length",
)  # fmt: skip
MOST_OFFERED = 10


def adding(
    snapshots: Sequence[Snapshot], added: Sequence[str], compared: bool = False
) -> html.Section:
    """A field that finds metrics of these runs, and a button for some of them. Where runs are
    `compared` there are no histograms."""
    keys: dict[str, None] = {}
    for snapshot in snapshots:
        keys |= dict.fromkeys(keys_of(snapshot.columns, snapshot.subject.table))
    left = [key for key in keys if key not in added and not (compared and key in HISTOGRAMS)]
    columns = [column for snapshot in snapshots for column in snapshot.columns]
    options = dumps([[key, _label(key, columns)] for key in left])
    offered = [key for key in left if key.startswith("eval/")]
    offered = [*offered[:4], *(key for key in OFFERED if key in left)][:MOST_OFFERED]
    field = dcc.Input(
        id="add-chart", list="metrics", placeholder=f"{len(left)} more metrics: type a name",
        debounce=True, className="find",
    )  # fmt: skip
    buttons = [
        html.Button(
            _label(key, columns) if key in HISTOGRAMS else visible(key.removeprefix("eval/"), 40),
            className="button small", **attrs(data_add=key),
        )
        for key in offered
    ]  # fmt: skip
    label: Any = html.Label([html.Span("add a chart", className="key"), field])
    lacks = [] if any(key in HISTOGRAMS for key in [*left, *added]) else [_without(compared)]
    parts = [label, html.Datalist(id="metrics", **attrs(data_options=options)), *buttons, *lacks]
    return html.Section(parts, className="adding", id="adding")


def _without(compared: bool) -> html.Span:
    """Why no histogram can be chosen."""
    text = (
        "Distributions by step are on the page of each run."
        if compared
        else "No distributions by step: no rows of single responses are recorded."
    )
    return html.Span(text, className="quiet note")


def _label(key: str, columns: Sequence[str]) -> str:
    chart = chart_of(key, columns)
    unit = f" ({chart.unit})" if chart and chart.unit else ""
    return visible(f"{chart.title if chart else key}{unit}", 80)
