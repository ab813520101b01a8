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
from lldscope.core.charts import ACTIONS_SHOWN, DELTA_OF_ACTION, Chart
from lldscope.core.numbers import true_minus
from lldscope.core.safe_text import in_one_line
from lldscope.core.terminal import visible
from lldscope.figures.chart_figures import HEIGHT, Figure, absent_lines, is_measured, remarks
from lldscope.figures.series import floats
from lldscope.figures.view import coverage, verdict_sign
from lldscope.monitor.health import RunState

from ..data.metrics import has_values, machine_keys
from ..data.snapshot import Snapshot
from ..figures import wording as words
from ..figures.histogram import Histogram
from .links import address, attrs, evidence

DELTAS_OF_ACTIONS = [DELTA_OF_ACTION.format(i) for i in range(ACTIONS_SHOWN)]
GRAPH_CONFIG: Any = {
    "displaylogo": False,
    "doubleClick": "autosize",  # everything: assets/charts.js
    "displayModeBar": False,
    "showTips": False,  # the page says how to zoom out; the tip would cover its buttons
    "responsive": True,
}


def page_head(title: Any, *beside: Any, above: Any = None, look: str = "") -> html.Header:
    """The head of a page: the way to it (`above`), its title, and what stands beside these."""
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


def count(value: int | None) -> str:
    """A whole number; a dash where there is none."""
    return "–" if value is None else f"{value:,}"


def fact(name: str, *value: Any, **more: Any) -> html.Span:
    """A value after its name."""
    return html.Span([html.Span(name, className="key"), *value], **more)


def run_link(name: str, text: str | None = None) -> html.A:
    """A link to a run; a whole load, so that no late answer meets a page that has changed."""
    href = f"/run/{quote(name)}"
    return html.A(visible(text or name), href=href, className="run-link")


def badge(sign: palette.Sign, word: str | None = None, note: str | None = None) -> html.Span:
    """A state as colour, shape and word."""
    return html.Span(
        [html.Span(sign.shape, className="shape"), word or sign.word],
        className="badge",
        style={"background": sign.color, "color": sign.ink},
        title=note,
    )


def mark(sign: palette.Sign) -> html.Span:
    """A state's shape in its colour, before a word."""
    return html.Span(sign.shape, className="mark", style={"--sign": sign.color})


def verdict_badge(state: RunState, trend: str = "") -> html.Span:
    """The verdict, green only where the log allows that: `verdict_sign`."""
    return badge(verdict_sign(state, trend))


def _progress(snapshot: Snapshot) -> list[Any]:
    """The last step, of how many if that is planned, and what is left at the usual pace."""
    last, total = snapshot.state.last_step, snapshot.info.get("planned_steps")
    if last is None:
        return []
    if not isinstance(total, int) or total <= last:
        return [fact("step", f"{last:,}")]
    times = floats(snapshot.subject.table, "time")[-50:]
    text = f"{last:,} of {total:,}"
    if snapshot.state.life == "live" and len(times) > 1 and np.isfinite(times).all():
        left = (total - last) * float(np.median(np.diff(times)))
        text += f", about {words.age(left).removesuffix(' ago')} left"
    return [fact("step", text)]


def status_line(snapshot: Snapshot) -> list[Any]:
    """Verdict, trend, phase, evidence, coverage, the worst firing alarm, step, age of the last row,
    life."""
    state, trend = snapshot.state, snapshot.subject.trend
    possible, checks = coverage(state)
    age = words.age(state.last_row_age_seconds, state.last_step is not None)
    phase = state.phase
    sign = palette.PHASES[phase]
    numeral = f"{sign.shape} {sign.word}" if sign.shape.startswith("I") else sign.word
    return [
        verdict_badge(state, trend),
        *([fact("reward", html.Strong(trend))] if trend else []),
        *([fact("phase", html.Strong(numeral), title=words.PHASES[phase])] if phase else []),
        fact("evidence", state.evidence_words, title=words.EVIDENCE[state.evidence]),
        *([html.Span(f"{possible} of {checks} checks possible")] if checks else []),
        _firing(snapshot.subject.name, state),
        *([fact("last row", age, className="age")] if age else []),
        *_progress(snapshot),
        _life(state),
    ]


def since(moment: float | None, rows: bool) -> html.Span:
    """How long ago a moment is (Unix time), which the browser keeps true by itself; None as in
    `words.age`."""
    if moment is None:
        return html.Span(words.age(None, rows))
    return html.Span(words.age(time.time() - moment), **attrs(data_time=f"{moment:.1f}"))


def notice(why: str) -> list[Any]:
    """The status line of a run that can no longer be read."""
    return [
        badge(palette.VERDICTS["unreadable"]),
        html.Span(f"{visible(why)} The last charts are shown."),
    ]


def _life(state: RunState) -> html.Span:
    reason = visible(state.reason or "")  # with its traceback, if it has one
    line = visible(in_one_line(state.reason or ""))
    text = f"{state.life}: {line}" if line else state.life
    dot = html.Span(className=f"dot {state.life}")
    return html.Span([dot, text], className="life", title=reason)


