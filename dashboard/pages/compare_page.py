"""Runs compared: a table of where they stand, and the eight charts with all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isnan
from typing import Any

from dash import dcc, html

from lldscope.core import palette

from ..data.run_registry import RunRegistry
from ..data.snapshot import Snapshot
from ..figures import wording as words
from ..figures.averages import lines_of
from ..figures.chart_figures import run_style, zero
from ..figures.series import SINCE
from . import components as parts
from .adding import adding
from .drawing import DEFAULTS, MOST_ADDED, charts_of, draw
from .frame import (
    ALIGNED_BY,
    PAUSE,
    controls,
    memory,
    message_page,
    named_group,
    part_id,
    snapshots_of,
    view_of,
)
from .grouping import averaged, averaged_by, choice, groups_of
from .links import address

MOST_COMPARED = 20


def compare_page(registry: RunRegistry, query: dict[str, list[str]]) -> html.Div:
    """The page that compares the runs the address names, or a message if none can be read."""
    names = list(dict.fromkeys(query.get("run", [])))
    snapshots, lost = snapshots_of(registry, names[:MOST_COMPARED])
    if waits := [name for name in lost if registry.is_opening(name)]:
        progress = f"{len(snapshots)} of {len(snapshots) + len(waits)} runs are read."
        return message_page("The runs are being read", progress, retry=True)
    if not snapshots:
        why = "; ".join(lost.values()) or "Choose runs in the list, then press Compare."
        return message_page("No runs to compare", why, retry=bool(lost))
    by = averaged_by(query)
    view = replace(view_of(query, ALIGNED_BY), groups=groups_of(snapshots, by))
    hidden = set(query.get("hide", []))
    subjects = [snapshot.subject for snapshot in snapshots]
    known = [s.name for s in subjects]
    shown = [name for name in known if name not in hidden]
    added = [key for key in query.get("chart", [])[:MOST_ADDED] if key not in DEFAULTS]
    charts = charts_of([*DEFAULTS, *added], snapshots, True)
    figures = draw(registry, snapshots, charts, view, set(shown))
    cards = [
        parts.chart_card(
            c, figure, [], f"{c.compared or c.note}; vertical line: decay alarm", None,
            c.id not in DEFAULTS,
        )
        for c, figure in zip(charts, figures, strict=True)
    ]  # fmt: skip
    styles = styles_of(known, view.groups)
    labels: dict[str, list[Any]] = {
        s.name: [parts.stroke(*styles[s.name]), words.visible(s.called)] for s in subjects
    }
    options = [
        {"label": html.Span(label, className="entry"), "value": n} for n, label in labels.items()
    ]
    boxes = dcc.Checklist(options, shown, id={"type": "shown", "index": 0}, className="shown")
    many = f"{len(names)} runs were asked for; the first {MOST_COMPARED} are shown."
    missed = [*lost.values(), *([many] if len(names) > MOST_COMPARED else [])]
    title = html.H1(f"{len(subjects)} runs compared")
    settings = address("config", known[0], with_=known[1:])
    differ = [html.A("Where they differ", href=address("diff", known[0], with_=known[1]),
                     className="button")] if len(known) == 2 else []  # fmt: skip
    buttons = [
        *differ,
        html.A("Settings that differ", href=settings, className="button"),
        *choice(snapshots, by),
        PAUSE,
    ]
    missing = unplaced(snapshots, view.by)
    return html.Div(
        [
            html.Header([title, html.Div(buttons, className="buttons")], className="page-head"),
            html.Div(" ".join(missed), className="notice", role="status") if missed else None,
            html.Div(compare_table(snapshots, view.groups, known), id=part_id("compared")),
            *averaged(known, dict(view.groups)),
            controls(view, None, ALIGNED_BY),
            named_group("runs drawn", boxes, seen=False),
            html.P(missing, id=part_id("unplaced"), className="unplaced quiet"),
            html.Div(cards, className="charts"),
            adding(snapshots, added, True),
            *memory(snapshots, shown, view, charts, figures),
        ]
    )


def styles_of(names: list[str], groups: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Colour and dash of each run: those of its group where groups are one line."""
    lines = enumerate(lines_of(names, groups).values())
    return {name: run_style(i) for i, members in lines for name in members}


def unplaced(snapshots: list[Snapshot], by: str) -> str:
    """Which runs an alignment cannot place; empty if it places all."""
    if by not in SINCE:
        return ""
    names = [
        words.visible(s.called, 60) for s in (x.subject for x in snapshots) if isnan(zero(s, by))
    ]
    if not names:
        return ""
    never = "decay was never judged to begin" if by == "onset" else "lld-decay never fired"
    return f"Not drawn, because {never}: {', '.join(names)}."


def compare_table(
    snapshots: list[Snapshot], groups: Mapping[str, str], names: list[str]
) -> html.Table:
    """A row per compared run that can be read: verdict, phase, first alarms."""
    styles = styles_of(names, groups)
    named = ("run", "verdict", "phase", "last step", "decay alarm", "collapse alarm", "last row")
    rows = []
    for snapshot in snapshots:
        state, name = snapshot.state, snapshot.subject.name
        sign = palette.PHASES[state.phase]
        first = {a.rule: a.step for a in state.alerts}
        steps = (state.last_step, first.get("lld-decay"), first.get("lld-collapse"))
        cells = [
            html.Td([parts.stroke(*styles[name]), parts.run_link(name, snapshot.title)]),
            html.Td(parts.badge(palette.VERDICTS[state.verdict])),
            html.Td([parts.mark(sign), sign.word]),
            *(html.Td("–" if s is None else f"{s:,}", className="number") for s in steps),
            html.Td(parts.since(snapshot.last_time, state.last_step is not None)),
        ]
        rows.append(html.Tr(cells))
    numeric = ("last step", "decay alarm", "collapse alarm")
    head = html.Tr([html.Th(n, className="number" if n in numeric else None) for n in named])
    return html.Table([html.Thead(head), html.Tbody(rows)], className="card runs")
