"""Runs compared: charts that show all of them, and a table of their states.

One line is drawn for each run, or for each group: the recorded one, or those of equal value of any
setting. The address says which, `average=group` or `average=config/SETTING`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any

from dash import html

from lldscope.core import palette
from lldscope.core.terminal import visible
from lldscope.explore.comparison import divergences, sentence
from lldscope.explore.settings import differing, flat
from lldscope.figures.averages import lines_of
from lldscope.figures.chart_figures import run_style, zero
from lldscope.figures.view import View

from ..data.snapshot import Snapshot
from . import components
from .drawing import adding, cards_of, charts_of, default_keys, draw, keys_asked
from .frame import (
    ALIGNED_BY,
    PAUSE,
    Query,
    attrs,
    choice_button,
    controls,
    memory,
    part,
    text,
    view_of,
)

MOST_COMPARED = 20


def compare_page(snapshots: list[Snapshot], query: Query, notices: Sequence[str]) -> html.Div:
    """The page that compares these runs; `notices` name the requested runs that do not exist."""
    view, subset = comparison_of(snapshots, query)
    names = [snapshot.name for snapshot in snapshots]
    charts = charts_of(keys_asked(snapshots, query), snapshots, True)
    figures = draw(snapshots, charts, view, set(subset), names)
    content = compare_parts(snapshots, names, query, notices)
    return html.Div(
        [
            components.page_head(
                f"{len(snapshots)} runs compared" if len(snapshots) > 1 else "One run",
                html.Div([*choice(snapshots, averaged_by(query)), PAUSE], className="buttons"),
            ),
            part("notices", content["notices"], role="status"),
            *_difference(snapshots),
            html.P(AVERAGED if view.groups else None, className="note"),
            controls(view, None, ALIGNED_BY),
            _legend(snapshots, view, set(subset)),
            html.Div(cards_of(charts, figures, view), className="charts", id="cards"),
            adding(snapshots, charts, default_keys(snapshots), True),
            part("compared", content["compared"]),
            _settings(snapshots),
            *memory(snapshots, query, "compare"),
        ]
    )


def comparison_of(snapshots: Sequence[Snapshot], query: Query) -> tuple[View, list[str]]:
    """The view that a query asks for, and the runs to draw."""
    view = view_of(query, ALIGNED_BY)
    hidden = set(query.get("hide", []))
    groups = groups_of(snapshots, averaged_by(query))
    return replace(view, groups=groups), [s.name for s in snapshots if s.name not in hidden]


def compare_parts(
    snapshots: list[Snapshot], names: list[str], query: Query, notices: Sequence[str]
) -> dict[str, Any]:
    """The parts that a refresh writes anew, by name; `names` includes runs that cannot be read."""
    view, _ = comparison_of(snapshots, query)
    lines = [*notices, *filter(None, [unplaced(snapshots, view.by)])]
    note = [html.Div(" ".join(lines), className="notice")] if lines else []
    return {"compared": compare_table(snapshots, names, view.groups), "notices": note}


def _difference(snapshots: list[Snapshot]) -> list[Any]:
    """The step from which two runs differ, and the signals in which they do."""
    if len(snapshots) != 2:
        return []
    a, b = snapshots
    steps = [(one.signal, one.step) for one in divergences(a.subject.table, b.subject.table)]
    return [html.P(visible(sentence(a.title, b.title, steps), 500), className="note")]


def _legend(snapshots: list[Snapshot], view: View, subset: set[str]) -> html.Div:
    """A button for each run that hides it in all charts."""
    styles = styles_of([s.name for s in snapshots], view.groups)
    buttons = [
        choice_button(
            f"hide~{s.name}",
            [components.stroke(*styles[s.name]), visible(s.title),
             html.Span(view.groups[s.name], className="quiet") if s.name in view.groups else None],
            s.name in subset, className="shown-run",
        )
        for s in snapshots
    ]
    every = [
        html.Button(word, className="button small", **attrs(data_shown=word))
        for word in ("all", "none")
    ]
    return html.Div([*every, *buttons], role="group", className="shown",
                    **attrs(aria_label="runs drawn"))


def _settings(snapshots: Sequence[Snapshot]) -> html.Details:
    """The settings that differ, folded."""
    rows = differing([flat(s.info.get("config")) for s in snapshots])
    many = f"{len(rows)} settings differ" if len(rows) != 1 else "1 setting differs"
    heads = [components.run_link(s.name, s.title) for s in snapshots]
    content = [components.settings_table(heads, rows)] if rows else []
    return html.Details([html.Summary(many), *content], className="fold card")


def styles_of(names: list[str], groups: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Colour and dash of each run; a run drawn as part of a group has those of the group."""
    lines = enumerate(lines_of(names, groups).values())
    return {name: run_style(i) for i, members in lines for name in members}


