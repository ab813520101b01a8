"""Callbacks: what the browser asks, handed to shelf, pages and figures, and back as patches.

Which range of x the charts show is up to the browser (assets/charts.js). The store "zoom" tells the
server, which sends the rows of that range at full resolution.
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

from lldscope.core.errors import LldscopeError

from .data.run_registry import RunRegistry, Snapshot
from .data.run_summaries import RunSummaries
from .figures.chart_figures import Figure, make_chart, make_overlay, remarks
from .figures.charts import CHARTS
from .figures.increments import patch
from .figures.view import View
from .pages import alarm_cards
from .pages import components as parts
from .pages.compare_page import compare_table, unplaced
from .pages.frame import drawn, last_snapshots_of, sent
from .pages.list_rows import choice_of, run_rows
from .pages.router import page
from .pages.system_page import facts

_CHARTS = {"type": "chart", "index": ALL}
_GROUPS = State({"type": "groups", "index": ALL}, "data")  # where runs of a group are one line


def register(app: Dash, shelf: RunRegistry, lines: RunSummaries) -> None:
    """Attach every callback to the app."""
    _in_browser(app)

    @app.callback(Output("page", "children"), Input("again", "data"), prevent_initial_call=True)
    def show_again(address: list[str]) -> Any:
        return page(shelf, address[0], address[1], lines)

    @app.callback(
        Output("rows", "children"),
        Output("list-has", "data"),
        Input("list-tick", "data"),
        Input("choice", "data"),
        State("picks", "data"),
        State("list-has", "data"),
        prevent_initial_call=True,
    )
    def refresh_list(tick: int, choice: dict[str, str], picks: list[str], has: list[Any]) -> Any:
        rows, now = run_rows(lines, choice_of(choice), picks)
        if now == has:
            return no_update, no_update
        if [name for name, _ in now] != [name for name, _ in has]:
            return rows, now
        changed = Patch()  # only the lines that say something else now
        for i, (row, before, after) in enumerate(zip(rows, has, now, strict=True)):
            if before != after:
                changed[i] = row
        return changed, now

    @app.callback(
        Output({"type": "told", "index": ALL}, "children"),
        Output("said", "data"),
        Input("tick", "data"),
        Input("x", "value"),
        State("names", "data"),
        State("said", "data"),
        _GROUPS,
        prevent_initial_call=True,
    )
    def refresh_words(
        tick: int, by: str, names: list[str], said: list[str], groups: list[dict[str, str]]
    ) -> tuple[list[Any], Any]:
        wanted = [output["id"]["index"] for output in ctx.outputs_list[0]]
        if "compared" in wanted:
            told = _told_of_several(shelf, names, by, said, groups[0] if groups else {})
        else:
            told = _told_of_one(shelf, names[0], said)
        now = told.get("versions", said)
        return [told.get(part, no_update) for part in wanted], no_update if now == said else now

    @app.callback(
        Output("system", "children"),
        Input("system-tick", "data"),
        State("names", "data"),
        prevent_initial_call=True,
    )
    def refresh_system(tick: int, names: list[str]) -> Any:
        try:
            return facts(shelf, names[0])
        except LldscopeError:
            return no_update  # what was read is kept

    _charts(app, shelf)


def _charts(app: Dash, shelf: RunRegistry) -> None:
    outputs = (
        Output(_CHARTS, "figure"),
        Output({"type": "foot", "index": ALL}, "children"),
        Output("seen", "data"),
    )
    tick = Input("tick", "data")
    view = [Input("x", "value"), Input("mean", "value"), Input("zoom", "data")]
    shown = Input({"type": "shown", "index": ALL}, "value")
    known = (State("names", "data"), State("seen", "data"), _GROUPS)

    @app.callback(*outputs, tick, *view, shown, *known, prevent_initial_call=True)
    def refresh_charts(
        tick: int,
        by: str,
        mean: int,
        zoom: dict[str, Any] | None,
        shown: list[list[str]],
        names: list[str],
        seen: dict[str, Any],
        groups: list[dict[str, str]],
    ) -> Any:
        nothing = [no_update] * len(CHARTS), [no_update] * len(CHARTS), no_update
        if not ctx.triggered:  # the page has only just come
            return nothing
        looks, lost = last_snapshots_of(shelf, names)
        # a zoom belongs to the x axis it was made on
        ours = zoom["range"] if zoom and zoom["x"] == by else None
        view = View(by, mean, (ours[0], ours[1]) if ours else None, groups[0] if groups else {})
        same = drawn(looks, view, shown[0] if shown else None)
        known = all(same[k] == seen[k] for k in ("versions", "view"))
        if not looks or known or any(shelf.is_opening(name) for name in lost):
            return nothing
        figures = draw(looks, view, set(shown[0]) if shown else None, names)
        notes = seen["has"] if same["view"] == seen["view"] else [None] * len(CHARTS)
        patches = [patch(f, note) or no_update for f, note in zip(figures, notes, strict=True)]
        return patches, [remarks(f) for f in figures], same | sent(figures)


def draw(
    looks: list[Snapshot], view: View, shown: set[str] | None, names: list[str]
) -> list[Figure]:
    """The charts of one run, or, where there is a choice of `shown` runs, of several."""
    subjects = [look.subject for look in looks]
    if shown is None:
        return [make_chart(chart, subjects[0], view) for chart in CHARTS]
    return [make_overlay(chart, subjects, shown, view, names) for chart in CHARTS]


def _told_of_one(shelf: RunRegistry, name: str, said: list[str]) -> dict[str, Any]:
    """Status line and notes; alarms, look-alikes and events only if they may have changed.

    `said` and `versions` name the rows that the words were, and are now, made from.
    """
    try:
        look = shelf.look(name)
    except LldscopeError as error:
        return {"status": parts.gone(str(error))}
    told: dict[str, Any] = {"status": parts.status_line(look), "notes": parts.notes(look)}
    if said != [look.version] or look.state.life in ("stalled", "failed"):
        told |= {
            "versions": [look.version],
            "alarms": alarm_cards.alarms(look),
            "look-alikes": alarm_cards.look_alikes(look),
            "events": parts.events(look),
        }
    return told


def _told_of_several(
    shelf: RunRegistry, names: list[str], by: str, said: list[str], groups: dict[str, str]
) -> dict[str, Any]:
    """The table, if it may have changed, and the runs that the alignment has no place for."""
    looks, lost = last_snapshots_of(shelf, names)
    gone = [*lost.values(), "What was last read is kept."] if lost else []
    told: dict[str, Any] = {"unplaced": " ".join(filter(None, [*gone, unplaced(looks, by)]))}
    if any(shelf.is_opening(name) for name in lost):
        return told
    dead = any(look.state.life in ("stalled", "failed") for look in looks)
    versions = [look.version for look in looks]
    if dead or said != versions:
        told |= {"versions": versions, "compared": compare_table(looks, groups, names)}
    return told


def _in_browser(app: Dash) -> None:
    """Callbacks that run in the browser; their code is in assets/lldscope.js."""

    def ask(function: str, *wires: Any) -> None:
        code = ClientsideFunction("lldscope", function)
        app.clientside_callback(code, *wires, prevent_initial_call=True)

    ask("tick", Output("tick", "data"), Input("clock", "n_intervals"))
    ask("retry", Output("again", "data"), Input({"type": "retry", "index": ALL}, "n_intervals"))
    ask("tick", Output("list-tick", "data"), Input("list-clock", "n_intervals"))
    ask("tick", Output("system-tick", "data"), Input("system-clock", "n_intervals"))
    ask(
        "address",
        Output("address", "data"),
        Input("x", "value"),
        Input("mean", "value"),
        Input("zoom", "data"),
        Input({"type": "shown", "index": ALL}, "value"),
        State("names", "data"),
    )
    ask("pause", Output("pause", "children"), Input("pause", "n_clicks"))
    ask("theme", Input("theme", "n_clicks"))
    ask(
        "choice",
        Output("choice", "data"),
        Input("find", "value"),
        Input("verdict", "value"),
        Input("by", "value"),
        Input({"type": "sort", "index": ALL}, "n_clicks"),
        State("choice", "data"),
    )
    pick = {"type": "pick", "index": ALL}
    ask(
        "picked",
        Output("picks", "data"),
        Output("compare", "href"),
        Output("compare", "className"),
        Output("compare", "children"),
        Input(pick, "value"),
        State(pick, "id"),
        State("picks", "data"),
    )
