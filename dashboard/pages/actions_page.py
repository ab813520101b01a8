"""Δ of correct responses by action index and step: a map whose cells lead to their responses.

A table of links rather than a picture, so that keys and screen readers reach every cell.
"""

from __future__ import annotations

import math
from json import dumps
from typing import Any

import numpy as np
from dash import html

from lldscope.explore.responses import MOST_ACTIONS, ActionMap, action_map
from lldscope.explore.trajectories import rows_of

from ..data.snapshot import Snapshot
from ..figures import delta_colors as deltas
from .components import page_head
from .frame import message_page
from .links import Query, address, attrs, crumbs, whole

_TICKS = 10  # labels under the map


def actions_page(snapshot: Snapshot, query: Query) -> html.Div:
    """The map, or words if the run holds no actions. Raises LldscopeError if it cannot be read."""
    name = snapshot.name
    grid = action_map(snapshot.run, whole(query, "first"), whole(query, "last"))
    title = "Δ by action and step"
    if grid is None or not len(grid.cells):
        return message_page(title, "The run holds no actions of correct responses in these steps.")
    strong = strength(grid)
    return html.Div(
        [
            page_head(title, above=crumbs(name, snapshot.title)),
            html.P(_summary(grid), className="note"),
            _legend(strong),
            html.Div(_map(name, grid, strong), className="card map-card"),
            html.P("Choose a cell for its responses, the greatest loss first; arrow keys move.",
                   className="note"),
            html.P("", id="token-status", role="status", **attrs(aria_live="polite")),
        ],
        style=deltas.COLORS,
    )


def strength(grid: ActionMap) -> float:
    """|Δ| at which a cell has the full colour: nine in ten lie below it."""
    sizes = np.abs(grid.cells["delta"].dropna().to_numpy(dtype=float))
    top = float(np.quantile(sizes, 0.9)) if len(sizes) else 1.0
    return float(f"{max(top, 0.01):.1g}")


def _summary(grid: ActionMap) -> str:
    of = "each step" if grid.width == 1 else f"stretches of {grid.width:,} steps"
    return (
        f"Mean Δ in nats of the actions of correct responses in mixed groups, by turn, over {of} "
        f"({grid.first:,}–{grid.last:,}). What one step's updates did to them."
    )


def _legend(strong: float) -> html.P:
    parts: list[Any] = [html.Span("Δ, nats per action", className="key")]
    for value in (-strong, -strong / 3, 0.0, strong / 3, strong):
        sign = "≤ " if value == -strong else "≥ " if value == strong else ""
        sample = html.Span(**deltas.tint(value, strong, "cell", "sample"))
        parts.append(html.Span([sample, f" {sign}{deltas.nats(value)}"]))
    parts.append(html.Span([html.Span(className="cell sample null"), " not measured"]))
    parts.append(html.Span([html.Span(className="cell sample none"), " no such action"]))
    return html.P(parts, className="scale")


def _map(name: str, grid: ActionMap, strong: float) -> html.Div:
    """The cells as data, of which the browser makes a table: a component for each would be slow."""
    cells = {(c["bin"], c["action_index"]): c for c in rows_of(grid.cells)}
    bins = range((grid.last - grid.first) // grid.width + 1)
    start = min(cells)
    rows = []
    for index in sorted({index for _, index in cells}):
        later = " and later" if index == MOST_ACTIONS - 1 else ""
        row = [_cell(name, cells.get((b, index)), strong, (b, index) == start) for b in bins]
        rows.append([f"action {index}{later}", row])
    return html.Div(**attrs(data_map=dumps({"rows": rows, "ticks": _ticks(grid, len(bins))})))


def _cell(name: str, cell: dict[str, Any] | None, strong: float, first: bool) -> list[Any] | None:
    """Class, strength, label, address, in the order of Tab; None where there was no such action."""
    if cell is None:
        return None
    low, high = cell["first_step"], cell["last_step"]
    where = f"step {low:,}" if low == high else f"steps {low:,}–{high:,}"
    missing = cell["delta"] is None
    if missing:
        text = f"not measured ({cell['n_actions']:,} actions)"
    else:
        text = f"Δ {deltas.nats(cell['delta'])} nats, {cell['n_delta']:,} actions"
    tint = deltas.tint(cell["delta"], strong, "cell", "null" if missing else "", faint=strong / 20)
    return [
        tint["className"],
        tint.get("style", {}).get("--w"),
        f"action {cell['action_index']}, {where}: {text}",
        address("responses", name, first=low, last=high, correct="yes", sort="delta"),
        first,
    ]


def _ticks(grid: ActionMap, n: int) -> list[list[Any]]:
    """Labels under the map, and how many columns each spans."""
    least = n / _TICKS
    scale = 10 ** math.floor(math.log10(max(least, 1)))
    every = next(m * scale for m in (1, 2, 5, 10) if m * scale >= least)
    return [[f"{grid.first + at * grid.width:,}", min(every, n - at)] for at in range(0, n, every)]
