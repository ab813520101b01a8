"""One run: status line, eight charts, and under them alarms, look-alikes and events.

Messages come from runs and are untrusted; Dash escapes what is given as text.
"""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from lldscope.core import palette
from lldscope.core.errors import LldscopeError
from lldscope.core.numbers import true_minus
from lldscope.core.terminal import visible
from lldscope.diagnosis.registry import RULES, STALLED
from lldscope.explore.experiments import Experiment, experiments, has_experiments
from lldscope.monitor.alerts import AnyAlert
from lldscope.monitor.health import RunState
from lldscope.storage.url import Url, place_of

from ..data.snapshot import Snapshot
from ..figures import wording as words
from . import components as parts
from .about import about
from .adding import adding
from .answer import answer, news_of_run
from .dose import dose
from .drawing import cards_of, charts_of, default_keys, draw, keys_asked
from .frame import PAUSE, controls, memory, part_id, view_of
from .links import Query, address

SNOOZE_HOURS = 8
MOST_EPISODES = 4  # of an alarm that are named
RULE_IDS = {rule.id for rule in (*RULES, STALLED)}  # those with a page of their own


def run_page(snapshot: Snapshot, query: Query) -> html.Div:
    """The page of a run."""
    view = view_of(query)
    defaults = default_keys([snapshot])
    charts = charts_of(keys_asked([snapshot], query), [snapshot])
    figures = draw([snapshot], charts, view)
    cards = cards_of(charts, figures, defaults, snapshot.name)
    info = snapshot.info
    facts = [info.get("group"), info.get("trainer"), info.get("correct_rule")]
    about_run = " · ".join(str(f) for f in facts if f)
    return html.Div(
        [
            _head(visible(snapshot.title), visible(about_run), snapshot),
            html.Div(
                [html.Div(dose(snapshot), id=part_id("dose"), className="dose"), about(snapshot)],
                className="beneath",
            ),
            html.Div(parts.notes(snapshot), id=part_id("notes")),
            controls(
                view, html.Div(parts.page_links(snapshot), id=part_id("ways"), className="ways")
            ),
            html.Div(cards, className="charts", id="cards"),
            adding([snapshot], defaults),
            _below(snapshot),
            *memory([snapshot], None, view, charts, figures, defaults),
            dcc.Store(id="news", data=news_of_run(snapshot)),
        ]
    )


def _head(title: str, facts: str, snapshot: Snapshot) -> html.Header:
    return html.Header(
        [
            html.Div([html.H1(title), html.Span(facts, className="quiet")], className="title"),
            PAUSE,
            html.Div(answer(snapshot), id=part_id("answer"), className="answer"),
            html.Div(parts.status_line(snapshot), id=part_id("status"), className="status"),
        ],
        className="page-head sticky run-head",
    )


def _below(snapshot: Snapshot) -> html.Div:
    """Alarms on the left, look-alikes and events on the right."""
    alike = [
        html.H2("Look-alikes"),
        html.P("Causes that look the same on a reward curve.", className="note"),
        html.Div(look_alikes(snapshot), id=part_id("look-alikes")),
    ]
    happened = [html.H2("Events"), html.Div(parts.events(snapshot), id=part_id("events"))]
    left = [
        html.H2("Alarms"),
        html.P("", id="note-said", className="note", role="status"),
        html.Div(alarms(snapshot), id=part_id("alarms")),
    ]
    right = [html.Section(alike, className="card"), html.Section(happened, className="card")]
    if tries := experiments_of(snapshot):
        right.append(html.Section([html.H2("What was tried"), *tries], className="card"))
    return html.Div([html.Section(left, className="card"), html.Div(right)], className="below")


def experiments_of(snapshot: Snapshot) -> list[Any]:
    """The answers of `blame` and `rescue`, and the attempts."""
    place = place_of(snapshot.state.path)
    if isinstance(place, Url) or not has_experiments(place, snapshot.info):
        return []
    try:
        tries = experiments(snapshot.run)
    except LldscopeError:
        return []
    return [part for e in tries for part in _experiment(e, snapshot.name)]


def _experiment(e: Experiment, name: str) -> list[Any]:
    rows = [[visible(cell) for cell in row] for row in e.rows]
    links = [
        html.Li([html.A(f"step {x.step}, response {x.response_id}",
                        href=address("response", name, step=x.step, id=x.response_id)),
                 f": {visible(x.words)}"])
        for x in e.links
    ]
    return [
        html.P(visible(e.sentence, 2000)),
        html.Details([html.Summary(e.title),
                      html.Div(parts.table(e.head, rows, range(1, len(e.head))), className="wide"),
                      html.Ul(links)]),
    ]


