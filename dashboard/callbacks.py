"""Callbacks: the browser's requests, answered by registry, pages and figures.

The browser zooms, points, scrubs and adds charts by itself (assets/) and keeps what was chosen in
the store `view`, which is the query of the address; the server reads it and answers with figures.
"""

from __future__ import annotations

from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

from dash import (
    ALL,
    ClientsideFunction,
    Dash,
    Input,
    Output,
    State,
    ctx,
    html,
    no_update,
    set_props,
)

from lldscope.core.charts import Chart
from lldscope.core.errors import LldscopeError
from lldscope.figures.chart_figures import in_words

from .data.run_registry import RunRegistry
from .data.run_summaries import RunSummaries
from .data.snapshot import Snapshot
from .pages import components
from .pages.batch import batch
from .pages.compare_page import compare_parts, comparison_of
from .pages.drawing import cards_of, charts_of, draw, keys_asked
from .pages.frame import Query, attrs, query_of, snapshots_of, view_of
from .pages.list_page import choice_of, run_rows
from .pages.router import page
from .pages.run_page import absent_charts, run_parts
from .pages.story import story, story_key, title_of_run
from .security import at

_CHARTS = {"type": "chart", "index": ALL}
_ANSWERS = [(Output("busy", "data"), True, False)]  # while the server answers a tick


