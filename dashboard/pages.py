"""The three pages: list of runs, one run, runs compared; and words where there is none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote

from dash import dcc, html

from lldscope.errors import LldscopeError

from . import parts, theme, words
from .charts import CHARTS
from .figures import View, make_chart, make_overlay, make_sparkline, run_style
from .shelf import Look, Shelf, Summary

MOST_COMPARED = 20
REFRESH_MS = 2000
READ_SECONDS = 1.0  # of one look at the run list; what is not read by then follows at the next
WINDOWS = (1, 5, 10, 25, 50)
X_AXES = {"step": "step", "tokens": "tokens", "time": "time"}


def page(shelf: Shelf, path: str, search: str) -> Any:
    """The content for an address."""
    query = parse_qs((search or "").lstrip("?"))
    if path == "/compare":
        return _compare_page(shelf, query)
    if path.startswith("/run/"):
        return _run_page(shelf, unquote(path.removeprefix("/run/")).rstrip("/"), query)
    if path == "/":
        return list_page(shelf)
    return _words("There is no such page", f"Nothing lives at {path}.")


def view_of(query: dict[str, list[str]]) -> View:
    """The view a shared address asks for; what it says wrongly is passed over."""
    by = query.get("x", ["step"])[0]
    window = query.get("mean", ["10"])[0]
    zoom = None
    try:
        a, b = (float(v) for v in query["zoom"][0].split(","))
        zoom = (a, b) if a < b else None
    except (KeyError, ValueError):
        pass
    known = window.isdigit() and int(window) in WINDOWS
    return View(by if by in X_AXES else "step", int(window) if known else 10, zoom)


# -- list of runs ---------------------------------------------------------------------------------


def list_page(shelf: Shelf) -> html.Div:
    return html.Div(
        [
            html.Header(
                [
                    html.Div([html.H1("Runs"), html.P(str(shelf.root), className="quiet path")]),
                    dcc.Link("Compare", href="/compare", id="compare", className="button disabled"),
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
    named = (
        "",
        "run",
        "verdict",
        "phase",
        "evidence",
        "last step",
        "last row",
        "reward",
        "Δ correct",
    )
    head = html.Tr([html.Th(n, className="number" if n == "last step" else None) for n in named])
    rows = [_row(line, picked) for line in lines]
    return html.Table([html.Thead(head), html.Tbody(rows)], className="card runs")


def _row(line: Summary | str, picked: list[str]) -> html.Tr:
    if isinstance(line, str):
        return html.Tr([html.Td(), html.Td(parts.run_link(line)), html.Td("reading …", colSpan=7)])
    if line.state is None:
        why = [parts.badge(theme.VERDICTS["unreadable"]), " ", str(line.error)]
        return html.Tr([html.Td(), html.Td(parts.run_link(line.name)), html.Td(why, colSpan=7)])
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
    group = [html.Div(line.group, className="quiet")] if line.group else []
    return html.Tr(
        [
            html.Td(pick),
            html.Td([parts.run_link(line.name), *group]),
            html.Td(parts.badge(theme.VERDICTS[state["verdict"]])),
            html.Td(
                [
                    html.Span(sign.shape, className="mark", style={"color": sign.color}),
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
    return html.Img(src=picture, alt=name, className="spark") if picture else "–"


# -- one run, several runs ------------------------------------------------------------------------


def _run_page(shelf: Shelf, name: str, query: dict[str, list[str]]) -> html.Div:
    try:
        look = shelf.look(name)
    except LldscopeError as error:
        return _words("This run cannot be shown", str(error), retry=True)
    view = view_of(query)
    cards = [
        parts.chart_card(c, make_chart(c, look.subject, view), parts.legend_of(c), c.note)
        for c in CHARTS
    ]
    info = look.info
    facts = [info.get("group"), info.get("trainer"), info.get("correct_rule")]
    return html.Div(
        [
            _head(str(info.get("name") or name), " · ".join(str(f) for f in facts if f), look),
            html.Div(parts.notes(look), id=told("notes")),
            _controls(view),
            html.Div(cards, className="charts"),
            html.Div(
                [
                    html.Section(
                        [html.H2("Alarms"), html.Div(parts.alarms(look), id=told("alarms"))],
                        className="card wide",
                    ),
                    html.Div(
                        [
                            html.Section(
                                [
                                    html.H2("Look-alikes"),
                                    html.P(
                                        "Causes that look the same on a reward curve.",
                                        className="note",
                                    ),
                                    html.Div(parts.look_alikes(look), id=told("look-alikes")),
                                ],
                                className="card",
                            ),
                            html.Section(
                                [
                                    html.H2("Events"),
                                    html.Div(parts.events(look), id=told("events")),
                                ],
                                className="card",
                            ),
                        ]
                    ),
                ],
                className="below",
            ),
            *_state([look], None, view),
        ]
    )


def _compare_page(shelf: Shelf, query: dict[str, list[str]]) -> html.Div:
    names = list(dict.fromkeys(query.get("run", [])))
    looks, lost = looks_of(shelf, names[:MOST_COMPARED])
    if not looks:
        why = "; ".join(lost.values()) or "Choose runs in the list, then press Compare."
        return _words("No runs to compare", why)
    view = view_of(query)
    subjects = [look.subject for look in looks]
    shown = {s.name for s in subjects}
    cards = [
        parts.chart_card(c, make_overlay(c, subjects, shown, view), [], c.compared or c.note)
        for c in CHARTS
    ]
    missed = list(lost.values())
    if len(names) > MOST_COMPARED:
        missed.append(f"{len(names)} runs were asked for; the first {MOST_COMPARED} are shown.")
    options = [
        {
            "label": html.Span([parts.stroke(*run_style(i)), s.name], className="entry"),
            "value": s.name,
        }
        for i, s in enumerate(subjects)
    ]
    return html.Div(
        [
            html.Header([html.H1(f"{len(subjects)} runs compared")], className="page-head"),
            html.Div(" ".join(missed), className="notice", role="status") if missed else None,
            html.Div(compare_table(looks), id=told("compared")),
            _controls(
                view,
                dcc.Checklist(
                    options,
                    [s.name for s in subjects],
                    id={"type": "shown", "index": 0},
                    className="shown",
                ),
            ),
            html.Div(cards, className="charts"),
            *_state(looks, [s.name for s in subjects], view),
        ]
    )


def looks_of(shelf: Shelf, names: Sequence[str]) -> tuple[list[Look], dict[str, str]]:
    """Looks at the runs that can be read, and a sentence for each that cannot."""
    looks, lost = [], {}
    for name in names:
        try:
            looks.append(shelf.look(name))
        except LldscopeError as error:
            lost[name] = str(error)
    return looks, lost


def compare_table(looks: list[Look]) -> html.Table:
    """A row per compared run: verdict, phase, first alarms."""
    named = ("run", "verdict", "phase", "last step", "decay alarm", "collapse alarm", "last row")
    rows = []
    for i, look in enumerate(looks):
        state, name = look.state, look.subject.name
        sign = theme.PHASES[state["phase"]]
        first = {a["rule"]: a["step"] for a in state["alerts"]}
        rows.append(
            html.Tr(
                [
                    html.Td([parts.stroke(*run_style(i)), parts.run_link(name)]),
                    html.Td(parts.badge(theme.VERDICTS[state["verdict"]])),
                    html.Td(
                        [
                            html.Span(sign.shape, className="mark", style={"color": sign.color}),
                            sign.word,
                        ]
                    ),
                    html.Td(_step(state["last_step"]), className="number"),
                    html.Td(_step(first.get("lld-decay")), className="number"),
                    html.Td(_step(first.get("lld-collapse")), className="number"),
                    html.Td(words.age(state["last_row_age_seconds"])),
                ]
            )
        )
    numeric = ("last step", "decay alarm", "collapse alarm")
    head = html.Tr([html.Th(n, className="number" if n in numeric else None) for n in named])
    return html.Table([html.Thead(head), html.Tbody(rows)], className="card runs")


def _step(step: int | None) -> str:
    return "–" if step is None else f"{step:,}"


def _head(title: str, facts: str, look: Look) -> html.Header:
    return html.Header(
        [
            html.Div([html.H1(title), html.Span(facts, className="quiet")], className="title"),
            html.Button("Pause", id="pause", className="button", title="keyboard: p"),
            html.Div(parts.status_line(look), id=told("status"), className="status"),
        ],
        className="page-head sticky run-head",
    )


def _controls(view: View, extra: Any = None) -> html.Div:
    means = [{"label": "raw" if w == 1 else str(w), "value": w} for w in WINDOWS]
    return html.Div(
        [
            html.Span() if extra is None else extra,
            html.Label("x axis", className="key"),
            dcc.RadioItems(X_AXES, view.by, id="x", className="segments"),
            html.Label("trailing mean, steps", className="key"),
            dcc.RadioItems(means, view.window, id="mean", className="segments"),
            html.Span("drag to zoom · double-click to go back", className="quiet hint"),
        ],
        className="controls",
    )


def told(part: str) -> dict[str, str]:
    """The id of a part of a page that callbacks write words into."""
    return {"type": "told", "index": part}


def drawn(looks: list[Look], view: View, shown: list[str] | None) -> dict[str, Any]:
    """What charts were drawn from; while it stays the same there is nothing to redraw."""
    seen = [view.by, view.window, list(view.zoom or ()), sorted(shown or ())]
    return {"versions": [look.version for look in looks], "view": seen}


def _state(looks: list[Look], shown: list[str] | None, view: View) -> list[Any]:
    """What the browser remembers of the page between refreshes, and the clock that asks for them."""
    zoom = {"x": view.by, "range": view.zoom} if view.zoom else None
    return [
        dcc.Store(id="names", data=[look.subject.name for look in looks]),
        dcc.Store(id="seen", data=drawn(looks, view, shown)),
        dcc.Store(id="zoom", data=zoom),
        dcc.Store(id="address"),
        dcc.Interval(id="clock", interval=REFRESH_MS),
        dcc.Store(id="tick"),
    ]


def _words(title: str, text: str, retry: bool = False) -> html.Div:
    """A page that says why there is nothing to see; with `retry` it looks again by itself."""
    again = dcc.Interval(id={"type": "retry", "index": 0}, interval=REFRESH_MS)
    return html.Div(
        [
            html.H1(title),
            html.P(text),
            html.P(dcc.Link("All runs", href="/")),
            *([again] if retry else []),
        ],
        className="card empty",
    )
