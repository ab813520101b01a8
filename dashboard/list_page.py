"""The list of runs: one line each, live, with boxes to choose what to compare."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from . import parts, theme, words
from .frame import REFRESH_MS
from .shelf import Shelf, Summary
from .sparkline import make_sparkline

READ_SECONDS = 1.0  # of one look at the list; what is not read by then follows at the next
_COLUMNS = ("", "run", "verdict", "phase", "evidence", "last step", "last row", "reward", "Δ")


def list_page(shelf: Shelf) -> html.Div:
    return html.Div(
        [
            html.Header(
                [
                    html.Div([html.H1("Runs"), html.P(str(shelf.root), className="quiet path")]),
                    html.A("Compare", href="/compare", id="compare", className="button disabled"),
                ],
                className="page-head",
            ),
            html.Div(run_table(shelf, []), id="runs"),
            dcc.Interval(id="list-clock", interval=REFRESH_MS),
            dcc.Store(id="list-tick"),
        ]
    )


def run_table(shelf: Shelf, picked: list[str]) -> Any:
    """A row per run; what cannot be read says why."""
    lines = shelf.summaries(READ_SECONDS)
    if not lines:
        return html.Div(html.P(words.NO_RUNS), className="card empty")
    head = html.Tr([html.Th(n, className="number" if n == "last step" else None) for n in _COLUMNS])
    rows = [_row(line, picked) for line in lines]
    return html.Table([html.Thead(head), html.Tbody(rows)], className="card runs")


def _row(line: Summary | str, picked: list[str]) -> html.Tr:
    if isinstance(line, str):
        return html.Tr([html.Td(), html.Td(parts.run_link(line)), html.Td("reading …", colSpan=7)])
    if line.state is None:
        why = html.Div([parts.badge(theme.VERDICTS["unreadable"]), f" {words.visible(line.error)}"])
        return html.Tr(
            [
                html.Td(),
                html.Td(parts.run_link(line.name)),
                html.Td(why, colSpan=7, className="wrap"),
            ]
        )
    state = line.state
    sign = theme.PHASES[state["phase"]]
    pick = dcc.Checklist(
        [{"label": "", "value": line.name}],
        [line.name] if line.name in picked else [],
        id={"type": "pick", "index": line.name},
        className="pick",
    )
    step = "–" if state["last_step"] is None else f"{state['last_step']:,}"
    life = html.Span(className=f"dot {state['life']}", title=words.LIVES[state["life"]])
    group = [html.Div(words.visible(line.group), className="quiet")] if line.group else []
    return html.Tr(
        [
            html.Td(pick),
            html.Td([parts.run_link(line.name), *group]),
            html.Td(parts.badge(theme.VERDICTS[state["verdict"]])),
            html.Td(
                [
                    parts.mark(sign),
                    sign.word,
                ],
                title=words.PHASES[state["phase"]],
            ),
            html.Td(words.EVIDENCE[state["evidence"]][0], className="quiet"),
            html.Td(step, className="number"),
            html.Td([life, words.age(line.age)]),
            html.Td(_spark(line.reward, theme.GREEN, "reward")),
            html.Td(_spark(line.delta, theme.BLUE, "Δ of correct responses")),
        ]
    )


def _spark(values: Any, color: str, name: str) -> Any:
    picture = "" if values is None else make_sparkline(values, color)
    return html.Img(src=picture, alt=name, className="spark") if picture else html.Span("–")
