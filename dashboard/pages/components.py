"""Pieces of pages: badges, status line, ways on, notes, events, chart cards.

Names, messages and reasons come from runs and are untrusted; Dash escapes what is given as text.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
from dash import dcc, html

from lldscope.core import palette
from lldscope.core.charts import Chart
from lldscope.core.safe_text import in_one_line
from lldscope.core.terminal import age, visible
from lldscope.diagnosis.conditions import LEAST
from lldscope.figures.chart_figures import HEIGHT, Figure, in_words, is_measured
from lldscope.figures.series import floats
from lldscope.figures.svg import DASHES
from lldscope.monitor.health import RunState

from ..data.snapshot import Snapshot
from ..figures.action_map import ACTION_MAP
from .frame import address, attrs, choice_button

GRAPH_CONFIG: Any = {
    "displaylogo": False,
    "doubleClick": "autosize",  # everything: assets/charts.js
    "displayModeBar": False,
    "showTips": False,  # the page says how to zoom out; the tip would cover its buttons
    "responsive": True,
}


def page_head(title: Any, *beside: Any, above: Any = None, look: str = "") -> html.Header:
    """The head of a page: the links above it (`above`), its title, and parts beside these."""
    titles = html.Div([*([] if above is None else [above]), html.H1(title)])
    return html.Header([titles, *beside], className=f"page-head {look}".strip())


def table(
    head: Sequence[Any], rows: Sequence[Sequence[Any]], numbers: Collection[int] = (),
    look: str | None = None, rest: str | None = None,
) -> html.Table:
    """A table of texts; a cell may be a `Td` or `Th` of its own. Columns of `numbers` are aligned
    right; the others are of the class `rest`."""

    def row(kind: Any, cells: Sequence[Any], **more: Any) -> html.Tr:
        looks = ["number" if i in numbers else rest for i in range(len(cells))]
        return html.Tr([
            cell if isinstance(cell, html.Td | html.Th) else kind(cell, className=name, **more)
            for cell, name in zip(cells, looks, strict=True)
        ])

    body = html.Tbody([row(html.Td, cells) for cells in rows])
    return html.Table([html.Thead(row(html.Th, head, scope="col")), body], className=look)


def settings_table(heads: Sequence[object], rows: Sequence[tuple[str, list[str]]]) -> html.Div:
    """Settings with their values in each of the runs that the heads name."""
    body = [
        [html.Th(html.Code(visible(name, 200)), scope="row"), *(visible(v, 2000) for v in values)]
        for name, values in rows
    ]
    settings = table(("setting", *heads), body, look="card config", rest="wrap")
    return html.Div(settings, className="wide")


def count(value: int | None) -> str:
    """A whole number; a dash where there is none."""
    return "–" if value is None else f"{value:,}"


def fact(name: str, value: Any) -> html.Span:
    """A name and its value."""
    return html.Span([html.Span(name, className="key"), value])


def run_link(name: str, text: str | None = None) -> html.A:
    """A link to a run. It loads the whole page, so that no late answer meets another page."""
    return html.A(visible(text or name), href=address("run", name), className="run-link")


def badge(sign: palette.Sign, word: str | None = None) -> html.Span:
    """A state as colour, shape and word."""
    return html.Span(
        [html.Span(sign.shape, className="shape"), word or sign.word],
        className="badge",
        style={"background": sign.color, "color": sign.ink},
    )


def mark(sign: palette.Sign) -> html.Span:
    """A state's shape in its colour, before a word."""
    return html.Span(sign.shape, className="mark", style={"--sign": sign.color})


def verdict_badge(state: RunState) -> html.Span:
    """The verdict, green only if the log allows it (`RunState.sign`). In the first steps of a run:
    how many steps are left until there is a verdict."""
    if state.verdict == "insufficient" and state.life == "live":
        steps = 0 if state.last_step is None else state.last_step + 1
        if steps < LEAST:
            return badge(palette.VERDICTS[state.verdict], f"warming up {steps}/{LEAST}")
    return badge(state.sign)


def _progress(snapshot: Snapshot) -> list[Any]:
    """The last step, the planned number of steps, and the time left at the usual pace."""
    last, total = snapshot.state.last_step, snapshot.info.get("planned_steps")
    if last is None:
        return []
    if not isinstance(total, int) or total <= last:
        return [fact("step", f"{last:,}")]
    times = floats(snapshot.subject.table, "time")[-50:]
    text = f"{last:,} of {total:,}"
    if snapshot.state.life == "live" and len(times) > 1 and np.isfinite(times).all():
        left = (total - last) * float(np.median(np.diff(times)))
        text += f", about {age(left)} left"
    return [fact("step", text)]


def status_line(snapshot: Snapshot) -> list[Any]:
    """Verdict, trend, phase, evidence, coverage, step, age of the last row, life."""
    state = snapshot.state
    possible, checks = state.coverage
    sign = palette.PHASES[state.phase]
    phase = f"{sign.shape} {sign.word}" if sign.shape.startswith("I") else sign.word
    return [
        verdict_badge(state),
        *([fact("reward", html.Strong(state.trend))] if state.trend else []),
        *([fact("phase", html.Strong(phase))]
          if state.phase not in (None, "healthy", "warmup") else []),
        html.Span(state.evidence_words),
        *([html.Span(f"{possible} of {checks} checks possible")] if checks else []),
        *_progress(snapshot),
        *([] if snapshot.last_time is None else [fact("last row", since(snapshot.last_time))]),
        _life(state),
    ]


