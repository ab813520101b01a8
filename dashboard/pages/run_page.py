"""One run: what is wrong and what to do, the step bar, charts, and folded below them the alarms,
other causes and events.

Messages come from runs and are untrusted; Dash escapes what is given as text.
"""

from __future__ import annotations

import time
from typing import Any

from dash import dcc, html

from lldscope.core import palette
from lldscope.core.charts import Chart
from lldscope.core.numbers import true_minus
from lldscope.core.terminal import visible
from lldscope.diagnosis.registry import LABELS, STALLED
from lldscope.explore.settings import flat
from lldscope.figures.chart_figures import Figure, is_measured
from lldscope.monitor.alerts import AnyAlert
from lldscope.monitor.health import RunState

from ..data.snapshot import Snapshot
from ..figures.delta_colors import COLORS
from . import components
from .drawing import adding, cards_of, charts_of, default_keys, draw, keys_asked
from .frame import PAUSE, Query, address, attrs, controls, crumbs, memory, part, view_of
from .step_bar import step_bar
from .story import about, answer, story_key, title_of_run

MOST_EPISODES = 4  # of an alarm that are named


def run_page(snapshot: Snapshot, query: Query) -> html.Div:
    """The page of a run."""
    view = view_of(query)
    charts = charts_of(keys_asked([snapshot], query), [snapshot])
    figures = draw([snapshot], charts, view)
    cards = cards_of(charts, figures, view, snapshot.name)
    content = run_parts(snapshot)
    info = snapshot.info
    facts = [info.get("group"), info.get("trainer"), info.get("correct_rule")]
    title = [html.H1(visible(snapshot.title)),
             html.Span(visible(" · ".join(str(f) for f in facts if f)), className="quiet")]
    sticky = html.Header(
        [
            html.Div([html.Div(title, className="title"), PAUSE], className="head-line"),
            part("status", content["status"], className="status"),
            html.Div(
                [part("steps", content["steps"], className="bar"), html.Span(id="step-mark"),
                 html.Span("", id="step-word", role="status")],
                className="step-bar", id="step-bar",
            ),
        ],
        className="page-head sticky run-head",
    )
    main = html.Div(
        [
            part("answer", content["answer"], className="answer", role="status"),
            part("notes", content["notes"]),
            html.Div(id="story", className="story"),
            controls(view, part("links", content["links"], className="ways")),
            html.Div(cards, className="charts", id="cards"),
            part("absent", absent_charts(charts, figures)),
            adding([snapshot], charts, default_keys([snapshot])),
            _fold("alarms", "Alarms", content),
            _fold("causes", "Causes that look the same on a reward curve", content),
            _fold("events", "Events", content),
            about(snapshot),
        ],
    )
    panel = html.Aside(id="batch", className="batch", style=COLORS, **attrs(aria_label="batch"))
    return html.Div(
        [
            sticky,
            html.Div([main, panel], className="beside"),
            *memory([snapshot], query, "run", story_key(snapshot)),
            dcc.Store(id="step"),
            dcc.Store(id="story-of", data=story_key(snapshot)),
            dcc.Store(id="tab-title", data=title_of_run(snapshot)),
        ]
    )


def run_parts(snapshot: Snapshot) -> dict[str, Any]:
    """What a refresh writes anew, by name."""
    alerts, events = snapshot.state.alerts, len(snapshot.subject.events)
    findings: list[str] = [*snapshot.state.look_alikes.values()]
    return {
        "status": components.status_line(snapshot),
        "steps": step_bar(snapshot),
        "answer": answer(snapshot),
        "notes": components.notes(snapshot),
        "links": components.page_links(snapshot),
        "alarms": [_alarm(a, snapshot) for a in alerts],
        "alarms-line": f"{len(snapshot.state.firing)} of {len(alerts)} fire" if alerts else "none",
        "causes": causes(snapshot),
        "causes-line": ", ".join(
            f"{n} {sign.word}" for finding, sign in palette.ANSWERS.items()
            if (n := findings.count(finding))
        ),
        "events": components.events(snapshot),
        "events-line": f"{events:,}" if events else "none",
    }


def _fold(name: str, title: str, content: dict[str, Any]) -> html.Details:
    """A folded section with a summary beside its title."""
    summary = html.Summary([html.H2(title), part(f"{name}-line", content[f"{name}-line"])])
    return html.Details([summary, part(name, content[name])], className="fold card")