def alarms(snapshot: Snapshot) -> list[Any]:
    """Every alarm that ever fired, with what it means and what to do."""
    alerts = snapshot.state.alerts
    if not alerts:
        return [html.P("No alarm has fired.", className="quiet")]
    return [_alarm(a, snapshot) for a in alerts]


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
                    parts.badge(sign),
                    html.Strong(alert.rule, className="rule"),
                    html.Span(alert.state, className=f"pill {alert.state}"),
                    html.Span(_episodes(alert), className="quiet"),
                    *_quieting(alert, snapshot.state),
                ]
            ),
            html.P(true_minus(visible(alert.message, 2000)), className="message"),
            html.P(["→ ", alert.advice], className="advice"),
            html.Details(
                [
                    html.Summary("What this means, what it looks at, how often it is wrong"),
                    html.Dl([x for k, v in facts.items() for x in (html.Dt(k), html.Dd(v))]),
                ]
            ),
            _links(alert, snapshot),
        ],
        className="alarm",
        id=f"alarm-{alert.rule}",
        style={"--severity": sign.color},
    )


def _quieting(alert: AnyAlert, state: RunState) -> list[Any]:
    """Whether a firing alarm is silenced, and the buttons that change it."""
    if alert.state != "firing" or alert.severity == "info":
        return []
    if alert.rule in state.silenced:
        until = state.silenced[alert.rule]
        text = "acknowledged" if until is None else f"snoozed until {parts.clock(until)}"
        return [html.Span(text, className="pill"), _note(alert.rule, "heard", "Unmute")]
    if isinstance(place_of(state.path), Url):
        return []  # nothing can be noted there
    return [
        _note(alert.rule, "acknowledge", "Acknowledge"),
        _note(alert.rule, "snooze", f"Snooze {SNOOZE_HOURS} h"),
    ]


def _note(rule: str, kind: str, text: str) -> html.Button:
    index = f"{kind} {rule}"
    return html.Button(text, id={"type": "note", "index": index}, className="button small")


def _links(alert: AnyAlert, snapshot: Snapshot) -> html.Div:
    """From an alarm to its rule, and to the responses where it fired: those that lost most
    likelihood, or all where that was not measured."""
    rule, step = alert.rule, alert.step
    links: list[Any] = []
    # An alarm that became worse did so at `step`, after it had fired.
    steps = [step, *(first for first, _ in alert.episodes[:MOST_EPISODES])]
    for at in sorted({s for s in steps if s is not None}) if "responses" in snapshot.tables else []:
        name = snapshot.subject.name
        if snapshot.state.evidence == "delta":
            there = address("responses", name, alarm=rule, at=at)
            text = "again at" if links else "Responses that lost most likelihood at"
        else:
            there = address("responses", name, first=max(0, at - 9), last=at)
            text = "again up to" if links else "Responses up to"
        links.append(html.A(f"{text} step {at:,}", href=there))
    if rule in RULE_IDS:
        links.append(html.A(f"About {rule}", href=f"/rules/{rule}"))
    return html.Div(links, className="ways")


def _episodes(alert: AnyAlert) -> str:
    spans = [e for e in alert.episodes if e[0] is not None]
    if not spans:
        return ""
    head, left = spans[:MOST_EPISODES], len(spans) - MOST_EPISODES
    ranges = [f"{a:,}–{b:,}" if b is not None else f"{a:,}–now" for a, b in head]
    more = f" and {left} more times" if left > 0 else ""
    return f"steps {', '.join(ranges)}{more}"


def look_alikes(snapshot: Snapshot) -> html.Table:
    """What looks like LLD on a reward curve, and what this log says of each."""
    rows = []
    for cause, finding in snapshot.state.look_alikes.items():
        sign = palette.ANSWERS[finding]
        evidence = true_minus(snapshot.state.look_alike_evidence[cause])
        answer_cell: list[Any] = [html.Span(sign.shape, className="shape"), sign.word]
        rows.append([
            _cause(cause),
            html.Td(answer_cell, className=finding, title=words.FINDINGS[finding]),
            html.Td(evidence, className="quiet"),
        ])
    return parts.table(("cause", "this log", "evidence"), rows)


def _cause(cause: str) -> Any:
    """A cause by its name, and the page of its rule where it has one."""
    name = words.LOOK_ALIKES.get(cause, cause)
    rule = "lld-decay" if cause == "lld" else cause
    return html.A(name, href=f"/rules/{rule}") if rule in RULE_IDS else name
