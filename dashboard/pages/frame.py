"""What the pages share: addresses, the view in them, controls, the page's memory, pages of words.

The view of a page is the query of its address, and nothing else: the browser changes it, writes it
into the address, and sends it (assets/address.js). A button with `data-set="KEY=VALUE"` sets the
value; a button with `KEY~VALUE` adds the value, or removes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal
from urllib.parse import quote, urlencode

from dash import dcc, html

from lldscope.core.errors import LldscopeError
from lldscope.core.terminal import visible
from lldscope.figures.view import View

from ..data.run_registry import RunRegistry
from ..data.snapshot import Snapshot
from ..security import at

REFRESH_MS = 2000
WINDOWS = (1, 5, 10, 25, 50)  # steps of the trailing mean
X_AXES = {"step": "step", "tokens": "tokens", "time": "time"}
ALIGNED_BY = X_AXES | {"onset": "onset of decay"}
PAUSE = html.Button("Pause", id="pause", className="button", title="keyboard: p")
MOST_VALUES, LONGEST = 200, 400  # of one part of a view, and characters of a value


def query_of(view: Any) -> Query:
    """A view that a browser sent, as the query of an address."""
    return {key: [v[:LONGEST] for v in values[:MOST_VALUES]] for key, values in view.items()}


def view_of(query: Query, axes: dict[str, str] = X_AXES) -> View:
    """The view that a query asks for; wrong values are passed over."""
    by, window = text(query, "x") or "step", text(query, "mean") or "10"
    zoom = None
    try:
        a, b = (float(v) for v in (text(query, "zoom") or "").split(","))
        zoom = (a, b) if a < b else None
    except ValueError:
        pass
    valid = window.isdecimal() and int(window) in WINDOWS
    log = tuple(sorted(set(query.get("log", []))))
    return View(by if by in axes else "step", int(window) if valid else 10, zoom, {}, log)


def part(name: str, content: Any, **more: Any) -> html.Div:
    """A part of a page that a refresh writes anew."""
    return html.Div(content, id={"type": "part", "index": name}, **more)


def choice_button(setting: str, label: Any, pressed: bool, **more: Any) -> html.Button:
    """A button that changes the view. If its value is the usual one, the `VALUE` of `KEY=VALUE` is
    empty."""
    more = {"className": "button small"} | more
    return html.Button(label, **more, **attrs(data_set=setting, aria_pressed=str(pressed).lower()))


def segments(
    name: str, key: str, options: Mapping[str, str], value: str, usual: str, with_key: bool = True
) -> html.Div:
    """Buttons of which one is pressed; their common name is shown or only read aloud."""
    label = [html.Span(name, className="key")] if with_key else []
    buttons = [
        choice_button(f"{key}={'' if v == usual else v}", word, v == value, className="segment")
        for v, word in options.items()
    ]
    content = [*label, html.Span(buttons, className="segments")]
    return html.Div(content, role="group", className="choice", **attrs(aria_label=name))


def snapshots_of(
    registry: RunRegistry, names: Sequence[str]
) -> tuple[list[Snapshot], list[LldscopeError]]:
    """Snapshots of the readable runs, and the reasons why other runs are not readable."""

    def snapshot(name: str) -> Snapshot | LldscopeError:
        try:
            return registry.snapshot(name)
        except LldscopeError as error:
            return error

    with ThreadPoolExecutor(max(1, len(names))) as readers:
        answers = [*readers.map(snapshot, names)]
    return (
        [answer for answer in answers if isinstance(answer, Snapshot)],
        [answer for answer in answers if isinstance(answer, LldscopeError)],
    )


def controls(view: View, extra: Any = None, axes: dict[str, str] = X_AXES) -> html.Div:
    """The controls of X axis and smoothing, after the page's own controls."""
    means = {str(w): "raw" if w == 1 else str(w) for w in WINDOWS}
    return html.Div(
        [
            *([] if extra is None else [extra]),
            segments("x axis" if axes is X_AXES else "aligned by", "x", axes, view.by, "step"),
            segments("trailing mean, steps", "mean", means, str(view.window), "10"),
            html.Span("drag to zoom · double-click to reset", className="quiet hint"),
        ],
        className="controls",
    )