def absent_charts(charts: list[Chart], figures: list[Figure]) -> list[Any]:
    """One line that names the charts without measured values."""
    titles = [chart.title for chart, f in zip(charts, figures, strict=True) if not is_measured(f)]
    return [html.P(f"Not in this log: {', '.join(titles)}.", className="note")] if titles else []


def _alarm(alert: AnyAlert, snapshot: Snapshot) -> html.Article:
    arl = snapshot.state.arl
    sign = palette.SEVERITIES[alert.severity]
    facts = {
        "means": alert.meaning,
        "looks at": alert.evidence,
        "false alarms": alert.false_alarms.replace("`arl`", f"{arl:,.0f}"),
    }
    return html.Article(
        [
            html.Header(
                [
                    components.badge(sign),
                    html.Strong(alert.rule, className="rule"),
                    html.Span(alert.state, className=f"pill {alert.state}"),
                    html.Span(_episodes(alert), className="quiet"),
                    *_silence(alert, snapshot.state),
                ]
            ),
            html.P(true_minus(visible(alert.message, 2000)), className="message"),
            html.P(["→ ", alert.advice], className="advice"),
            html.Details(
                [
                    html.Summary("Meaning, evidence, how often it is wrong"),
                    html.Dl([x for k, v in facts.items() for x in (html.Dt(k), html.Dd(v))]),
                ]
            ),
            _links(alert, snapshot),
        ],
        className="alarm",
        id=f"alarm-{alert.rule}",
        style={"--severity": sign.color},
    )


def _silence(alert: AnyAlert, state: RunState) -> list[Any]:
    """Whether `lldscope acknowledge` has acknowledged or snoozed a firing alarm."""
    if alert.state != "firing" or alert.rule not in state.silenced:
        return []
    until = state.silenced[alert.rule]
    text = "acknowledged"
    if until is not None:
        text = f"snoozed until {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(until))}"
    return [html.Span(text, className="pill")]


def _links(alert: AnyAlert, snapshot: Snapshot) -> html.Div:
    """Links from an alarm to the responses where it fired: those that lost most likelihood, or all
    if the loss was not measured."""
    rule, step = alert.rule, alert.step
    links: list[Any] = []
    if step is not None and "responses" in snapshot.tables:
        text, there = "Responses up to", address("responses", snapshot.name,
                                                 first=max(0, step - 9), last=step)
        if snapshot.state.evidence == "delta":
            text = "Responses that lost most likelihood at"
            there = address("responses", snapshot.name, alarm=rule, at=step)
        links.append(html.A(f"{text} step {step:,}", href=there))
    return html.Div(links, className="ways")


def _episodes(alert: AnyAlert) -> str:
    spans = [e for e in alert.episodes if e[0] is not None]
    if not spans:
        return ""
    head, left = spans[:MOST_EPISODES], len(spans) - MOST_EPISODES
    ranges = [f"{a:,}–{b:,}" if b is not None else f"{a:,}–now" for a, b in head]
    more = f" and {left} more times" if left > 0 else ""
    return f"steps {', '.join(ranges)}{more}"


def causes(snapshot: Snapshot) -> html.Table:
    """The causes that look like LLD on a reward curve, and the log's answer to each."""
    rows = []
    for cause, finding in snapshot.state.look_alikes.items():
        sign = palette.ANSWERS[finding]
        evidence = true_minus(snapshot.state.look_alike_evidence[cause])
        answer_cell: list[Any] = [html.Span(sign.shape, className="shape"), sign.word]
        rows.append([
            LABELS.get(cause, STALLED.cause if cause == STALLED.id else cause),
            html.Td(answer_cell, className=finding),
            html.Td(evidence, className="quiet"),
        ])
    return components.table(("cause", "this log", "evidence"), rows)


def config_page(snapshot: Snapshot, query: Query) -> html.Div:
    """The settings of a run."""
    rows = [(name, [value]) for name, value in flat(snapshot.info.get("config")).items()]
    nothing = html.P("The run has no configuration recorded.", className="note")
    body = components.settings_table(["value"], rows) if rows else nothing
    way = crumbs(snapshot.name, snapshot.title)
    return html.Div([components.page_head("Settings", above=way), body])
