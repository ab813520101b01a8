"""What the pages share: the view in the address, controls, the page's memory, pages of words."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dash import dcc, html

from lldscope.core.charts import Chart
from lldscope.core.errors import LldscopeError
from lldscope.core.terminal import visible
from lldscope.figures.chart_figures import Figure
from lldscope.figures.view import View

from ..data.run_registry import RunRegistry
from ..data.snapshot import Snapshot
from ..figures.increments import has
from .links import Query, attrs

REFRESH_MS = 2000
WINDOWS = (1, 5, 10, 25, 50)  # steps of the trailing mean
X_AXES = {"step": "step", "tokens": "tokens", "time": "time"}
PAUSE = html.Button("Pause", id="pause", className="button", title="keyboard: p")
ALIGNED_BY = X_AXES | {"onset": "onset of decay", "alarm": "decay alarm"}


def view_of(query: Query, axes: dict[str, str] = X_AXES) -> View:
    """The view a shared address asks for; what it says wrongly is passed over."""
    by = query.get("x", ["step"])[0]
    window = query.get("mean", ["10"])[0]
    zoom = None
    try:
        a, b = (float(v) for v in query["zoom"][0].split(","))
        zoom = (a, b) if a < b else None
    except (KeyError, ValueError):
        pass
    valid = window.isdigit() and int(window) in WINDOWS
    log, clip = (tuple(sorted(set(query.get(name, [])))) for name in ("log", "clip"))
    return View(by if by in axes else "step", int(window) if valid else 10, zoom, {}, log, clip)


def part_id(part: str) -> dict[str, str]:
    """The id of a part of a page that callbacks write words into."""
    return {"type": "part", "index": part}


def snapshots_of(
    registry: RunRegistry, names: Sequence[str]
) -> tuple[list[Snapshot], dict[str, str]]:
    """Looks at the runs that can be read, and a sentence for each that cannot."""

    def snapshot(name: str) -> Snapshot | str:
        try:
            return registry.snapshot(name)
        except LldscopeError as error:
            return str(error)

    with ThreadPoolExecutor(max(1, len(names))) as readers:
        answers = dict(zip(names, readers.map(snapshot, names), strict=True))
    return (
        [f for f in answers.values() if isinstance(f, Snapshot)],
        {name: f for name, f in answers.items() if isinstance(f, str)},
    )


def last_snapshots_of(
    registry: RunRegistry, names: Sequence[str]
) -> tuple[list[Snapshot], dict[str, str]]:
    """As `snapshots_of`, with the previous snapshot of each run that cannot be read now."""
    snapshots, errors = snapshots_of(registry, names)
    now = {snapshot.subject.name: snapshot for snapshot in snapshots}
    latest = [now.get(name) or registry.last(name) for name in names]
    return [snapshot for snapshot in latest if snapshot is not None], errors


def named_group(name: str, control: Any, with_key: bool = True) -> html.Div:
    """Radio buttons or boxes under a common name, which is shown or only read aloud."""
    key = [html.Span(name, className="key")] if with_key else []
    return html.Div([*key, control], role="group", className="choice", **attrs(aria_label=name))


def controls(view: View, extra: Any = None, axes: dict[str, str] = X_AXES) -> html.Div:
    """X axis and smoothing, after what a page puts in front of them."""
    means = [{"label": "raw" if w == 1 else str(w), "value": w} for w in WINDOWS]
    return html.Div(
        [
            html.Span() if extra is None else extra,
            named_group(
                "x axis" if axes is X_AXES else "aligned by",
                dcc.RadioItems(axes, view.by, id="x", className="segments"),
            ),
            named_group(
                "trailing mean, steps",
                dcc.RadioItems(means, view.window, id="mean", className="segments"),
            ),
            html.Span("drag to zoom · double-click to reset", className="quiet hint"),
        ],
        className="controls",
    )


def chart_data(snapshots: list[Snapshot], view: View, subset: list[str] | None) -> dict[str, Any]:
    """What charts are drawn from; while it stays the same there is nothing to redraw."""
    return {
        "versions": [snapshot.version for snapshot in snapshots],
        "view": [*view.key, sorted(subset or ())],
    }


def memory(
    snapshots: list[Snapshot], subset: list[str] | None, view: View, charts: Sequence[Chart],
    figures: Sequence[Figure], defaults: Sequence[str],
) -> list[Any]:
    """What the browser remembers of the page, and the clock that asks for news."""
    zoom = {"x": view.by, "range": view.zoom} if view.zoom else None
    return [
        dcc.Store(id="names", data=[snapshot.subject.name for snapshot in snapshots]),
        dcc.Store(id="charts", data=[chart.id for chart in charts]),
        dcc.Store(id="drawn-charts", data=[chart.id for chart in charts]),
        dcc.Store(id="defaults", data=list(defaults)),
        dcc.Store(id="pins", storage_type="local", data=[]),
        dcc.Store(id="axes", data={"log": view.log, "clip": view.clip}),
        dcc.Store(
            id="seen", data=chart_data(snapshots, view, subset) | {"has": notes_of(charts, figures)}
        ),
        # what words were made from
        dcc.Store(id="shown-versions", data=[snapshot.version for snapshot in snapshots]),
        dcc.Store(id="zoom", data=zoom),
        dcc.Interval(id="clock", interval=REFRESH_MS),
        dcc.Store(id="tick"),
    ]


def notes_of(charts: Sequence[Chart], figures: Sequence[Figure]) -> dict[str, Any]:
    """What the browser has of each chart: `increments`."""
    return {chart.id: has(figure) for chart, figure in zip(charts, figures, strict=True)}


def waiting_page(root: str, name: str) -> html.Div:
    """The page of a run that is not there, or not yet."""
    text = (
        f"There is no run of this name under {root}. This page refreshes when a training "
        "records there. A run that was deleted or renamed does not come back."
    )
    return message_page(f"Waiting for “{visible(name, 100)}”", text, True)


def message_page(title: str, text: str, retry: bool = False) -> html.Div:
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
