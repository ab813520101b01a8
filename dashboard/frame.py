"""What the pages share: the view in the address, controls, the page's memory, pages of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from lldscope.errors import LldscopeError

from .figures import View
from .shelf import Look, Shelf
from .words import visible

REFRESH_MS = 2000
WINDOWS = (1, 5, 10, 25, 50)  # steps of the trailing mean
X_AXES = {"step": "step", "tokens": "tokens", "time": "time"}


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


def told(part: str) -> dict[str, str]:
    """The id of a part of a page that callbacks write words into."""
    return {"type": "told", "index": part}


def looks_of(shelf: Shelf, names: Sequence[str]) -> tuple[list[Look], dict[str, str]]:
    """Looks at the runs that can be read, and a sentence for each that cannot."""
    looks, lost = [], {}
    for name in names:
        try:
            looks.append(shelf.look(name))
        except LldscopeError as error:
            lost[name] = str(error)
    return looks, lost


def controls(view: View, extra: Any = None) -> html.Div:
    """X axis and smoothing, after what a page puts in front of them."""
    means = [{"label": "raw" if w == 1 else str(w), "value": w} for w in WINDOWS]
    return html.Div(
        [
            html.Span() if extra is None else extra,
            html.Label("x axis", className="key"),
            dcc.RadioItems(X_AXES, view.by, id="x", className="segments"),
            html.Label("trailing mean, steps", className="key"),
            dcc.RadioItems(means, view.window, id="mean", className="segments"),
            html.Span(
                "phases as judged live · drag to zoom, double-click to go back",
                className="quiet hint",
            ),
        ],
        className="controls",
    )


def drawn(looks: list[Look], view: View, shown: list[str] | None) -> dict[str, Any]:
    """What charts were drawn from; while it stays the same there is nothing to redraw."""
    seen = [view.by, view.window, list(view.zoom or ()), sorted(shown or ())]
    return {"versions": [look.version for look in looks], "view": seen}


def memory(looks: list[Look], shown: list[str] | None, view: View) -> list[Any]:
    """What the browser remembers of the page, and the clock that asks for news."""
    zoom = {"x": view.by, "range": view.zoom} if view.zoom else None
    return [
        dcc.Store(id="names", data=[look.subject.name for look in looks]),
        dcc.Store(id="seen", data=drawn(looks, view, shown)),
        dcc.Store(id="zoom", data=zoom),
        dcc.Store(id="address"),
        dcc.Interval(id="clock", interval=REFRESH_MS),
        dcc.Store(id="tick"),
    ]


def words_page(title: str, text: str, retry: bool = False) -> html.Div:
    """A page that says why there is nothing to see; with `retry` it looks again by itself."""
    again = dcc.Interval(id={"type": "retry", "index": 0}, interval=REFRESH_MS)
    return html.Div(
        [
            html.H1(title),
            html.P(visible(text, 2000)),
            html.P(html.A("All runs", href="/")),
            *([again] if retry else []),
        ],
        className="card empty",
    )