def register(app: Dash, registry: RunRegistry, summaries: RunSummaries) -> None:
    """Attach every callback to the app."""
    _in_browser(app)
    _list(app, summaries)
    _charts(app, registry)

    # Not of `href`: a link to a place on the page must not make it anew.
    @app.callback(
        Output("page", "children"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("again", "data"),
    )
    def show(path: str | None, search: str | None, again: str | None) -> Any:
        if path is None:
            return no_update
        address = urlsplit(again or f"http://localhost{path}{search or ''}")
        place = address.path.removeprefix(at("/").rstrip("/"))
        # assets/lldscope.js waits until this one is there, and then fills it
        mark = attrs(data_page=token_hex(8))
        return html.Div(page(registry, place, address.query, summaries), **mark)


def _list(app: Dash, summaries: RunSummaries) -> None:
    @app.callback(
        Output("rows", "children"),
        Output("list-has", "data"),
        Output("tab-title", "data"),
        Input("list-tick", "data"),
        Input("list-view", "data"),
        State("picks", "data"),
        State("list-has", "data"),
        prevent_initial_call=True,
        running=_ANSWERS,
    )
    def refresh_list(tick: int, view: Any, picks: list[str], before: str) -> Any:
        """All rows, if one has changed."""
        rows, now, title = run_rows(summaries, choice_of(query_of(view)), picks)
        return (no_update, no_update, title) if now == before else (rows, now, title)


def _charts(app: Dash, registry: RunRegistry) -> None:
    @app.callback(
        output={
            "figure": Output(_CHARTS, "figure"),
            "foot": Output({"type": "foot", "index": ALL}, "children"),
            "card": Output({"type": "card", "index": ALL}, "className"),
            "part": Output({"type": "part", "index": ALL}, "children"),
            "seen": Output("seen", "data"),
        },
        inputs={
            "tick": Input("tick", "data"), "drawing": Input("drawing", "data"),
            "kind": State("kind", "data"), "names": State("names", "data"),
            "before": State("seen", "data"),
        },
        prevent_initial_call=True,
        running=_ANSWERS,
    )
    def refresh(
        tick: int, drawing: Any, kind: str, names: list[str], before: list[str]
    ) -> dict[str, Any]:
        """New charts after new rows or a change of view; new words after new rows."""
        on_page = {of: [one["id"]["index"] for one in ctx.outputs_grouping[of]]
                   for of in ("figure", "part")}
        keys, query, is_run = on_page["figure"], query_of(drawing), kind == "run"
        snapshots, errors = snapshots_of(registry, names)
        versions = [snapshot.version for snapshot in snapshots]
        versions += [story_key(s) for s in snapshots if is_run]
        words = _words(snapshots, names, errors, query, is_run, versions != before)
        if is_run and snapshots and versions[-1:] != before[-1:]:
            set_props("story-of", {"data": versions[-1]})
        redraws = versions != before or "drawing.data" in ctx.triggered_prop_ids
        charts = charts_of(keys, snapshots, not is_run) if snapshots and redraws else []
        answer: dict[str, Any] = dict.fromkeys(("figure", "foot", "card"), [no_update] * len(keys))
        answer["seen"] = no_update
        if [chart.id for chart in charts] == keys:  # not where a metric is gone; it may come back
            figures = _figures(charts, snapshots, query, names, is_run)
            if is_run:
                words["absent"] = absent_charts(charts, figures)
            answer = {
                "figure": figures, "foot": [*map(in_words, figures)],
                "card": [*map(components.card_class, figures)], "seen": versions,
            }
        return answer | {"part": [words.get(part, no_update) for part in on_page["part"]]}

    @app.callback(
        Output("cards", "children"),
        Input("more", "value"),
        State("names", "data"),
        State("drawing", "data"),
        State("kind", "data"),
        prevent_initial_call=True,
    )
    def change_charts(more: Any, names: list[str], drawing: Any, kind: str) -> Any:
        """The cards, with a chart for each chosen metric."""
        snapshots, _ = snapshots_of(registry, names)
        if not snapshots:
            return no_update
        is_run, query = kind == "run", query_of(drawing) | {"chart": more or []}
        charts = charts_of(keys_asked(snapshots, query), snapshots, not is_run)
        figures = _figures(charts, snapshots, query, names, is_run)
        return cards_of(charts, figures, view_of(query), names[0] if is_run else None)

    @app.callback(
        Output("batch", "children"), Input("step", "data"), State("names", "data"),
        prevent_initial_call=True,
    )
    def show_batch(step: int | None, names: list[str]) -> Any:
        if step is None:
            return []
        try:
            return batch(registry.snapshot(names[0]), int(step))
        except LldscopeError as error:
            return [html.P(str(error), className="note")]

    @app.callback(
        Output("story", "children"), Input("story-of", "data"), State("names", "data"),
    )
    def tell_story(key: str, names: list[str]) -> Any:
        """The story; it comes after the page, so that charts need not wait for it."""
        try:
            return story(registry.snapshot(names[0]))
        except LldscopeError as error:
            return [html.P(str(error), className="note")]


def _figures(
    charts: list[Chart], snapshots: list[Snapshot], query: Query, names: list[str], is_run: bool
) -> list[Any]:
    if is_run:
        return draw(snapshots, charts, view_of(query))
    view, subset = comparison_of(snapshots, query)
    return draw(snapshots, charts, view, set(subset), names)


def _words(
    snapshots: list[Snapshot], names: list[str], errors: list[LldscopeError], query: Query,
    is_run: bool, has_new_rows: bool,
) -> dict[str, Any]:
    """The parts of words that have changed."""
    if not is_run:
        return compare_parts(snapshots, names, query, [*map(str, errors)])
    if errors:
        return {"status": components.notice(str(errors[0]))}
    (snapshot,) = snapshots
    if not has_new_rows and snapshot.state.life not in ("stalled", "failed"):
        return {"notes": components.notes(snapshot)}
    set_props("tab-title", {"data": title_of_run(snapshot)})
    return run_parts(snapshot)


def _in_browser(app: Dash) -> None:
    """Callbacks that run in the browser; their code is in assets/."""

    def ask(function: str, *wires: Any) -> None:
        code = ClientsideFunction("lldscope", function)
        app.clientside_callback(code, *wires, prevent_initial_call=True)

    ask("arrived", Input("page", "children"))
    ask("tell", Input("tab-title", "data"))
    ask("retry", Output("again", "data"), Input({"type": "retry", "index": ALL}, "n_intervals"))
    for tick, clock in (("tick", "clock"), ("list-tick", "list-clock")):
        ask("tick", Output(tick, "data"), Input(clock, "n_intervals"), State("busy", "data"))
    ask("point", Input(_CHARTS, "hoverData"), State(_CHARTS, "id"))
    ask("choose", Input(_CHARTS, "clickData"))
    ask("chosen", Input("more", "value"))
    ask("viewed", Input("view", "data"))
    ask("stepped", Input({"type": "part", "index": ALL}, "children"))
    ask("stepped", Input("batch", "children"))
    ask("found", Input("find", "value"))
    ask("pause", Output("pause", "children"), Input("pause", "n_clicks"))
