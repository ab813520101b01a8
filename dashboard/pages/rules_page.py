"""The alarm rules on one page, from the same declarations as docs/alarms.md."""

from __future__ import annotations

from typing import Any

from dash import html

from lldscope.core import palette
from lldscope.diagnosis.page import describe_rule
from lldscope.diagnosis.registry import RULES, STALLED

from . import components as parts

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
