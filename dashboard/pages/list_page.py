"""The page of runs: one line each, live, to sort, filter, group and choose for a comparison."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from lldscope.core import palette
from lldscope.core.terminal import visible
from lldscope.monitor.summary import LAST

from ..data.run_summaries import RunSummaries
from .frame import PAUSE, REFRESH_MS, Query, attrs, choice_button, segments
from .list_rows import (
    COLUMNS,
    MOST_SETTINGS,
    NUMBERS,
    SETTING,
    VERDICTS,
    Choice,
    choice_of,
    run_rows,
    settings_of,
    title_of,
)


def list_page(summaries: RunSummaries, query: Query) -> html.Div:
    """The page as the address asks for it."""
    choice = choice_of(query)
    rows, has, news = run_rows(summaries, choice, [])
    columns = [*COLUMNS, *choice.columns]
    head = html.Tr([html.Th(html.Span("compare", className="unseen")),
                    *(_head(column, choice) for column in columns)])
    root = html.P(str(summaries.registry.root), className="quiet path")
    compare = html.A("Compare", href="/compare", id="compare", className="button disabled")
    buttons = html.Div([PAUSE, compare], className="buttons")
    return html.Div(
        [
            html.Header([html.Div([html.H1("Runs"), root]), buttons], className="page-head"),
            _filters(summaries, choice),
            html.Div(html.Table(
                [html.Thead(head), html.Tbody(rows, id="rows")], className="card runs listed"
            ), className="wide"),
            dcc.Store(id="news", data=news),
            dcc.Interval(id="list-clock", interval=REFRESH_MS),
            dcc.Store(id="list-tick"),
            dcc.Store(id="list-view", data=choice.plain),
            dcc.Store(id="list-has", data=has),
            dcc.Store(id="picks", data=[]),
        ]
    )


def _head(column: str, choice: Choice) -> html.Th:
    """The head of a column, which sorts, and again the other way round; that of an added column
    has a button that removes it."""
    ours, down = column == choice.sort.removeprefix("-"), choice.sort.startswith("-")
    way = ("descending" if down else "ascending") if ours else "none"
    sort = html.Button(title_of(column), className="sort", **attrs(data_sort=column))
    remove = [] if column in COLUMNS else [
        html.Button("×", className="sort remove", **attrs(
            data_column=column, aria_label=f"remove the column {title_of(column)}"))
    ]
    return html.Th([sort, *remove], className="number" if column in NUMBERS else None,
                   scope="col", **attrs(aria_sort=way))


def _filters(summaries: RunSummaries, choice: Choice) -> html.Div:
    verdicts = {"": "all"} | {v: palette.VERDICTS[v].word for v in VERDICTS}
    verdicts["healthy"] = palette.NO_ALARM.word
    find = dcc.Input(
        id="find", type="search", value=choice.find, className="find",
        placeholder="name, group, tag, alarm …  ( / )",
    )
    return html.Div(
        [
            find,
            segments("verdict", "verdict", verdicts, choice.verdict, "", with_key=False),
            choice_button("by~group", "in groups", choice.by == "group"),
            _columns(summaries, choice),
        ],
        className="controls",
    )


def _columns(summaries: RunSummaries, choice: Choice) -> html.Label:
    """A choice of columns to add: metrics, and settings of the runs."""
    settings = settings_of(summaries, summaries.now(0.0))
    names = list(dict.fromkeys(name for one in settings.values() for name in one))[:MOST_SETTINGS]
    metrics = [m for m in LAST if m not in COLUMNS]

    def options(label: str, keys: list[str]) -> list[Any]:
        left = [key for key in keys if key not in choice.columns]
        entries = [html.Option(title_of(key), value=key) for key in left]
        return [html.Optgroup(entries, label=visible(label))] if entries else []

    select = html.Select(
        [
            html.Option("…", value=""), *options("last value of", metrics),
            *options("setting", [f"{SETTING}{name}" for name in names]),
        ],
        **attrs(data_address="col", data_also="yes"),
    )
    return html.Label([html.Span("add a column", className="key"), select], className="want")
