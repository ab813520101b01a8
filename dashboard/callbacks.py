"""Callbacks: what the browser asks, handed to registry, pages and figures, and back as patches.

The browser zooms, points, and adds charts by itself (assets/lldscope.js, assets/charts.js) and
keeps what was chosen in stores; the server reads these, and answers with figures of that view.
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
    Patch,
    State,
    ctx,
    html,
    no_update,
    set_props,
)

from lldscope.core.errors import LldscopeError
from lldscope.figures.chart_figures import aligned, remarks
from lldscope.figures.series import translated
from lldscope.figures.view import View

from .data.run_registry import RunRegistry
from .data.run_summaries import RunSummaries
from .figures.increments import patch
from .pages import components as parts
from .pages.answer import answer, news_of_run
from .pages.compare_page import compare_table, unplaced
from .pages.dose import dose
from .pages.drawing import cards_of, charts_of, draw
from .pages.frame import ALIGNED_BY, WINDOWS, chart_data, last_snapshots_of, notes_of
from .pages.links import attrs
from .pages.list_rows import choice_of, run_rows
from .pages.recording_page import facts
from .pages.router import page
from .pages.run_page import SNOOZE_HOURS, alarms, look_alikes

_CHARTS = {"type": "chart", "index": ALL}
_SHOWN = {"type": "shown", "index": ALL}
_ANSWERS = [(Output("busy", "data"), True, False)]  # while the server answers a tick
_GROUPS = State({"type": "groups", "index": ALL}, "data")  # where runs of a group are one line


def register(app: Dash, registry: RunRegistry, summaries: RunSummaries) -> None:
    """Attach every callback to the app."""
    _in_browser(app)

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
        path, search, again = _texts([path, search or "", again or ""])
        address = urlsplit(again or f"http://localhost{path}{search}")
        # assets/lldscope.js waits until this one is there, and then fills it
        mark = attrs(data_page=token_hex(8))
        return html.Div(page(registry, address.path, address.query, summaries), **mark)

    @app.callback(
        Output("rows", "children"),
        Output("list-has", "data"),
        Output("news", "data"),
        Input("list-tick", "data"),
        Input("choice", "data"),
        State("picks", "data"),
        State("list-has", "data"),
        prevent_initial_call=True,
        running=_ANSWERS,
    )
    def refresh_list(tick: int, choice: dict[str, str], picks: list[str], has: list[Any]) -> Any:
        _texts([*choice.values()])
        rows, now, news = run_rows(summaries, choice_of(choice), _texts(picks))
        if now == has:
            return no_update, no_update, news
        if [name for name, _ in now] != [name for name, _ in has]:
            return rows, now, news
        updates = Patch()  # only the rows that have changed
        for i, (row, before, after) in enumerate(zip(rows, has, now, strict=True)):
            if before != after:
                updates[i] = row
        return updates, now, news

    @app.callback(
        Output({"type": "part", "index": ALL}, "children"),
        Output("shown-versions", "data"),
        Input("tick", "data"),
        Input("x", "value"),
        State("names", "data"),
        State("shown-versions", "data"),
        _GROUPS,
        prevent_initial_call=True,
        running=_ANSWERS,
    )
    def refresh_text(
        tick: int, by: str, names: list[str], before: list[str], groups: list[dict[str, str]]
    ) -> tuple[list[Any], Any]:
        ids = [output["id"]["index"] for output in ctx.outputs_list[0]]
        if "compared" in ids:
            group = groups[0] if groups else {}
            _texts([ALIGNED_BY[by], *group.keys(), *group.values()])
            updates = _comparison_parts(registry, _texts(names), by, before, group)
        else:
            updates = _run_parts(registry, _texts(names)[0], before)
            if "news" in updates:
                set_props("news", {"data": updates["news"]})
        now = updates.get("versions", before)
        news = [updates.get(part, no_update) for part in ids]
        return news, no_update if now == before else now

    @app.callback(
        Output("note-said", "children"),
        Input({"type": "note", "index": ALL}, "n_clicks"),
        State("names", "data"),
        prevent_initial_call=True,
    )
    def note(clicks: list[int | None], names: list[str]) -> Any:
        if not any(clicks) or not ctx.triggered_id:
            return no_update  # the buttons have only just come
        kind, rule = ctx.triggered_id["index"].split(" ", 1)
        try:
            registry.note(_texts(names)[0], kind, rule, SNOOZE_HOURS)
        except LldscopeError as error:
            return str(error)
        done = {"acknowledge": "acknowledged", "snooze": f"snoozed for {SNOOZE_HOURS} hours"}
        return f"{rule}: {done.get(kind, 'acknowledgement removed')}."

    @app.callback(
        Output("about-said", "children"),
        Output("about-saved", "data"),
        Input("about-save", "n_clicks"),
        State("names", "data"),
        State("about-name", "value"),
        State("about-tags", "value"),
        State("about-note", "value"),
        prevent_initial_call=True,
    )
    def annotate(
        clicks: int | None, names: list[str], title: str | None, tags: str | None, note: str | None
    ) -> Any:
        if not clicks:
            return no_update, no_update
        try:
            registry.annotate(_texts(names)[0], title or "", (tags or "").split(","), note or "")
        except LldscopeError as error:
            return str(error), no_update
        return "Saved.", clicks

    @app.callback(
        Output("recording", "children"),
        Input("recording-tick", "data"),
        State("names", "data"),
        prevent_initial_call=True,
        running=_ANSWERS,
    )
    def refresh_recording(tick: int, names: list[str]) -> Any:
        try:
            return facts(registry.snapshot(_texts(names)[0]))
        except LldscopeError:
            return no_update  # the last answer stays

    _charts(app, registry)


def _texts(value: Any) -> list[str]:
    """What a browser says are texts. Raises TypeError, here, where they are not."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TypeError("no list of texts")
    return value