def clock(moment: float) -> str:
    """A Unix time as a date of UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))


def _firing(name: str, state: RunState) -> html.Span:
    firing = [a for a in state.firing if a.severity != "info"] or state.firing
    if not firing:
        return fact("alarm", "none firing")
    worst = firing[0]
    text: list[Any] = [html.A(html.Strong(worst.rule), href=evidence(name, worst.rule))]
    if worst.start is not None:
        text += [f" {worst.since} ({(state.last_step or 0) - worst.start:,} steps ago)"]
    if len(firing) > 1:
        text += [html.Span(f" +{len(firing) - 1} more", className="quiet")]
    sign = palette.SEVERITIES[worst.severity]
    message = true_minus(visible(worst.message))
    return fact("alarm", mark(sign), *text, title=message)


def page_links(snapshot: Snapshot) -> list[Any]:
    """From a run to the pages about what it is made of; none to one that would be empty."""
    pages = {"recording": "Recording"}
    if machine_keys(snapshot):
        pages = {"system": "System"} | pages
    if snapshot.info.get("config"):
        pages = {"config": "Configuration"} | pages
    if any(has_values(snapshot.subject.table, name) for name in DELTAS_OF_ACTIONS):
        pages = {"actions": "Δ by action and step"} | pages
    if "responses" in snapshot.tables:
        pages = {"responses": "Responses"} | pages
    links = [html.A(t, href=address(p, snapshot.subject.name)) for p, t in pages.items()]
    title = "the post-mortem: one file that opens offline, to keep or to send"
    href = address("report", snapshot.subject.name)
    links.append(html.A("Report", href=href, download="", title=title))
    return links


def notes(snapshot: Snapshot) -> list[Any]:
    """Notices about the log itself: damaged parts, dropped rows."""
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
    if snapshot.state.last_step is None:
        text.append("No step has been recorded yet; the charts fill by themselves.")
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
    if not rows:
        return [html.P("No events were recorded.", className="quiet")]
    return [table(("step", "event", "details"), rows, {0})]


def _details(event: dict[str, Any]) -> str:
    stamp = ("time", "attempt", "rank", "kind", "step")
    return visible(", ".join(f"{k} {v}" for k, v in event.items() if k not in stamp))


def card_class(figure: Figure) -> str:
    """The class of a chart's card; one whose signals were not measured is small and comes last, and
    a line that was not measured is not in the legend."""
    if not is_measured(figure):
        return "card chart unmeasured"
    return " ".join(["card chart", *(f"without-{i}" for i in absent_lines(figure))])


def chart_card(
    chart: Chart, figure: Figure, legend: list[Any], note: str, name: str | None, extra: bool
) -> html.Section:
    """A titled card with one chart: of the run of this `name`, or of several; one that the reader
    `extra` can be removed."""
    return html.Section(
        [
            html.Header(
                [
                    html.H2(visible(chart.title, 80)),
                    html.Div(legend, className="legend"),
                    tools(chart, name, extra),
                ]
            ),
            html.P(note, className="note"),
            dcc.Graph(
                id={"type": "chart", "index": chart.id},
                figure=figure,
                config=GRAPH_CONFIG,
                clear_on_unhover=True,
                className="graph",
                style={"height": HEIGHT},
            ),
            html.P(remarks(figure), id={"type": "foot", "index": chart.id}, className="foot"),
        ],
        id={"type": "card", "index": chart.id},
        className=card_class(figure),
    )


def tools(chart: Chart, name: str | None, extra: bool) -> html.Details:
    """What can be done with a chart; assets/lldscope.js does it."""
    every = [
        ("log", "log y", "a logarithmic y axis"),
        ("clip", "clip outliers", "a y axis that leaves out the lowest and highest 1 %"),
        ("full", "full screen", "this chart alone"),
        ("png", "PNG", "this chart as a picture"),
    ]
    offered = every[2:] if isinstance(chart, Histogram) else every
    offered += [("drop", "remove", "remove this chart from the page")] if extra else []
    buttons: list[Any] = [
        html.Button(
            text, id={"type": "tool", "index": f"{tool} {chart.id}"}, className="button small",
            title=title,
        )
        for tool, text, title in offered
    ]
    if name is not None:
        href = address("csv", name, chart=chart.id)
        buttons.append(html.A("CSV", href=href, download="", className="button small"))
    summary = html.Summary("⋯", **attrs(aria_label=f"tools of {chart.title}"))
    return html.Details([summary, html.Div(buttons)], className="tools")


def legend_of(chart: Chart) -> list[Any]:
    """Names of a chart's lines, each beside a stroke as it is drawn; nothing where the only line is
    called as the chart is."""
    if [line.label for line in chart.lines] == [chart.title]:
        return []
    return [
        html.Span([stroke(line.color, line.dash), line.label], className="entry")
        for line in chart.lines
    ]


def stroke(color: str, dash: str) -> html.Img:
    """A short stroke in a line's colour and dash."""
    pattern = {"solid": "", "dash": "6,4", "dot": "2,3", "dashdot": "6,3,2,3", "longdash": "9,4"}
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 22 6'><line x1='1' x2='21' y1='3' "
        f"y2='3' stroke='{color}' stroke-width='2.5' stroke-dasharray='{pattern[dash]}'/></svg>"
    )
    return html.Img(src=f"data:image/svg+xml,{quote(svg)}", alt="", className="stroke")
