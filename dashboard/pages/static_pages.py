"""The settings of a run, and those that differ between runs."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html

from lldscope.core.terminal import visible
from lldscope.explore.settings import differing, flat

from ..data.snapshot import Snapshot
from . import components as parts
from .frame import Query, crumbs


def config_page(snapshot: Snapshot, query: Query) -> html.Div:
    """The page of a run."""
    config = flat(snapshot.info.get("config"))
    body = (
        _table(["value"], [(k, [v]) for k, v in config.items()])
        if config
        else html.P("The run has no configuration recorded.", className="note")
    )
    way = crumbs(snapshot.name, snapshot.title)
    return html.Div([parts.page_head("Settings", above=way), body])


def different_settings(snapshots: Sequence[Snapshot]) -> html.Details:
    """The settings that differ between runs, folded."""
    rows = differing([flat(s.info.get("config")) for s in snapshots])
    many = f"{len(rows)} settings differ" if len(rows) != 1 else "1 setting differs"
    heads = [parts.run_link(s.name, s.title) for s in snapshots]
    return html.Details(
        [html.Summary(many), *([_table(heads, rows)] if rows else [])], className="fold card"
    )


def _table(heads: Sequence[object], rows: Sequence[tuple[str, list[str]]]) -> html.Div:
    body = [
        [html.Th(html.Code(visible(name, 200)), scope="row"), *(visible(v, 2000) for v in values)]
        for name, values in rows
    ]
    table = parts.table(("setting", *heads), body, look="card config", rest="wrap")
    return html.Div(table, className="wide")
