"""The page of runs: one line each, live, to sort, filter, group and choose for a comparison."""

from __future__ import annotations

from dash import dcc, html

from lldscope.core import palette

from ..data.run_summaries import RunSummaries
from .frame import PAUSE, REFRESH_MS, named_group
from .links import attrs
from .list_rows import COLUMNS, NUMBERS, VERDICTS, Choice, choice_of, run_rows


def list_page(summaries: RunSummaries, query: dict[str, list[str]]) -> html.Div:
    """The page as the address asks for it."""
    choice = choice_of(query)
    rows, has, news = run_rows(summaries, choice, [])
    down = choice.sort.startswith("-")
    sorted_by = {choice.sort.removeprefix("-"): "descending" if down else "ascending"}
    head = html.Tr([html.Th(html.Span("compare", className="unseen"))] + [
        html.Th(
            html.Button(text, id={"type": "sort", "index": key}, className="sort"),
            className="number" if key in NUMBERS else None,
            **attrs(aria_sort=sorted_by.get(key, "none"), data_key=key),
        )
        for key, text in COLUMNS.items()
    ])
    root = html.P(str(summaries.registry.root), className="quiet path")
    compare = html.A("Compare", href="/compare", id="compare", className="button disabled")
    buttons = html.Div([PAUSE, compare], className="buttons")
    return html.Div(
        [
            html.Header([html.Div([html.H1("Runs"), root]), buttons], className="page-head"),
            _filters(choice),
            html.Table(
                [html.Thead(head), html.Tbody(rows, id="rows")], className="card runs listed"
            ),
            dcc.Store(id="news", data=news),
            dcc.Interval(id="list-clock", interval=REFRESH_MS),
            dcc.Store(id="list-tick"),
            dcc.Store(id="choice", data=choice.plain),
            dcc.Store(id="list-has", data=has),
            dcc.Store(id="picks", data=[]),
        ]
    )


def _filters(choice: Choice) -> html.Div:
    verdicts = {"": "all"} | {v: palette.VERDICTS[v].word for v in VERDICTS}
    groups = {"group": "in groups"}
    return html.Div(
        [
            dcc.Input(
                id="find", type="search", value=choice.find, debounce=0.2, className="find",
                placeholder="name, group, phase …  ( / )",
            ),
            named_group(
                "verdict",
                dcc.RadioItems(verdicts, choice.verdict, id="verdict", className="segments"),
                with_key=False,
            ),
            dcc.Checklist(groups, [choice.by] if choice.by else [], id="by", className="shown"),
        ],
        className="controls",
    )
