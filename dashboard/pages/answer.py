"""The answer at the top of a run: cause and action; and what title, icon and notices are made of.

Messages come from runs and are untrusted; Dash escapes what is given as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from dash import html

from lldscope.core import palette
from lldscope.core.safe_text import as_sentence
from lldscope.core.terminal import visible
from lldscope.monitor.health import RunState
from lldscope.monitor.summary import Summary

from ..data.snapshot import Snapshot
from .links import attrs, evidence

ORDER = ("critical", "warning", "stalled", "unreadable", "insufficient", "healthy")

MOST_RUNS = 100  # whose alarms are sent for notices


def answer(snapshot: Snapshot) -> list[Any]:
    """What is wrong, with the way to the evidence; and below it what to do."""
    state, headline = snapshot.state, snapshot.state.headline
    sign = state.sign
    cause: Any = visible(headline.cause)
    if headline.rule is not None:
        cause = html.A(cause, href=evidence(snapshot.name, headline.rule))
    mark = html.Span(sign.shape, className="mark", **attrs(aria_hidden="true"))
    action = as_sentence(headline.action)
    return [
        html.P([mark, cause], className="cause"),
        *([html.P(["→ ", visible(action, 500)], className="action")] if action else []),
    ]


def news(runs: Sequence[tuple[str, RunState]], title: str) -> dict[str, Any]:
    """Title and icon of the tab, and the alarms of the first MOST_RUNS runs that fire and are not
    silenced, of which the browser shows a notice when they are new (assets/news.js)."""
    verdicts = [loud(state) for _, state in runs]
    worst = next((v for v in ORDER if v in verdicts), "healthy")
    sign = palette.VERDICTS[worst]
    if worst == "healthy":  # green only where every run is
        signs = [state.sign for _, state in runs if state.verdict == worst]
        sign = next((s for s in signs if s != sign), sign)
    count = f"{verdicts.count(worst)} " if len(runs) > 1 else ""
    before = "" if worst == "healthy" else f"{sign.shape} {count}{sign.word} · "
    return {
        "title": f"{before}{visible(title, 80)} – lldscope",
        "icon": icon(sign),
        "alarms": {
            f"{visible(run, 80)}: {alert.rule}": visible(state.headline)
            for run, state in runs[:MOST_RUNS]
            for alert in state.firing
            if alert.severity != "info" and alert.rule not in state.silenced
        },
    }


def news_of_run(snapshot: Snapshot) -> dict[str, Any]:
    """The news of a page about one run."""
    return news([(snapshot.title, snapshot.state)], snapshot.title)


def news_of(lines: Sequence[Summary]) -> dict[str, Any]:
    """The news of the list of runs, those with the newest rows first."""
    newest = sorted(lines, key=lambda line: -(line.last_time or 0.0))
    return news([(line.title, line.state) for line in newest if line.state], "Runs")


def loud(state: RunState) -> str:
    """The verdict, but healthy where all that fires was acknowledged or snoozed."""
    firing = [a.rule for a in state.firing if a.severity != "info"]
    return "healthy" if firing and all(rule in state.silenced for rule in firing) else state.verdict


def icon(sign: palette.Sign) -> str:
    """The icon of the tab: the state's shape on its colour."""
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'>"
        f"<rect width='16' height='16' rx='4' fill='{sign.color}'/>"
        f"<text x='8' y='12' font-size='11' text-anchor='middle' fill='{sign.ink}'>"
        f"{sign.shape}</text></svg>"
    )
    return f"data:image/svg+xml,{quote(svg)}"