def unplaced(snapshots: list[Snapshot], by: str) -> str:
    """A sentence about the runs that an alignment cannot place; empty if it places all."""
    names = [visible(s.title, 60) for s in snapshots if by == "onset" and isnan(zero(s.subject))]
    words = f"Not drawn, because no onset of decay was detected: {', '.join(names)}."
    return words if names else ""


def compare_table(
    snapshots: list[Snapshot], names: list[str], groups: Mapping[str, str]
) -> html.Table:
    """A row per compared run that can be read: verdict, reward, first alarms."""
    styles = styles_of(names, groups)
    titles = ("run", "verdict", "reward", "phase", "last step", "decay alarm", "collapse alarm",
              "last row")
    rows = []
    for snapshot in snapshots:
        state, name = snapshot.state, snapshot.name
        sign = palette.PHASES[state.phase]
        first = {a.rule: a.first_step for a in state.alerts}
        steps = (state.last_step, first.get("lld-decay"), first.get("lld-collapse"))
        rows.append([
            [components.stroke(*styles[name]), components.run_link(name, snapshot.title)],
            components.verdict_badge(state),
            state.trend or "–",
            [components.mark(sign), sign.word] if state.phase else "–",
            *map(components.count, steps),
            components.since(snapshot.last_time),
        ])
    return components.table(titles, rows, range(4, 7), "card runs")


GROUP = "group"
SETTING = "config/"  # before the name of a setting
MOST_OFFERED = 200  # settings
LONGEST = 200  # characters of a setting's name that is offered


def averaged_by(query: Query) -> str:
    """The setting for each value of which the address wants one line; empty: a line for each
    run."""
    value = text(query, "average") or ""
    return value if value == GROUP or value.startswith(SETTING) else ""


def groups_of(snapshots: Sequence[Snapshot], by: str) -> dict[str, str]:
    """Run → its group, as people read it. A run without a recorded value is in no group."""
    if not by:
        return {}
    if by == GROUP:
        labels = {s.name: s.info.get("group") for s in snapshots}
        return {run: visible(group) for run, group in labels.items() if group}
    setting = by.removeprefix(SETTING)
    values = {s.name: flat(s.info.get("config")).get(setting) for s in snapshots}
    label = visible(setting.rsplit(".", 1)[-1], 60)
    return {run: f"{label} {visible(v, 80)}" for run, v in values.items() if v is not None}


def choice(snapshots: Sequence[Snapshot], by: str) -> list[Any]:
    """The field that chooses what a line stands for; assets/lldscope.js follows the choice."""
    options = {"": "each run"}
    if any(s.info.get("group") for s in snapshots):
        options[GROUP] = "each group"
    unlike = differing([flat(s.info.get("config")) for s in snapshots])
    unlike.sort(key=lambda row: len(set(row[1])))  # those that make few groups first
    names = [name for name, _ in unlike if len(name) <= LONGEST]
    options |= {f"{SETTING}{n}": f"each {visible(n, 80)}" for n in names[:MOST_OFFERED]}
    if len(options) == 1:
        return []
    select = html.Select(
        [html.Option(label, value=value, selected="selected" if value == by else None)
         for value, label in options.items()],
        **attrs(data_address="average"),
    )
    return [html.Label([html.Span("one line for", className="key"), select], className="want")]


AVERAGED = (
    "A line is the mean, step by step, over the runs of its group that have the step and are "
    "drawn; each counts once. The band goes from the lowest run to the highest. Vertical lines: "
    "the decay alarm of each run."
)
