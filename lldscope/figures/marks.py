"""Marks on a chart: phases as bands, alarms as lines, events as ticks. Pure functions.

The names of alarms stand above the plot, so that no line crosses them. The most severe alarms get
their places first; an alarm without a place has only a line. The places suit a narrow screen, so
names never overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from ..core import palette
from ..core.terminal import visible
from ..diagnosis.phases import PhaseSpan
from ..monitor.alerts import AnyAlert
from .series import XAxis, at_steps, positions

Shape = dict[str, Any]

_STRIP = (1.0, 1.075)  # the band of phase names, above the plot, as shares of its height
_FONT, WIDE_ONLY = 10, 10.01  # font sizes; in narrow charts, style sheets hide text of WIDE_ONLY
_MOST_LINES = 24
_SPACE = "\u00a0\u00a0\u00a0"  # keeps upright labels clear of the ends of the plot


def phase_bands(
    table: pd.DataFrame, spans: Sequence[PhaseSpan], axis: XAxis, window: tuple[float, float]
) -> list[Shape]:
    """For each phase a faint band behind the plot and a strong strip above it, with as much of the
    name as fits."""
    if not spans:
        return []
    starts = at_steps(table, axis, [s.start_step for s in spans])
    ends = [*starts[1:], *at_steps(table, axis, [spans[-1].end_step])]
    width = window[1] - window[0]
    shapes = []
    for span, start, end in zip(spans, starts, ends, strict=True):
        a, b = max(start, window[0]), min(end, window[1])
        if b <= a or span.phase is None:
            continue
        sign = palette.PHASES[span.phase]
        numeral = sign.shape if sign.shape.startswith("I") else ""
        names = (f"{numeral} {sign.word}".strip(), sign.word, numeral)
        room = NARROW * (b - a) / width
        text = next((name for name in names if CHARACTER * len(name) <= room), "")
        fits_phone = CHARACTER * len(text) <= room * PHONE / NARROW
        size = _FONT if fits_phone else WIDE_ONLY
        faint = 0.05 if span.phase in ("warmup", "healthy") else 0.13
        title = f"{sign.word}, steps {span.start_step}–{span.end_step}, as seen live"
        band = _band(a, b, 0.0, 1.0) | {"name": title}
        shapes.append(band | {"fillcolor": sign.color, "opacity": faint})
        label = {"text": text, "font": {"size": size, "color": sign.ink}}
        shapes.append(_band(a, b, *_STRIP) | {"fillcolor": sign.color, "label": label})
    return shapes


def alarm_lines(
    table: pd.DataFrame, alerts: Sequence[AnyAlert], axis: XAxis, window: tuple[float, float]
) -> list[Shape]:
    """A line at the first step of each alarm; a faint line where the alarm fired again."""
    first = [(step, a) for a in alerts if (step := a.first_step) is not None]
    again = [
        (firing, a) for _, a in first for firing, _ in a.episodes[1:] if firing is not None
    ][-_MOST_LINES:]
    shapes: list[Shape] = []
    for opacity, firing in ((0.85, first), (0.35, again)):
        at = at_steps(table, axis, [step for step, _ in firing])
        for x, (step, alert) in zip(at, firing, strict=True):
            if window[0] <= x <= window[1]:
                color = palette.SEVERITIES[alert.severity].color
                title = f"{alert.severity}: {escape(visible(alert.rule, 40))}, step {step}"
                line = _vertical(x, 1.0, color, 1.25) | {"opacity": opacity, "name": title}
                shapes.append(line)
    return shapes


def event_ticks(
    table: pd.DataFrame, events: list[dict[str, Any]], axis: XAxis, window: tuple[float, float]
) -> list[Shape]:
    """A named tick for each event; checkpoints are short ticks. Of too many events the most recent
    are shown; zooming in shows the others."""
    placed = [e for e in events if isinstance(e.get("step"), int)]
    at = at_steps(table, axis, [float(e["step"]) for e in placed])
    kinds = [str(e.get("kind", "event")) for e in placed]
    within = [(x, k) for x, k in zip(at, kinds, strict=True) if window[0] <= x <= window[1]]
    saves = [x for x, kind in within if kind == "checkpoint"]
    others = [(x, kind) for x, kind in within if kind != "checkpoint"]
    shapes: list[Shape] = []
    if len(saves) <= _MOST_LINES:
        shapes = [_vertical(x, 0.07, palette.NEUTRAL, 1.5) for x in saves]
    for x, kind in others[-_MOST_LINES:]:
        label = {
            "text": f"{_SPACE}{escape(visible(kind, 40))}", "textangle": -90, "padding": 3,
            "textposition": "start", "xanchor": "left", "yanchor": "top",
            "font": {"size": 10, "color": palette.NEUTRAL},
        }
        shapes.append(_vertical(x, 0.45, palette.NEUTRAL, 1.5) | {"label": label})
    return shapes


def _vertical(x: float, height: float, color: str, width: float, dash: str = "solid") -> Shape:
    """A line from the bottom of the chart to `height`, a share of the chart's height."""
    line = {"color": color, "width": width, "dash": dash}
    return {"type": "line", "line": line} | _place(x, x, 0.0, height)


