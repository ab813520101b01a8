"""Runs of a comparison as one line for each group: by the recorded group or by any setting.

The address says which, `average=group` or `average=config/SETTING`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from lldscope.core.terminal import visible
from lldscope.explore.settings import flat
from lldscope.figures.averages import lines_of
from lldscope.figures.chart_figures import run_style

from ..data.snapshot import Snapshot
from . import components as parts
from .links import Query, attrs, text

GROUP = "group"
SETTING = "config/"  # before the name of a setting
MOST_OFFERED = 200  # settings
LONGEST = 200  # characters of a setting's name that is offered


def averaged_by(query: Query) -> str:
    """What the address wants one line for each of; empty: each run."""
    value = text(query, "average") or ""
    return value if value == GROUP or value.startswith(SETTING) else ""


def groups_of(snapshots: Sequence[Snapshot], by: str) -> dict[str, str]:
    """Run → its group, as people read it. A run for which none was recorded is in none."""
    if by == GROUP:
        labels = {s.subject.name: s.info.get("group") for s in snapshots}
        return {run: visible(group) for run, group in labels.items() if group}
    if not by:
        return {}
    setting = by.removeprefix(SETTING)
    values = {s.subject.name: flat(s.info.get("config")).get(setting) for s in snapshots}
    label = visible(setting.rsplit(".", 1)[-1], 60)
    return {run: f"{label} {visible(v, 80)}" for run, v in values.items() if v is not None}


def choice(snapshots: Sequence[Snapshot], by: str) -> list[Any]:
    """A choice of what one line is drawn for; assets/choose.js follows it."""
    grouped = any(s.info.get("group") for s in snapshots)
    configs = [flat(s.info.get("config")) for s in snapshots]
    values: dict[str, set[str]] = {}
    for config in configs:
        for name, value in config.items():
            if len(name) <= LONGEST:
                values.setdefault(name, set()).add(value)
    if not grouped and not values:
        return []
    # those that make few groups first
    unlike = sorted((n for n, of in values.items() if len(of) > 1), key=lambda n: len(values[n]))
    alike = [n for n, of in values.items() if len(of) == 1]

    def option(value: str, label: str) -> html.Option:
        return html.Option(label, value=value, selected="selected" if value == by else None)

    def settings(label: str, names: list[str]) -> list[Any]:
        options = [option(f"{SETTING}{n}", visible(n, 80)) for n in names[:MOST_OFFERED]]
        return [html.Optgroup(options, label=label)] if options else []

    options = [
        option("", "each run"),
        *([option(GROUP, "each group")] if grouped else []),
        *settings("each value of", unlike),
        *settings("the same in all", alike),
    ]
    label = html.Span("one line for", className="key")
    select = html.Select(options, **attrs(data_address="average"))
    return [html.Label([label, select], className="want")]


def averaged(names: Sequence[str], groups: dict[str, str]) -> list[Any]:
    """What the lines of groups are, and the note of it that refreshes need."""
    if not groups:
        return []
    lines = lines_of(names, groups).values()
    entries = [
        html.Span(
            [parts.stroke(*run_style(i)),
             f"{groups[of[0]]}: {len(of)} run{'s' if len(of) > 1 else ''}"], className="entry",
        )
        for i, of in enumerate(lines) if of[0] in groups
    ]
    note = (
        "A line is the mean, step by step, over the runs of its group that have the step and are "
        "drawn; each counts once. The band goes from the lowest run to the highest; how many runs "
        "a step has is shown on hover. Upright lines: the decay alarm of each run."
    )
    return [
        html.Div(entries, className="averaged"),
        html.P(note, className="note averaged"),
        dcc.Store(id={"type": "groups", "index": 0}, data=groups),
    ]
