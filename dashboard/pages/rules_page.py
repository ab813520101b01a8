"""The alarm rules as pages, from the same declarations as docs/alarms.md."""

from __future__ import annotations

from typing import Any

from dash import html

from lldscope.core import palette
from lldscope.core.schema import SIGNALS
from lldscope.diagnosis.page import describe_rule
from lldscope.diagnosis.registry import RULES, STALLED
from lldscope.diagnosis.rule import Declaration

from . import components as parts
from .frame import message_page
from .links import attrs

_ALL: tuple[Declaration, ...] = (*RULES, STALLED)
RULE_IDS = frozenset(rule.id for rule in _ALL)
_SIGNALS = {c.name: c for c in SIGNALS.columns}


def rules_page(path: str) -> html.Div:
    """All rules (`/rules`), or one (`/rules/ID`)."""
    rule_id = path.removeprefix("/rules").strip("/")
    if not rule_id:
        return _all()
    rule = next((r for r in _ALL if r.id == rule_id), None)
    if rule is None:
        return message_page(
            "There is no such rule",
            f"{rule_id} is not a built-in rule. User rules are described in the "
            "file they come from.",
        )
    return _one(rule)


def _all() -> html.Div:
    rows = [
        [
            parts.badge(palette.SEVERITIES[rule.severity]),
            html.A(rule.id, href=f"/rules/{rule.id}", className="run-link"),
            render(rule.meaning),
        ]
        for rule in _ALL
    ]
    table = parts.table(("severity", "rule", "meaning"), rows, look="card rules")
    return html.Div([parts.page_head("Alarm rules"), table])


def _one(rule: Declaration) -> html.Div:
    at = _ALL.index(rule)
    way = html.P([html.A("Alarm rules", href="/rules"), " › "], className="crumbs quiet")
    sign = palette.SEVERITIES[rule.severity]
    facts = [x for k, v in describe_rule(rule) for x in (html.Dt(k), html.Dd(render(v)))]
    others = [
        html.A(f"{word}: {_ALL[i].id}", href=f"/rules/{_ALL[i].id}", className="button",
               **attrs(data_key=key))
        for word, i, key in (("Previous", at - 1, "["), ("Next", at + 1, "]"))
        if 0 <= i < len(_ALL)
    ]
    return html.Div(
        [
            parts.page_head([rule.id, " ", parts.badge(sign)], above=way),
            html.Section(
                [html.P(render(rule.meaning), className="lead"), html.Dl(facts)],
                className="card rule-page",
            ),
            *_needs(rule),
            html.Div(others, className="pager"),
        ]
    )


def _needs(rule: Declaration) -> list[Any]:
    """The signals a rule needs, with unit and meaning."""
    signals = [_SIGNALS[n] for n in (*rule.needs, *rule.needs_too) if n in _SIGNALS]
    if not signals:
        return []
    rows = [[html.Code(c.name), c.unit or "–", render(c.meaning)] for c in signals]
    table = parts.table(("signal", "unit", "meaning"), rows, look="card rules")
    return [html.H2("Signals it needs", className="section"), table]


def render(text: str) -> list[Any]:
    """Text with what stands between backticks as code."""
    return [html.Code(t) if i % 2 else t for i, t in enumerate(text.split("`"))]
