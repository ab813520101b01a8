"""One run: status line, eight charts, and under them alarms, look-alikes and events."""

from __future__ import annotations

from dash import html

from ..data.run_registry import RunRegistry
from ..data.snapshot import Snapshot
from ..figures import wording as words
from ..figures.chart_figures import CHARTS, make_chart
from . import alarm_cards
from . import components as parts
from .frame import PAUSE, controls, memory, part_id, view_of
from .links import Query


def run_page(registry: RunRegistry, name: str, query: Query) -> html.Div:
    """The page of a run. Raises LldscopeError if it cannot be read."""
    snapshot = registry.snapshot(name)
    view = view_of(query)
    figures = [make_chart(c, snapshot.subject, view) for c in CHARTS]
    cards = [
        parts.chart_card(c, figure, parts.legend_of(c), c.note)
        for c, figure in zip(CHARTS, figures, strict=True)
    ]
    info = snapshot.info
    facts = [info.get("group"), info.get("trainer"), info.get("correct_rule")]
    known = " · ".join(str(f) for f in facts if f)
    return html.Div(
        [
            _head(words.visible(info.get("name") or name), words.visible(known), snapshot),
            html.Div(parts.notes(snapshot), id=part_id("notes")),
            controls(view, parts.page_links(snapshot)),
            html.Div(cards, className="charts"),
            _below(snapshot),
            *memory([snapshot], None, view, figures),
        ]
    )


def _head(title: str, facts: str, snapshot: Snapshot) -> html.Header:
    return html.Header(
        [
            html.Div([html.H1(title), html.Span(facts, className="quiet")], className="title"),
            PAUSE,
            html.Div(parts.status_line(snapshot), id=part_id("status"), className="status"),
        ],
        className="page-head sticky run-head",
    )


def _below(snapshot: Snapshot) -> html.Div:
    """Alarms on the left, look-alikes and events on the right."""
    alike = [
        html.H2("Look-alikes"),
        html.P("Causes that look the same on a reward curve.", className="note"),
        html.Div(alarm_cards.look_alikes(snapshot), id=part_id("look-alikes")),
    ]
    happened = [html.H2("Events"), html.Div(parts.events(snapshot), id=part_id("events"))]
    fired = [html.H2("Alarms"), html.Div(alarm_cards.alarms(snapshot), id=part_id("alarms"))]
    right = [html.Section(alike, className="card"), html.Section(happened, className="card")]
    return html.Div([html.Section(fired, className="card"), html.Div(right)], className="below")