def since(moment: float | None) -> html.Span:
    """How long ago a moment (Unix time) was; the browser keeps the words true (assets/lldscope.js).
    Empty if the moment was not recorded."""
    if moment is None:
        return html.Span()
    return html.Span(f"{age(time.time() - moment)} ago", **attrs(data_time=f"{moment:.1f}"))


def notice(why: str) -> list[Any]:
    """The status line of a run that can no longer be read."""
    return [
        badge(palette.VERDICTS["unreadable"]),
        html.Span(f"{visible(why)} The last charts are shown."),
    ]


def _life(state: RunState) -> html.Span:
    word = life_word(state)
    line = "" if word == "imported" else visible(in_one_line(state.reason or ""))
    dot = html.Span(className=f"dot {state.life}")
    reason = visible(state.reason or "")  # with its traceback, if it has one
    return html.Span([dot, f"{word}: {line}" if line else word], className="life", title=reason)


def life_word(state: RunState) -> str:
    """Whether the run is live or how it ended; an imported log does not say."""
    is_import = state.life == "finished" and (state.reason or "").startswith("imported")
    return "imported" if is_import else state.life


def page_links(snapshot: Snapshot) -> list[Any]:
    """Links from a run to the pages about it; an empty page has no link."""
    pages = {"responses": "Responses"} if "responses" in snapshot.tables else {}
    pages |= {"config": "Settings"} if snapshot.info.get("config") else {}
    links = [html.A(t, href=address(p, snapshot.name)) for p, t in pages.items()]
    title = "the post-mortem: one file that opens offline, to keep or to send"
    href = address("report", snapshot.name)
    return [*links, html.A("Report", href=href, download="", title=title)]


def notes(snapshot: Snapshot) -> list[Any]:
    """Notices about the log itself: damaged parts, dropped rows, and the questions they leave
    open."""
    damaged, drops = snapshot.state.damaged, snapshot.state.dropped
    text: list[Any] = []
    if damaged:
        text.append(html.Strong(f"{len(damaged)} damaged part(s) are left out of every chart: "))
        text.append("; ".join(visible(f"{p}: {why}") for p, why in list(damaged.items())[:5]))
        more = f"; and {len(damaged) - 5} more" if len(damaged) > 5 else ""
        text.append(f"{more}. ")
    if drops:
        text.append(html.Strong("The recorder had to drop: "))
        counts = list(drops.items())
        text.append("; ".join(f"{n} × {visible(what)}" for what, n in counts[:5]) + ". ")
    for what, why in snapshot.state.unclear.items():
        text += [html.Strong("Not known: "), f"{what} ({why}). "]
    if snapshot.state.last_step is None:
        text.append("No step has been recorded yet; charts appear with the first step.")
    return [html.Div(text, className="notice", role="status")] if text else []


def events(snapshot: Snapshot) -> list[Any]:
    """The last events of the run, newest first."""
    rows = [
        [
            "" if e.get("step") is None else str(e["step"]),
            visible(e.get("kind", "")),
            html.Td(_details(e), className="quiet wrap"),
        ]
        for e in snapshot.subject.events[-12:][::-1]
    ]
    return [table(("step", "event", "details"), rows, {0})] if rows else []


def _details(event: dict[str, Any]) -> str:
    stamp = ("time", "attempt", "rank", "kind", "step")
    return visible(", ".join(f"{k} {v}" for k, v in event.items() if k not in stamp))


def card_class(figure: Figure) -> str:
    """The class of a chart's card: it hides a card whose signals were not measured, and in the
    legend a line that was not."""
    if not is_measured(figure):
        return "card chart unmeasured"
    absent = figure["layout"]["meta"].get("absent", [])  # by their place in the legend
    return " ".join(["card chart", *(f"without-{i}" for i in absent)])


def chart_card(
    chart: Chart, figure: Figure, legend: list[Any], note: str, log: bool
) -> html.Section:
    """A titled card with one chart."""
    title = visible(chart.title, 80)
    scale = [] if chart is ACTION_MAP else [
        choice_button(f"log~{chart.id}", "log", log, title=f"a logarithmic y axis: {title}")
    ]
    graph = dcc.Graph(
        id={"type": "chart", "index": chart.id}, figure=figure, config=GRAPH_CONFIG,
        clear_on_unhover=True, className="graph",
    )
    return html.Section(
        [
            html.Header([html.H2(title), html.Div(legend, className="legend"), *scale]),
            html.P(note, className="note"),
            html.Div(graph, role="img", style={"height": HEIGHT},
                     **attrs(aria_label=f"chart of {title}, described below it")),
            html.P(in_words(figure), id={"type": "foot", "index": chart.id}, className="foot"),
        ],
        id={"type": "card", "index": chart.id},
        className=card_class(figure),
    )


def legend_of(chart: Chart) -> list[Any]:
    """The names of a chart's lines, each beside its stroke; empty if the only line has the name of
    the chart."""
    if [line.label for line in chart.lines] == [chart.title]:
        return []
    return [
        html.Span([stroke(line.color, line.dash), line.label], className="entry")
        for line in chart.lines
    ]


def stroke(color: str, dash: str) -> html.Img:
    """A short stroke in a line's colour and dash."""
    look = f"stroke='{color}' stroke-width='2.5' stroke-dasharray='{DASHES.get(dash, '')}'"
    line = f"<line x1='1' x2='21' y1='3' y2='3' {look}/>"
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 22 6'>{line}</svg>"
    return html.Img(src=f"data:image/svg+xml,{quote(svg)}", alt="", className="stroke")