def _charts(app: Dash, registry: RunRegistry) -> None:
    view = [
        Input("x", "value"), Input("mean", "value"), Input("zoom", "data"), Input("axes", "data"),
        Input(_SHOWN, "value"),
    ]

    @app.callback(
        Output("zoom", "data"),
        Input("x", "value"),
        State("zoom", "data"),
        State("names", "data"),
        prevent_initial_call=True,
    )
    def keep_zoom(by: str, zoom: dict[str, Any] | None, names: list[str]) -> Any:
        snapshots, _ = last_snapshots_of(registry, _texts(names))
        if not zoom or zoom["x"] == by or not snapshots:
            return no_update
        if by not in ALIGNED_BY or zoom["x"] not in ALIGNED_BY:
            raise ValueError("no such axis")
        subject = snapshots[0].subject
        table = aligned(aligned(subject, zoom["x"]), by).table
        low, high = map(float, zoom["range"])
        range_ = translated(table, (low, high), zoom["x"], by)
        return range_ and {"x": by, "range": range_}

    @app.callback(
        Output(_CHARTS, "figure"),
        Output({"type": "foot", "index": ALL}, "children"),
        Output({"type": "card", "index": ALL}, "className"),
        Output("seen", "data"),
        Input("tick", "data"),
        *view,
        State("names", "data"),
        State("seen", "data"),
        _GROUPS,
        prevent_initial_call=True,
        running=_ANSWERS,
    )
    def refresh_charts(tick: int, *values: Any) -> Any:
        *controls, names, state, groups = values
        keys = _texts([output["id"]["index"] for output in ctx.outputs_list[0]])
        still = [no_update] * len(keys)
        nothing = still, still, still, no_update
        if not ctx.triggered:  # the page has only just come
            return nothing
        snapshots, errors = last_snapshots_of(registry, _texts(names))
        view, runs = _view(controls, groups)
        same = chart_data(snapshots, view, runs)
        unchanged = all(same[k] == state[k] for k in ("versions", "view"))
        if not snapshots or unchanged or any(registry.is_opening(name) for name in errors):
            return nothing
        charts = charts_of(keys, snapshots, runs is not None)
        if [chart.id for chart in charts] != keys:
            return nothing  # a metric is gone; the page asks again
        figures = draw(snapshots, charts, view, None if runs is None else set(runs), names)
        notes = state["has"] if same["view"] == state["view"] else {}
        patches = [patch(f, notes.get(c)) or no_update for f, c in zip(figures, keys, strict=True)]
        feet, classes = [*map(remarks, figures)], [*map(parts.card_class, figures)]
        return patches, feet, classes, same | {"has": notes_of(charts, figures)}

    @app.callback(
        Output("cards", "children"),
        Output("drawn-charts", "data"),
        Output("seen", "data", allow_duplicate=True),
        Input("charts", "data"),
        State("drawn-charts", "data"),
        State("defaults", "data"),
        State("names", "data"),
        *[State(one.component_id, one.component_property) for one in view],
        _GROUPS,
        prevent_initial_call=True,
    )
    def change_charts(
        ids: list[str], before: list[str], defaults: list[str], names: list[str], *values: Any
    ) -> Any:
        """Take away cards, and add those that are new at the end."""
        *controls, groups = values
        snapshots, _ = last_snapshots_of(registry, _texts(names))
        view, runs = _view(controls, groups)
        new = charts_of(
            [k for k in _texts(ids) if k not in _texts(before)], snapshots, runs is not None
        )
        new = [chart for chart in new if chart.id not in before]
        left = [key for key in before if key in ids or key in defaults]
        if not snapshots or (not new and left == before):
            return no_update, no_update, no_update
        figures = draw(snapshots, new, view, None if runs is None else set(runs), names)
        cards, state = Patch(), Patch()
        for i in reversed(range(len(before))):
            if before[i] not in left:
                del cards[i]
        name = names[0] if runs is None else None
        cards.extend(cards_of(new, figures, defaults, name))
        state["has"].update(notes_of(new, figures))
        return cards, [*left, *(chart.id for chart in new)], state