def onset_line(
    table: pd.DataFrame, alerts: Sequence[AnyAlert], axis: XAxis, color: str, dash: str
) -> list[Shape]:
    """A line at the first step of a compared run's decay alarm, in the run's own colour."""
    steps = [step for a in alerts if a.rule == "lld-decay" and (step := a.first_step) is not None]
    if not np.isfinite(positions(table, axis)).any():
        return []  # the run has no place on this axis
    return [
        _vertical(x, 1.0, color, 1.5, dash)
        | {"opacity": 0.6, "name": f"lld-decay fired at step {step}"}
        for x, step in zip(at_steps(table, axis, [*steps]), steps, strict=True)
    ]


def _band(x0: float, x1: float, y0: float, y1: float) -> Shape:
    return {"type": "rect", "layer": "below", "line": {"width": 0}} | _place(x0, x1, y0, y1)


def _place(x0: float, x1: float, y0: float, y1: float) -> Shape:
    return {"yref": "paper", "x0": x0, "x1": x1, "y0": y0, "y1": y1}


# -- names of alarms -------------------------------------------------------------------------------

ROWS, ROW_HEIGHT = 2, 14  # pixels
_ABOVE = 1.075  # upper end of the strip of phases, as a share of the height of the plot
# Widths in pixels: of a plot on a narrow screen and on a phone, of a character, and of a sign.
NARROW, PHONE, CHARACTER, _SIGN = 380.0, 225.0, 5.8, 14.0
_SHIFT = 5  # pixels of the sign that lie on the other side of the line
_GAP = 3  # pixels between two names
_MARGIN = 50.0  # pixels to the right of the plot that a label may take

Label = dict[str, Any]


def alarm_labels(
    table: pd.DataFrame, alerts: Sequence[AnyAlert], axis: XAxis, window: tuple[float, float]
) -> list[Label]:
    """The labels of alarms at their first steps, most severe first, as far as there is room."""
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
        width = len(name) * CHARACTER + _SIGN
        for row, after in product(range(ROWS), (True, False)):
            start = left - _SHIFT if after else left + _SHIFT - width
            end = start + width
            inside = start >= 0 and end <= NARROW + _MARGIN
            if inside and all(end + _GAP < a or b + _GAP < start for a, b in spans[row]):
                spans[row].append((start, end))
                sign = palette.SEVERITIES[alert.severity].shape
                labels.append(_label(x, row, after, escape(name), sign))
                break
    return labels


def _label(x: float, row: int, after: bool, name: str, sign: str) -> Label:
    return {
        "x": x, "xref": "x", "y": _ABOVE, "yref": "paper", "yanchor": "bottom",
        "yshift": ROW_HEIGHT * row - 2, "text": f"{sign} {name}" if after else f"{name} {sign}",
        "xanchor": "left" if after else "right", "xshift": -_SHIFT if after else _SHIFT,
        "showarrow": False, "font": {"size": 10},
    }
