"""Runs of a comparison as one line for each group: by the recorded group, by any setting, or by
their names without the last number, which is often the seed.

The address says which, `average=group`, `average=name` or `average=config/SETTING`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dash import html

from lldscope.core.terminal import visible
from lldscope.explore.settings import flat

from ..data.snapshot import Snapshot
from .links import Query, attrs, text

GROUP, NAME = "group", "name"
SETTING = "config/"  # before the name of a setting
MOST_OFFERED = 200  # settings
LONGEST = 200  # characters of a setting's name that is offered


def averaged_by(query: Query) -> str:
    """What the address wants one line for each of; empty: each run."""
    value = text(query, "average") or ""
    return value if value in (GROUP, NAME) or value.startswith(SETTING) else ""


def groups_of(snapshots: Sequence[Snapshot], by: str) -> dict[str, str]:
    """Run → its group, as people read it. A run for which none was recorded is in none."""
    if by == GROUP:
        labels = {s.subject.name: s.info.get("group") for s in snapshots}
        return {run: visible(group) for run, group in labels.items() if group}
    if by == NAME:
        return {s.name: visible(_without_number(s.title)) for s in snapshots}
    if not by:
        return {}
    setting = by.removeprefix(SETTING)
    values = {s.subject.name: flat(s.info.get("config")).get(setting) for s in snapshots}
    label = visible(setting.rsplit(".", 1)[-1], 60)
    return {run: f"{label} {visible(v, 80)}" for run, v in values.items() if v is not None}


def _without_number(name: str) -> str:
    """A name with its last number, and what comes after, left out."""
    return re.sub(r"\d+(?!.*\d).*$", "*", name)


def choice(snapshots: Sequence[Snapshot], by: str) -> list[Any]:
    """A choice of what one line is drawn for; assets/lldscope.js follows it."""
    grouped = any(s.info.get("group") for s in snapshots)
    configs = [flat(s.info.get("config")) for s in snapshots]
    values: dict[str, set[str]] = {}
    for config in configs:
        for name, value in config.items():
            if len(name) <= LONGEST:
                values.setdefault(name, set()).add(value)
    # those that make few groups first
    unlike = sorted((n for n, of in values.items() if len(of) > 1), key=lambda n: len(values[n]))

    names = {_without_number(s.title) for s in snapshots}
    if not grouped and not unlike and len(names) == len(snapshots):
        return []

    def option(value: str, label: str) -> html.Option:
        return html.Option(label, value=value, selected="selected" if value == by else None)

    offered = [option(f"{SETTING}{n}", visible(n, 80)) for n in unlike[:MOST_OFFERED]]
    settings = [html.Optgroup(offered, label="each value of")] if offered else []
    options = [
        option("", "each run"),
        *([option(GROUP, "each group")] if grouped else []),
        *([option(NAME, "names that differ in the last number only")] if len(names) < len(snapshots)
          else []),
        *settings,
    ]
    label = html.Span("one line for", className="key")
    select = html.Select(options, **attrs(data_address="average"))
    return [html.Label([label, select], className="want")]


AVERAGED = (
    "A line is the mean, step by step, over the runs of its group that have the step and are "
    "drawn; each counts once. The band goes from the lowest run to the highest; how many runs a "
    "step has is shown on hover. Vertical lines: the decay alarm of each run."
)
