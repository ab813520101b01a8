"""The page of runs: one line each, live, to sort, filter, group and choose for a comparison."""

from __future__ import annotations

from dash import dcc, html

from lldscope.core import palette

from ..data.run_summaries import RunSummaries
from .frame import PAUSE, REFRESH_MS, Query, attrs, choice_button, segments
from .list_rows import COLUMNS, VERDICTS, Choice, choice_of, run_rows


def list_page(summaries: RunSummaries, query: Query) -> html.Div:
    """The page as the address asks for it."""
    choice = choice_of(query)
    rows, has, title = run_rows(summaries, choice, [])
    head = html.Tr([html.Th(html.Span("compare", className="unseen")),
                    *(_head(column, choice.get("sort", "verdict")) for column in COLUMNS)])
    root = html.P(str(summaries.registry.root), className="quiet path")
    compare = html.A("Compare", href="/compare", id="compare", className="button disabled")
    buttons = html.Div([PAUSE, compare], className="buttons")
    return html.Div(
        [
            html.Header([html.Div([html.H1("Runs"), root]), buttons], className="page-head"),
            _filters(choice),
            html.Div(html.Table(
                [html.Thead(head), html.Tbody(rows, id="rows")], className="card runs listed"
            ), className="wide"),
            dcc.Store(id="tab-title", data=title),
            dcc.Interval(id="list-clock", interval=REFRESH_MS),
            dcc.Store(id="list-tick"),
            dcc.Store(id="list-view", data={key: [value] for key, value in choice.items()}),
            dcc.Store(id="list-has", data=has),
            dcc.Store(id="picks", data=[]),
        ]
    )


def _head(column: str, sort: str) -> html.Th:
    """The head of a column, which sorts, and again the other way round."""
    ours, down = column == sort.removeprefix("-"), sort.startswith("-")
    way = ("descending" if down else "ascending") if ours else "none"
    button = html.Button(COLUMNS[column], className="sort", **attrs(data_sort=column))
    return html.Th(button, className="number" if column == "step" else None,
                   scope="col", **attrs(aria_sort=way))


def _filters(choice: Choice) -> html.Div:
    verdicts = {"": "all"} | {v: palette.VERDICTS[v].word for v in VERDICTS}
    verdicts["healthy"] = palette.NO_ALARM.word
    find = dcc.Input(
        id="find", type="search", value=choice.get("q", ""), className="find",
        placeholder="name, group, tag, alarm …  ( / )",
    )
    return html.Div(
        [
            find,
            segments("verdict", "verdict", verdicts, choice.get("verdict", ""), "", with_key=False),
            choice_button("by~group", "in groups", "by" in choice),
        ],
        className="controls",
    )
