"""From where on one run differs from another, by signal, and which settings differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import html

from lldscope.core.numbers import number
from lldscope.core.terminal import visible
from lldscope.explore.divergence import divergences, sentence

from ..data.snapshot import Snapshot
from . import components as parts
from .config_page import settings_table
from .links import address, comparison


def diff_page(snapshots: Sequence[Snapshot]) -> html.Div:
    """A run against the one that the address names after `with`."""
    a, b = snapshots[0], snapshots[-1 if len(snapshots) < 2 else 1]
    names = [a.name, b.name]
    signals = divergences(a.subject.table, b.subject.table)
    parted = [one for one in signals if one.step is not None]
    title = f"{visible(b.title, 60)} against {visible(a.title, 60)}"
    summary = sentence(a.title, b.title, [(one.signal, one.step) for one in signals])
    back = html.A("Both in charts", href=comparison(names))
    zoom: Any = []
    if parted:
        step = parted[0].step or 0
        around = f"&zoom={max(0, step - 20)},{step + 20}"
        zoom = [html.A("Charts around that step", href=comparison(names) + around)]
    swap = html.A("The other way round", href=address("diff", names[1], with_=names[0]))
    rows = [
        [
            html.Code(one.signal),
            parts.count(one.step),
            *map(number, (one.first, one.second, one.sigmas)),
            parts.count(one.differs),
        ]
        for one in signals
    ]
    there = [f"{visible(x.title, 40)} there" for x in (a, b)]
    heads = ("signal", "differs from step", *there, "standard deviations", "first unequal at")
    table = parts.table(heads, rows, range(1, 6), "card diff")
    note = (
        "Steps are compared with the same steps of the other run; the noise is that of the first. "
        "Runs of different seeds soon differ."
    )
    return html.Div(
        [
            parts.page_head(title),
            html.P(visible(summary, 500), className="answer"),
            html.P(note, className="note"),
            html.Div([back, *zoom, swap], className="ways"),
            *settings_table([a, b]),
            html.H2("Signals", className="section"),
            html.Div(table, className="wide") if rows else parts.notice("Nothing to compare.")[1],
        ]
    )
