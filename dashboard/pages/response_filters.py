"""The filters of the grid of responses: from an address, into an address, and as a form."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from lldscope.explore.responses import ORDERS, LargestDrops, ResponseQuery

from ..figures import wording as words
from .links import Query, address, real, text, whole, yes_no


def view_of(query: Query, losers: LargestDrops | None = None) -> tuple[ResponseQuery, str, bool]:
    """Filters, order and whether it descends; what the address says wrongly is passed over.

    From an alarm (`losers`) and without a filter of its own, the address shows the correct
    responses that lost most there, first.
    """
    wanted = ResponseQuery(
        first=whole(query, "first"),
        last=whole(query, "last"),
        group=whole(query, "group", -(2**31)),
        correct=yes_no(query, "correct"),
        data_source=text(query, "source"),
        truncated=yes_no(query, "cut"),
        tokens=yes_no(query, "tokens"),
        delta_from=real(query, "delta_from"),
        delta_to=real(query, "delta_to"),
        tokens_from=whole(query, "length_from"),
        tokens_to=whole(query, "length_to"),
    )
    order = text(query, "sort") or ""
    order = order if order in ORDERS else "step" if losers is None else "delta"
    if losers is not None and wanted == ResponseQuery() and text(query, "all") is None:
        fields = True if losers.tokens else None
        wanted = ResponseQuery(losers.first, losers.last, correct=True, tokens=fields)
    return wanted, order, text(query, "way") == "down"


def to_query(query: Query, wanted: ResponseQuery, order: str, descending: bool) -> dict[str, Any]:
    """The view as the query of an address."""
    words_of = {True: "yes", False: "no", None: None}
    fields = {
        "alarm": text(query, "alarm"),
        "at": whole(query, "at"),
        "first": wanted.first,
        "last": wanted.last,
        "group": wanted.group,
        "correct": words_of[wanted.correct],
        "source": wanted.data_source,
        "cut": words_of[wanted.truncated],
        "tokens": words_of[wanted.tokens],
        "delta_from": wanted.delta_from,
        "delta_to": wanted.delta_to,
        "length_from": wanted.tokens_from,
        "length_to": wanted.tokens_to,
        "sort": order,
        "way": "down" if descending else None,
    }
    if wanted == ResponseQuery() and fields["at"] is not None:
        fields["all"] = "yes"
    return fields


def form(
    name: str, query: Query, wanted: ResponseQuery, order: str, descending: bool, sources: list[str]
) -> html.Form:
    known = to_query(query, wanted, order, descending)

    def field(key: str, label: str, width: int = 5, step: Any = 1) -> html.Label:
        box = dcc.Input(
            id={"type": "want", "index": key}, name=key, value=known[key], type="number", step=step,
            style={"width": f"{width + 2.5}em"},
        )  # fmt: skip
        return html.Label([html.Span(label, className="unseen"), box])

    def between(title: str, low: str, high: str, step: Any = 1) -> html.Span:
        ends: list[Any] = [field(low, f"{title} from", step=step), "–"]
        ends.append(field(high, f"{title} to", step=step))
        return html.Span([html.Span(title, className="key"), *ends], className="want")

    def choice(title: str, key: str, options: list[tuple[str, str]]) -> html.Label:
        chosen = [
            html.Option(shown, value=value, selected="selected" if value == known[key] else None)
            for value, shown in [("", "any"), *options]
        ]
        return html.Label(
            [html.Span(title, className="key"), html.Select(chosen, name=key)], className="want"
        )

    hidden = [
        dcc.Input(id={"type": "want", "index": k}, name=k, value=known.get(k), type="hidden")
        for k in ("alarm", "at", "sort", "way")
        if known.get(k) is not None
    ]
    either = [("yes", "yes"), ("no", "no")]
    return html.Form(
        [
            between("steps", "first", "last"),
            html.Span(
                [html.Span("group", className="key"), field("group", "group", 3)], className="want"
            ),
            choice("correct", "correct", either),
            choice("data source", "source", [(s, words.visible(s, 40)) for s in sources]),
            between("Δ", "delta_from", "delta_to", step="any"),
            between("tokens", "length_from", "length_to"),
            choice("cut by a limit", "cut", either),
            choice("tokens recorded", "tokens", either),
            *hidden,
            html.Button("Show", type="submit", className="button primary"),
            html.A("Clear", href=address("responses", name), className="button plain"),
        ],
        action=address("responses", name),
        method="GET",
        className="wants card",
    )
