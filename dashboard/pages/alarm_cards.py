"""What stands under the charts of a run: its alarms, and what else looks like LLD.

Messages come from runs and are untrusted; Dash escapes what is given as text.
"""

from __future__ import annotations

from typing import Any

from dash import html

from lldscope.alarms.registry import RULES, STALLED
from lldscope.core import palette
from lldscope.core.numbers import true_minus
from lldscope.monitor.health import AnyAlert

from ..data.run_registry import Snapshot
from ..figures import wording as words
from .components import badge
from .links import address

MOST_EPISODES = 4  # of an alarm that are named
RULE_IDS = {rule.id for rule in (*RULES, STALLED)}  # those with a page of their own


def alarms(snapshot: Snapshot) -> list[Any]:
    """Every alarm that ever fired, with what it means and what to do."""
    alerts = snapshot.state.alerts
    if not alerts:
        return [html.P("No alarm has fired.", className="quiet")]
    return [_alarm(a, snapshot) for a in alerts]


def _alarm(alert: AnyAlert, snapshot: Snapshot) -> html.Article:
    arl = snapshot.state.arl
    sign = palette.SEVERITIES[alert.severity]
    facts = [("means", alert.meaning), ("looks at", alert.evidence), ("do", alert.advice)]
    facts.append(("false alarms", alert.false_alarms.replace("`arl`", f"{arl:,.0f}")))
    return html.Article(
        [
            html.Header(
                [
                    badge(sign),
                    html.Strong(alert.rule, className="rule"),
                    html.Span(alert.state, className=f"pill {alert.state}"),
                    html.Span(_episodes(alert), className="quiet"),
                ]
            ),
            html.P(true_minus(words.visible(alert.message, 2000)), className="message"),
            html.Dl([x for k, v in facts for x in (html.Dt(k), html.Dd(v))]),
            _ways(alert, snapshot),
        ],
        className="alarm",
        style={"--severity": sign.color},
    )


def _ways(alert: AnyAlert, snapshot: Snapshot) -> html.Div:
    """From an alarm to its rule, and to the responses that lost most likelihood where it fired."""
    rule, step = alert.rule, alert.step
    ways: list[Any] = []
    later = [fired for fired, _ in alert.episodes[1:MOST_EPISODES]]
    for at in [s for s in (step, *later) if s is not None]:
        there = address("responses", snapshot.subject.name, alarm=rule, at=at)
        said = "again at" if ways else "Responses that lost most likelihood at"
        ways.append(html.A(f"{said} step {at:,}", href=there))
    if rule in RULE_IDS:
        ways.append(html.A(f"About {rule}", href=f"/rules/{rule}"))
    return html.Div(ways, className="ways")


def _episodes(alert: AnyAlert) -> str:
    spans = [e for e in alert.episodes if e[0] is not None]
    if not spans:
        return ""
    shown, left = spans[:MOST_EPISODES], len(spans) - MOST_EPISODES
    ranges = [f"{a:,}–{b:,}" if b is not None else f"{a:,}–now" for a, b in shown]
    more = f" and {left} more times" if left > 0 else ""
    return f"steps {', '.join(ranges)}{more}"


def look_alikes(snapshot: Snapshot) -> html.Table:
    """What looks like LLD on a reward curve, and what this log says of each."""
    rows = []
    for cause, finding in snapshot.state.look_alikes.items():
        shape, word, note = words.FINDINGS[finding]
        evidence = true_minus(snapshot.state.look_alike_evidence[cause])
        rows.append(
            html.Tr(
                [
                    html.Td(_cause(cause)),
                    html.Td([html.Span(shape, className="shape"), word], className=finding),
                    html.Td(evidence, className="quiet"),
                ],
                title=note,
            )
        )
    head = html.Tr([html.Th("cause"), html.Th("this log"), html.Th("evidence")])
    return html.Table([html.Thead(head), html.Tbody(rows)])


def _cause(cause: str) -> Any:
    """A cause by its name, and the page of its rule where it has one."""
    name = words.LOOK_ALIKES.get(cause, cause)
    rule = "lld-decay" if cause == "lld" else cause
    return html.A(name, href=f"/rules/{rule}") if rule in RULE_IDS else name
