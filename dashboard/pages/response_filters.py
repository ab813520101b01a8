"""The filters of the grid of responses: from an address, into an address, and as a form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dash import dcc, html

from lldscope.explore.responses import ORDERS, LargestDrops, ResponseQuery

from .links import Query, address, text, whole, yes_no

# Name in the address → field of a ResponseQuery, and how it is read.
_FILTERS: dict[str, tuple[str, Callable[[Query, str], Any]]] = {
    "first": ("first", whole),
    "last": ("last", whole),
    "correct": ("correct", yes_no),
    "tokens": ("tokens", yes_no),
    "text": ("text", text),
}


@dataclass(frozen=True)
class Grid:
    """What the grid of a run's responses shows, in which order, and the alarm that led there."""

    name: str
    query: ResponseQuery
    order: str
    descending: bool
    alarm: str | None
    at: int | None  # the step at which the alarm fired

    def href(self, **more: Any) -> str:
        """The address of this grid."""
        return address("responses", self.name, **self.fields(), **more)

    def fields(self) -> dict[str, Any]:
        """The query of its address."""
        query: dict[str, Any] = {"alarm": self.alarm, "at": self.at}
        for name, (field, read) in _FILTERS.items():
            value = getattr(self.query, field)
            query[name] = {True: "yes", False: "no"}.get(value) if read is yes_no else value
        query |= {"sort": self.order, "way": "down" if self.descending else None}
        if self.query == ResponseQuery() and self.at is not None:
            query["all"] = "yes"
        return query


def grid_of(name: str, query: Query, drops: LargestDrops | None = None) -> Grid:
    """The grid that an address asks for; what it says wrongly is passed over.

    From an alarm (`drops`) and without a filter of its own, the address shows the correct
    responses that lost most there, first.
    """
    filters = ResponseQuery(**{field: read(query, key) for key, (field, read) in _FILTERS.items()})
    order = text(query, "sort") or ""
    order = order if order in ORDERS else "step" if drops is None else "delta"
    if drops is not None and filters == ResponseQuery() and text(query, "all") is None:
        fields = True if drops.tokens else None
        filters = ResponseQuery(drops.first, drops.last, correct=True, tokens=fields)
    down = text(query, "way") == "down"
    return Grid(name, filters, order, down, text(query, "alarm"), whole(query, "at"))


def form(grid: Grid) -> html.Form:
    """The filters as fields; the order and the alarm are hidden ones."""
    now = grid.fields()

    def field(key: str, kind: Any, width: float, **more: Any) -> Any:
        return dcc.Input(
            id={"type": "want", "index": key}, name=key, value=now[key], type=kind,
            style={"width": f"{width}em"}, **more,
        )

    def want(title: str, content: Any) -> html.Label:
        return html.Label([html.Span(title, className="key"), content], className="want")

    def choice(title: str, key: str) -> html.Label:
        choices = [
            html.Option(word, value=value, selected="selected" if value == now[key] else None)
            for value, word in (("", "any"), ("yes", "yes"), ("no", "no"))
        ]
        return want(title, html.Select(choices, name=key))

    hidden = [field(k, "hidden", 0) for k in ("alarm", "at", "sort", "way") if now[k] is not None]
    return html.Form(
        [
            want("steps from", field("first", "number", 7)),
            want("to", field("last", "number", 7)),
            choice("correct", "correct"),
            choice("tokens recorded", "tokens"),
            want("text", field("text", "search", 15, placeholder="in question or answer")),
            *hidden,
            html.Button("Show", type="submit", className="button primary"),
            html.A("Clear", href=address("responses", grid.name), className="button plain"),
        ],
        action=address("responses", grid.name), method="GET", className="wants card",
    )
