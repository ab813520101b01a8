"""Names of alarms above a chart: horizontal, outside of the plot, so that no line crosses them.

The gravest alarms choose their places first; one for which no place is left has its line alone.
Places are measured on a narrow screen, so that no name covers another anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import pandas as pd

from ..core import palette
from ..core.terminal import visible
from ..monitor.alerts import AnyAlert
from .series import XAxis, at_steps

ROWS, ROW_HEIGHT = 2, 14  # pixels
_ABOVE = 1.075  # of the height of the plot: where the strip of the phases ends
# pixels: of a narrow plot, a character, the sign before it
NARROW, CHARACTER, _SIGN = 380.0, 5.8, 14.0
PHONE = 225.0  # pixels: of a plot on a phone
_SHIFT = 5  # pixels: so much of the sign lies on the other side of the line
_GAP = 3  # pixels between two names
_MARGIN = 50.0  # pixels right of the plot that a label may take

Label = dict[str, Any]


def alarm_labels(
    table: pd.DataFrame, alerts: Sequence[AnyAlert], axis: XAxis, window: tuple[float, float]
) -> list[Label]:
    """The label of each alarm, where it first fired, that finds a place; the gravest come first."""
    alarms = sorted(
        ((step, a) for a in alerts if (step := a.first_step) is not None),
        key=lambda p: (-p[1].severity.rank, p[0]),
    )
    at = at_steps(table, axis, [step for step, _ in alarms])
    spans: list[list[tuple[float, float]]] = [[] for _ in range(ROWS)]
    labels = []
    for x, (_, alert) in zip(at, alarms, strict=True):
        if not window[0] <= x <= window[1]:
            continue
        name = visible(alert.rule, 40)
        left = NARROW * (x - window[0]) / (window[1] - window[0])
        for row, after, span in _places(left, len(name) * CHARACTER + _SIGN):
            inside = span[0] >= 0 and span[1] <= NARROW + _MARGIN
            if inside and all(span[1] + _GAP < a or b + _GAP < span[0] for a, b in spans[row]):
                spans[row].append(span)
                sign = palette.SEVERITIES[alert.severity].shape
                labels.append(_label(x, row, after, escape(name), sign))
                break
    return labels


def _places(x: float, width: float) -> Iterator[tuple[int, bool, tuple[float, float]]]:
    """Row, whether the text follows the line, and the pixels that it takes."""
    for row in range(ROWS):
        yield row, True, (x - _SHIFT, x - _SHIFT + width)
        yield row, False, (x + _SHIFT - width, x + _SHIFT)


def _label(x: float, row: int, after: bool, name: str, sign: str) -> Label:
    return {
        "x": x, "xref": "x", "y": _ABOVE, "yref": "paper", "yanchor": "bottom",
        "yshift": ROW_HEIGHT * row - 2, "text": f"{sign} {name}" if after else f"{name} {sign}",
        "xanchor": "left" if after else "right", "xshift": -_SHIFT if after else _SHIFT,
        "showarrow": False, "font": {"size": 10},
    }
