"""Runs compared: charts with all of them, and a table of where they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan

from dash import dcc, html

from lldscope.core import palette
from lldscope.core.terminal import visible
from lldscope.figures.averages import lines_of
from lldscope.figures.chart_figures import run_style, zero
from lldscope.figures.series import SINCE

from ..data.snapshot import Snapshot
from . import components as parts
from .adding import adding
from .drawing import cards_of, charts_of, default_keys, draw, keys_asked
from .frame import (
    ALIGNED_BY,
    PAUSE,
    controls,
    memory,
    named_group,
    part_id,
    view_of,
)
from .grouping import averaged, averaged_by, choice, groups_of
from .links import Query, address

MOST_COMPARED = 20


def compare_page(snapshots: list[Snapshot], query: Query, notices: Sequence[str]) -> html.Div:
    """The page that compares these runs; `notices` say which of those asked for are not there."""
    by = averaged_by(query)
    view = replace(view_of(query, ALIGNED_BY), groups=groups_of(snapshots, by))
    hidden = set(query.get("hide", []))
    names = [snapshot.name for snapshot in snapshots]
    subset = [name for name in names if name not in hidden]
    defaults = default_keys(snapshots)
    charts = charts_of(keys_asked(snapshots, query), snapshots, True)
    figures = draw(snapshots, charts, view, set(subset))
    styles = styles_of(names, view.groups)
    options = [
        {
            "label": html.Span([parts.stroke(*styles[s.name]), visible(s.title)],
                               className="entry"),
            "value": s.name,
        }
        for s in snapshots
    ]
    boxes = dcc.Checklist(options, subset, id={"type": "shown", "index": 0}, className="shown")
    settings = address("config", names[0], with_=names[1:])
    differ = [html.A("Where they differ", href=address("diff", names[0], with_=names[1]),
                     className="button")] if len(names) == 2 else []
    buttons = [
        *differ,
        html.A("Settings that differ", href=settings, className="button"),
        *choice(snapshots, by),
        PAUSE,
    ]
    missing = unplaced(snapshots, view.by)
    return html.Div(
        [
            parts.page_head(
                f"{len(snapshots)} runs compared", html.Div(buttons, className="buttons")
            ),
            html.Div(" ".join(notices), className="notice", role="status") if notices else None,
            *averaged(names, dict(view.groups)),
            controls(view, None, ALIGNED_BY),
            named_group("runs drawn", boxes, with_key=False),
            html.P(missing, id=part_id("unplaced"), className="unplaced quiet"),
            html.Div(cards_of(charts, figures, defaults), className="charts", id="cards"),
            adding(snapshots, defaults, True),
            html.Div(compare_table(snapshots, view.groups, names), id=part_id("compared")),
            *memory(snapshots, subset, view, charts, figures, defaults),
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
    names = [visible(s.called, 60) for s in (x.subject for x in snapshots) if isnan(zero(s, by))]
    if not names:
        return ""
    never = "no onset of decay was detected" if by == "onset" else "lld-decay never fired"
    return f"Not drawn, because {never}: {', '.join(names)}."


def compare_table(
    snapshots: list[Snapshot], groups: Mapping[str, str], names: list[str]
) -> html.Table:
    """A row per compared run that can be read: verdict, phase, first alarms."""
    styles = styles_of(names, groups)
    titles = ("run", "verdict", "phase", "last step", "decay alarm", "collapse alarm", "last row")
    rows = []
    for snapshot in snapshots:
        state, name = snapshot.state, snapshot.subject.name
        sign = palette.PHASES[state.phase]
        first = {a.rule: a.step for a in state.alerts}
        steps = (state.last_step, first.get("lld-decay"), first.get("lld-collapse"))
        rows.append([
            [parts.stroke(*styles[name]), parts.run_link(name, snapshot.title)],
            parts.verdict_badge(state, snapshot.subject.trend),
            [parts.mark(sign), sign.word],
            *map(parts.count, steps),
            parts.since(snapshot.last_time, state.last_step is not None),
        ])
    return parts.table(titles, rows, range(3, 6), "card runs")
