"""The configuration of a run, or of several with what differs first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import html

from lldscope.core.terminal import visible
from lldscope.explore.settings import differing, flat

from ..data.snapshot import Snapshot
from . import components as parts
from .links import crumbs


def config_page(snapshots: Sequence[Snapshot]) -> html.Div:
    """The page of these runs; the address names the others after `with`."""
    configs = [flat(s.info.get("config")) for s in snapshots]
    title = "Configuration" if len(snapshots) == 1 else "Configurations"
    if len(snapshots) > 1:
        body = settings_table(snapshots)
        unlike = {name for name, _ in differing(configs)}
        same = [(k, [v]) for k, v in configs[0].items() if k not in unlike]
        body.append(html.H2(f"{len(same)} settings are the same", className="section"))
        body.append(_table(snapshots[:1], same))
    else:
        body = [_table(snapshots, [(k, [v]) for k, v in configs[0].items()])]
    if not any(configs):
        body = [html.P("The run has no configuration recorded.", className="note")]
    way = crumbs(snapshots[0].name, snapshots[0].title)
    return html.Div([parts.page_head(title, above=way), *body])


def settings_table(snapshots: Sequence[Snapshot]) -> list[Any]:
    """The settings that differ between runs, under a heading."""
    rows = differing([flat(s.info.get("config")) for s in snapshots])
    many = f"{len(rows)} settings differ" if len(rows) != 1 else "1 setting differs"
    return [html.H2(many, className="section"), *([_table(snapshots, rows)] if rows else [])]


def _table(snapshots: Sequence[Snapshot], rows: Sequence[tuple[str, list[str]]]) -> html.Div:
    heads = (
        [parts.run_link(s.subject.name, s.title) for s in snapshots]
        if len(snapshots) > 1
        else ["value"]
    )
    body = [
        [html.Th(html.Code(visible(name, 200)), scope="row"), *(visible(v, 2000) for v in values)]
        for name, values in rows
    ]
    table = parts.table(("setting", *heads), body, look="card config", rest="wrap")
    return html.Div(table, className="wide")