def _view(controls: list[Any], groups: list[dict[str, str]]) -> tuple[View, list[str] | None]:
    """What the reader has chosen; and the runs that are drawn, where several are compared."""
    by, mean, zoom, axes, selection = controls
    if by not in ALIGNED_BY or mean not in WINDOWS:
        raise ValueError("no such axis or mean")
    for group in groups:
        _texts([*group.keys(), *group.values()])
    for runs in selection:
        _texts(runs)
    log, clip = (tuple(sorted(_texts(axes[name]))) for name in ("log", "clip"))
    # a zoom belongs to the x axis it was made on
    ours = zoom["range"] if zoom and zoom["x"] == by else None
    range_ = (float(ours[0]), float(ours[1])) if ours else None
    view = View(by, mean, range_, groups[0] if groups else {}, log, clip)
    return view, selection[0] if selection else None


def _run_parts(registry: RunRegistry, name: str, before: list[str]) -> dict[str, Any]:
    """Status line and notes; alarms, look-alikes and events only if they may have changed.

    `before` and `versions` name the rows that the words were, and are now, made from.
    """
    try:
        snapshot = registry.snapshot(name)
    except LldscopeError as error:
        return {"status": parts.notice(str(error))}
    status, notes = parts.status_line(snapshot), parts.notes(snapshot)
    updates: dict[str, Any] = {"status": status, "notes": notes}
    if before != [snapshot.version] or snapshot.state.life in ("stalled", "failed"):
        updates |= {
            "versions": [snapshot.version],
            "news": news_of_run(snapshot),
            "answer": answer(snapshot),
            "dose": dose(snapshot),
            "ways": parts.page_links(snapshot),
            "alarms": alarms(snapshot),
            "look-alikes": look_alikes(snapshot),
            "events": parts.events(snapshot),
        }
    return updates


def _comparison_parts(
    registry: RunRegistry, names: list[str], by: str, before: list[str], groups: dict[str, str]
) -> dict[str, Any]:
    """The table, if it may have changed, and the runs that the alignment has no place for."""
    snapshots, errors = last_snapshots_of(registry, names)
    gaps = [*errors.values(), "The last snapshot is shown."] if errors else []
    updates: dict[str, Any] = {"unplaced": " ".join(filter(None, [*gaps, unplaced(snapshots, by)]))}
    if any(registry.is_opening(name) for name in errors):
        return updates
    dead = any(snapshot.state.life in ("stalled", "failed") for snapshot in snapshots)
    versions = [snapshot.version for snapshot in snapshots]
    if dead or before != versions:
        updates |= {"versions": versions, "compared": compare_table(snapshots, groups, names)}
    return updates


def _in_browser(app: Dash) -> None:
    """Callbacks that run in the browser; their code is in assets/."""

    def ask(function: str, *wires: Any, first: bool = False) -> None:
        code = ClientsideFunction("lldscope", function)
        app.clientside_callback(code, *wires, prevent_initial_call=not first)

    ask("arrived", Input("page", "children"))
    ask("news", Input("news", "data"))
    ask("notices", Output("notices", "children"), Input("notices", "n_clicks"), first=True)
    ask("retry", Output("again", "data"), Input({"type": "retry", "index": ALL}, "n_intervals"))
    for tick, clock in (
        ("tick", "clock"), ("list-tick", "list-clock"), ("recording-tick", "recording-clock"),
    ):
        ask("tick", Output(tick, "data"), Input(clock, "n_intervals"), State("busy", "data"))
    ask("point", Input(_CHARTS, "hoverData"), State(_CHARTS, "id"))
    ask(
        "address",
        Input("x", "value"),
        Input("mean", "value"),
        Input("zoom", "data"),
        Input("axes", "data"),
        Input("charts", "data"),
        Input(_SHOWN, "value"),
        State("names", "data"),
        State("defaults", "data"),
    )
    ask("pinned", Input("pins", "modified_timestamp"), State("pins", "data"), first=True)
    ask(
        "tools",
        Input({"type": "tool", "index": ALL}, "n_clicks"),
        Input({"type": "add", "index": ALL}, "n_clicks"),
        State("charts", "data"),
        State("axes", "data"),
        State("defaults", "data"),
        State("pins", "data"),
    )
    ask(
        "matches",
        Output("matches", "children"),
        Input("find-chart", "value"),
        Input("charts", "data"),
        State("metrics", "data"),
        first=True,
    )
    ask("reload", Input("about-saved", "data"))
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
