"""The pages that do not refresh: the settings of runs, and the alarm rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import html

from lldscope.core import palette
from lldscope.core.terminal import visible
from lldscope.diagnosis.page import describe_rule
from lldscope.diagnosis.registry import RULES, STALLED
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


RULE_IDS = frozenset(rule.id for rule in (*RULES, STALLED))


def rules_page() -> html.Div:
    """Every rule: severity, what it means, what it looks at, what to do, how often it is wrong."""
    cards = []
    for rule in (*RULES, STALLED):
        facts = [x for k, v in describe_rule(rule) for x in (html.Dt(k), html.Dd(render(v)))]
        head = html.Header([html.H2(html.A(rule.id, href=f"#{rule.id}")),
                            parts.badge(palette.SEVERITIES[rule.severity])], className="status")
        body = html.Details([html.Summary("Conditions and what to do"), html.Dl(facts)])
        content = [head, html.P(render(rule.meaning)), body]
        cards.append(html.Section(content, className="card rule alarm", id=rule.id))
    return html.Div([parts.page_head("Alarm rules"), *cards])


def render(text: str) -> list[Any]:
    """Text with what stands between backticks as code."""
    return [html.Code(t) if i % 2 else t for i, t in enumerate(text.split("`"))]