def memory(
    snapshots: list[Snapshot], query: Query, kind: Literal["run", "compare"], *keys: str
) -> list[Any]:
    """The data that the browser keeps of the page, and the clock that asks for news. `keys`: what
    changes the page besides rows."""
    view = {key: values for key, values in query.items() if key != "run"}
    return [
        dcc.Store(id="kind", data=kind),
        dcc.Store(id="names", data=[snapshot.name for snapshot in snapshots]),
        dcc.Store(id="view", data=view),
        dcc.Store(id="drawing", data=view),  # the view that charts are drawn by
        dcc.Store(id="seen", data=[*(snapshot.version for snapshot in snapshots), *keys]),
        dcc.Interval(id="clock", interval=REFRESH_MS),
        dcc.Store(id="tick"),
    ]


def message_page(title: str, message: str, retry: bool = False) -> html.Div:
    """A page that says why there is nothing to see; with `retry` it looks again by itself."""
    again = dcc.Interval(id={"type": "retry", "index": 0}, interval=REFRESH_MS)
    return html.Div(
        [
            html.H1(title),
            html.P(visible(message, 2000)),
            html.P(html.A("All runs", href=at("/"))),
            *([again] if retry else []),
        ],
        className="card empty",
    )


Query = dict[str, list[str]]


def attrs(**values: Any) -> Any:
    """Attributes such as `aria_label="…"` under Dash's names, without those that are None."""
    return {name.replace("_", "-"): value for name, value in values.items() if value is not None}


def address(page: str, name: str, **query: Any) -> str:
    """The address of a page about a run; the query leaves values out that are None."""
    path = at(f"/{page}/{quote(name)}")
    values = {k.rstrip("_"): v for k, v in query.items() if v is not None}
    return f"{path}?{urlencode(values, doseq=True)}" if values else path


def evidence(name: str, rule: str) -> str:
    """The place on a run's page that shows an alarm with its evidence."""
    return f"{address('run', name)}#alarm-{quote(rule)}"


def crumbs(name: str, label: str, *steps: tuple[str, str]) -> html.P:
    """Links from the list of runs to the run, by its name, to this page."""
    links = [("Runs", "/"), (visible(label), address("run", name)), *steps]
    parts: list[Any] = []
    for text, href in links:
        parts += [html.A(text, href=href), html.Span(" › ", **attrs(aria_hidden="true"))]
    return html.P(parts, className="crumbs quiet")


def way(word: str, href: str | None, key: str) -> html.A | html.Span:
    """A button to a neighbour, which a key presses, too; disabled if there is no neighbour."""
    if href is None:
        return html.Span(word, className="button disabled", **attrs(aria_disabled="true"))
    title = f"keyboard: {key}"
    return html.A(word, href=href, className="button", title=title, **attrs(data_key=key))


def pager(first: int, last: int, total: int, before: str | None, after: str | None) -> html.Div:
    """The numbers of the rows on this page, and links to the rows before and after."""
    here = html.Span(f"{first:,}–{last:,} of {total:,}" if total else "")
    ways = way("Previous", before, "["), way("Next", after, "]")
    return html.Div([ways[0], here, ways[1]], className="pager")


def whole(query: Query, name: str, least: int = 0) -> int | None:
    """A whole number of the query; None if it is absent or no whole number."""
    value = text(query, name)
    try:
        number = int(value) if value else None
    except ValueError:
        return None
    return None if number is None or not least <= number < 2**31 else number


def yes_no(query: Query, name: str) -> bool | None:
    """yes or no of the query; None if it says neither."""
    return {"yes": True, "no": False}.get(text(query, name) or "")


def text(query: Query, name: str) -> str | None:
    """The first value of that name in the query."""
    return next(iter(query.get(name, [])), None)
