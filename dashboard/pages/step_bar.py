"""The step bar: a cell for each step, coloured by the verdict at that step, as it was judged live.

One picture and one slider (assets/steps.js): a component for each cell would be slow.
"""

from __future__ import annotations

from json import dumps
from typing import Any
from urllib.parse import quote

import numpy as np
from dash import html

from lldscope.core import palette
from lldscope.figures.series import raw_positions

from ..data.snapshot import Snapshot
from .frame import attrs

MOST_CELLS = 600
# Rank at a step → colour and height: worse is higher.
_RANKS = {
    -1: (palette.VERDICTS["insufficient"].color, 9),
    0: (palette.PHASES["healthy"].color, 9),
    1: (palette.SEVERITIES["info"].color, 12),
    2: (palette.VERDICTS["warning"].color, 18),
    3: (palette.VERDICTS["critical"].color, 24),
}
_CALM = (palette.VERDICTS["healthy"].color, 9)  # no alarm, where most checks are possible


def step_bar(snapshot: Snapshot) -> list[Any]:
    """The bar, with the data by which the browser finds a step; empty before the first step."""
    table, last = snapshot.subject.table, snapshot.state.last_step
    if last is None:
        return []
    table = table[table["step"] <= last]  # without an evaluation after it
    steps = table["step"].to_numpy(float)
    rank, firing = _judged(snapshot, steps)
    width = -(-len(steps) // MOST_CELLS)
    starts = np.arange(0, len(steps), width)
    # of several steps the first of the worst
    rows = [int(i + np.argmax(rank[i : i + width])) for i in starts]
    colors = _RANKS | ({0: _CALM} if snapshot.state.allows_most_checks else {})
    picture = _picture([colors[int(rank[row])] for row in rows])
    cells: dict[str, Any] = {
        "step": [int(steps[row]) for row in rows],
        "word": [_word(int(rank[row]), firing, row) for row in rows],
    }
    for axis in ("tokens", "time"):
        at = raw_positions(table, axis)[rows]
        cells[axis] = [None if np.isnan(v) else round(float(v), 1) for v in at]
    about = attrs(
        data_cells=dumps(cells), aria_label="step", aria_valuemin=f"{cells['step'][0]}",
        aria_valuemax=f"{cells['step'][-1]}", aria_valuenow=f"{cells['step'][-1]}",
        aria_valuetext="no step selected",
    )
    title = "One cell per step, coloured by its verdict; click a cell to see its batch (keys: ← →)"
    cell = html.Div(html.Img(src=picture, alt=""), id="steps", role="slider", tabIndex=0,
                    title=title, **about)
    return [cell]


def _judged(snapshot: Snapshot, steps: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """At each step the worst alarm that fired: −1 warm-up, 0 none, 1 to 3 its severity; and, by
    rule, where it fired."""
    rank = np.zeros(len(steps), int)
    for span in snapshot.state.phases:
        if span.phase == "warmup":
            rank[(steps >= span.start_step) & (steps <= span.end_step)] = -1
    firing = {}
    for alert in snapshot.state.alerts:
        fires = np.zeros(len(steps), bool)
        for first, last in alert.episodes:
            if first is not None:
                fires |= (steps >= first) & (steps < (np.inf if last is None else last))
        firing[alert.rule] = fires
        rank[fires] = np.maximum(rank[fires], alert.severity.rank + 1)
    return rank, firing


def _word(rank: int, firing: dict[str, np.ndarray], row: int) -> str:
    rules = [rule for rule, fires in firing.items() if fires[row]]
    if rules:
        return f"{list(palette.SEVERITIES)[rank - 1]}: {', '.join(rules)}"
    return "warm-up" if rank < 0 else "no alarm"


def _picture(cells: list[tuple[str, int]]) -> str:
    """Cells of equal width, as a data URI."""
    rects = [
        f"<rect x='{i}' y='{24 - height}' width='0.88' height='{height}' fill='{color}'/>"
        for i, (color, height) in enumerate(cells)
    ]
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {len(cells)} 24' "
        f"preserveAspectRatio='none'>{''.join(rects)}</svg>"
    )
    return f"data:image/svg+xml,{quote(svg)}"
