"""What the machine did while a run trained: step time, and what else was recorded of it."""

from __future__ import annotations

from dash import html

from ..data.metrics import STEP_SECONDS, machine_keys
from ..data.snapshot import Snapshot
from . import components as parts
from .drawing import cards_of, charts_of, draw
from .frame import PAUSE, controls, memory, part_id, view_of
from .links import Query, crumbs


def system_page(snapshot: Snapshot, query: Query) -> html.Div:
    """The page. Raises LldscopeError if the run cannot be read."""
    view = view_of(query)
    keys = sorted(machine_keys(snapshot), key=lambda key: key != STEP_SECONDS)
    charts = charts_of(keys, [snapshot])
    figures = draw([snapshot], charts, view)
    cards = cards_of(charts, figures, keys, snapshot.name)
    lacks = "Neither step time nor use of GPU or memory was recorded in this run."
    way = crumbs(snapshot.name, snapshot.title)
    return html.Div(
        [
            parts.page_head("System", PAUSE, above=way),
            html.Div(parts.status_line(snapshot), id=part_id("status"), className="status"),
            controls(view),
            html.Div(cards, className="charts", id="cards")
            if cards
            else html.P(lacks, className="note"),
            *memory([snapshot], None, view, charts, figures, keys),
        ]
    )
