"""Callbacks: what the browser asks, handed to shelf, pages and figures, and back as patches.

Charts are only ever patched: a callback of Dash 4.4.1 that returns a whole figure resets the
reader's zoom. The zoomed stretch is kept in a store and written into every patch, so all charts
share it, each refresh keeps it, and the server sends the rows of that stretch at full resolution.
"""

from __future__ import annotations

from typing import Any

from dash import (
    ALL,
    ClientsideFunction,
    Dash,
    Input,
    Output,
    Patch,
    State,
    ctx,
    no_update,
)

from lldscope.errors import LldscopeError

from . import parts
from .charts import CHARTS
from .compare_page import compare_table
from .figures import Figure, View, make_chart, make_overlay, remarks
from .frame import drawn, looks_of
from .list_page import run_table
from .pages import page
from .shelf import Look, Shelf

_CHARTS = {"type": "chart", "index": ALL}


def register(app: Dash, shelf: Shelf) -> None:
    """Attach every callback to the app."""
    _in_browser(app)

    @app.callback(
        Output("page", "children"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input({"type": "retry", "index": ALL}, "n_intervals"),
    )
    def show_page(path: str | None, search: str | None, retries: list[int]) -> Any:
        return page(shelf, path or "/", search or "")

    @app.callback(
        Output("runs", "children"),
        Input("list-tick", "data"),
        State({"type": "pick", "index": ALL}, "value"),
        prevent_initial_call=True,
        running=[(Output("list-clock", "disabled"), True, False)],
    )
    def refresh_list(tick: int, picked: list[list[str]]) -> Any:
        return run_table(shelf, [name for pick in picked for name in pick])

    @app.callback(
        Output({"type": "told", "index": ALL}, "children"),
        Input("tick", "data"),
        State("names", "data"),
        State("seen", "data"),
        prevent_initial_call=True,
    )
    def refresh_words(tick: int, names: list[str], seen: dict[str, Any]) -> list[Any]:
        wanted = [output["id"]["index"] for output in ctx.outputs_list]
        several = "compared" in wanted
        told = _told_of_several(shelf, names) if several else _told_of_one(shelf, names[0], seen)
        return [told.get(part, no_update) for part in wanted]

    _charts(app, shelf)


def _charts(app: Dash, shelf: Shelf) -> None:
    outputs = (
        Output(_CHARTS, "figure"),
        Output({"type": "foot", "index": ALL}, "children"),
        Output("seen", "data"),
    )
    tick = Input("tick", "data")
    view = [Input("x", "value"), Input("mean", "value"), Input("zoom", "data")]
    shown = Input({"type": "shown", "index": ALL}, "value")
    known = (State("names", "data"), State("seen", "data"))
    still = [(Output("clock", "disabled"), True, False)]  # no tick while one is answered

    @app.callback(*outputs, tick, *view, shown, *known, prevent_initial_call=True, running=still)
    def refresh_charts(
        tick: int,
        by: str,
        mean: int,
        zoom: dict[str, Any] | None,
        shown: list[list[str]],
        names: list[str],
        seen: dict[str, Any],
    ) -> Any:
        looks, _ = looks_of(shelf, names)
        # a zoom belongs to the x axis it was made on
        ours = zoom["range"] if zoom and zoom["x"] == by else None
        view = View(by, mean, (ours[0], ours[1]) if ours else None)
        now = drawn(looks, view, shown[0] if shown else None)
        if not looks or now == seen:
            return [no_update] * len(CHARTS), [no_update] * len(CHARTS), no_update
        figures = draw(looks, view, set(shown[0]) if shown else None)
        return [patch(f) for f in figures], [remarks(f) for f in figures], now


def draw(looks: list[Look], view: View, shown: set[str] | None) -> list[Figure]:
    """The charts of one run, or, where there is a choice of `shown` runs, of several."""
    subjects = [look.subject for look in looks]
    if shown is None:
        return [make_chart(chart, subjects[0], view) for chart in CHARTS]
    return [make_overlay(chart, subjects, shown, view) for chart in CHARTS]


def patch(figure: Figure) -> Patch:
    """The parts of a figure that rows and views change."""
    changed = Patch()
    changed["data"] = figure["data"]
    for part in ("shapes", "annotations", "xaxis", "yaxis", "yaxis2"):
        if part in figure["layout"]:
            changed["layout"][part] = figure["layout"][part]
    return changed


def _told_of_one(shelf: Shelf, name: str, seen: dict[str, Any]) -> dict[str, Any]:
    """Status line and notes; alarms, look-alikes and events only if they may have changed."""
    try:
        look = shelf.look(name)
    except LldscopeError as error:
        return {"status": parts.gone(str(error))}
    told: dict[str, Any] = {"status": parts.status_line(look), "notes": parts.notes(look)}
    if seen["versions"] != [look.version] or look.state["life"] in ("stalled", "failed"):
        told |= {
            "alarms": parts.alarms(look),
            "look-alikes": parts.look_alikes(look),
            "events": parts.events(look),
        }
    return told


def _told_of_several(shelf: Shelf, names: list[str]) -> dict[str, Any]:
    looks, lost = looks_of(shelf, names)
    return {} if lost else {"compared": compare_table(looks)}


def _in_browser(app: Dash) -> None:
    """Callbacks that run in the browser; their code is in assets/lldscope.js."""

    def ask(function: str, *wires: Any, initially: bool = False) -> None:
        code = ClientsideFunction("lldscope", function)
        app.clientside_callback(code, *wires, prevent_initial_call=not initially)

    ask("tick", Output("tick", "data"), Input("clock", "n_intervals"))
    ask("tick", Output("list-tick", "data"), Input("list-clock", "n_intervals"))
    ask(
        "zoom",
        Output("zoom", "data"),
        Input(_CHARTS, "relayoutData"),
        State("x", "value"),
    )
    ask("hover", Input(_CHARTS, "hoverData"))
    ask(
        "address",
        Output("address", "data"),
        Input("x", "value"),
        Input("mean", "value"),
        Input("zoom", "data"),
    )
    ask("pause", Output("pause", "children"), Input("pause", "n_clicks"))
    ask("theme", Input("theme", "n_clicks"))
    ask(
        "picked",
        Output("compare", "href"),
        Output("compare", "className"),
        Output("compare", "children"),
        Input({"type": "pick", "index": ALL}, "value"),
    )
