"""What is marked on a chart: phases as bands, alarms as lines, events as ticks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from lldscope.alarms.assess import PhaseSpan
from lldscope.core import palette
from lldscope.monitor.health import AnyAlert

from .series import XAxis, at_steps, positions
from .wording import visible

Shape = dict[str, Any]

_STRIP = (1.0, 1.075)  # the band of phase names, above the plot, as shares of its height
_FULL_NAME, _NUMERAL = 0.13, 0.035  # least share of the visible width for a name, for a numeral
_NEAR = 0.06  # alarms closer than this share of the width share one label
_MOST_LINES = 24
_SPACE = "\u00a0\u00a0\u00a0"  # keeps upright labels clear of the ends of the plot


def phase_bands(
    table: pd.DataFrame, spans: Sequence[PhaseSpan], axis: XAxis, seen: tuple[float, float]
) -> list[Shape]:
    """A faint band behind the plot and a strong strip with the phase's name above it."""
    if not spans:
        return []
    starts = at_steps(table, axis, [s.start_step for s in spans])
    ends = [*starts[1:], *at_steps(table, axis, [spans[-1].end_step])]
    width = seen[1] - seen[0]
    shapes = []
    for span, start, end in zip(spans, starts, ends, strict=True):
        a, b = max(start, seen[0]), min(end, seen[1])
        if b <= a:
            continue
        sign = palette.PHASES[span.phase]
        share = (b - a) / width
        text = sign.word if share >= _FULL_NAME else sign.shape if share >= _NUMERAL else ""
        if share >= _FULL_NAME and sign.shape.startswith("I"):
            text = f"{sign.shape} {sign.word}"
        faint = 0.05 if span.phase in ("warmup", "healthy", None) else 0.13
        shapes.append(_band(a, b, 0.0, 1.0) | {"fillcolor": sign.color, "opacity": faint})
        label = {"text": text, "font": {"size": 10, "color": sign.ink}}
        shapes.append(_band(a, b, *_STRIP) | {"fillcolor": sign.color, "label": label})
    return shapes


def alarm_lines(
    table: pd.DataFrame, alerts: Sequence[AnyAlert], axis: XAxis, seen: tuple[float, float]
) -> list[Shape]:
    """A line where each alarm first fired, with its rule; a thin one where it fired again."""
    first = sorted(((a.step, a) for a in alerts if a.step is not None), key=lambda p: p[0])
    again = [
        (fired, a) for _, a in first for fired, _ in a.episodes[1:] if fired is not None
    ]  # fmt: skip
    shapes: list[Shape] = []
    at = at_steps(table, axis, [step for step, _ in first])
    width = seen[1] - seen[0]
    texts = _labels([a for _, a in first], at, _NEAR * width)
    for x, text, (_, alert) in zip(at, texts, first, strict=True):
        if seen[0] <= x <= seen[1]:
            shapes.append(_line(x, palette.SEVERITIES[alert.severity], text))
    later = at_steps(table, axis, [step for step, _ in again])
    for x, (_, alert) in list(zip(later, again, strict=True))[-_MOST_LINES:]:
        if seen[0] <= x <= seen[1]:
            shapes.append(_line(x, palette.SEVERITIES[alert.severity], "") | {"opacity": 0.35})
    return shapes


def _labels(alerts: list[AnyAlert], at: list[float], near: float) -> list[str]:
    """One label per cluster of neighbours, at its gravest alarm: the rule and how many more."""
    texts = [""] * len(alerts)
    clusters: list[list[int]] = []
    for i in range(len(alerts)):
        if clusters and at[i] - at[clusters[-1][0]] <= near:
            clusters[-1].append(i)
        else:
            clusters.append([i])
    for cluster in clusters:
        worst = max(cluster, key=lambda i: (alerts[i].severity.rank, -i))
        more = f" +{len(cluster) - 1}" if len(cluster) > 1 else ""
        texts[worst] = escape(visible(alerts[worst].rule, 40)) + more
    return texts


def event_ticks(
    table: pd.DataFrame, events: list[dict[str, Any]], axis: XAxis, seen: tuple[float, float]
) -> list[Shape]:
    """A named tick for each event of a step; checkpoints are short ones, if they are not too many.

    The most recent ones if there are more than a chart can bear; zooming in shows the others.
    """
    placed = [e for e in events if isinstance(e.get("step"), int)]
    at = at_steps(table, axis, [float(e["step"]) for e in placed])
    kinds = [str(e.get("kind", "event")) for e in placed]
    within = [(x, k) for x, k in zip(at, kinds, strict=True) if seen[0] <= x <= seen[1]]
    saved = [x for x, kind in within if kind == "checkpoint"]
    named = [(x, kind) for x, kind in within if kind != "checkpoint"]
    shapes: list[Shape] = []
    if len(saved) <= _MOST_LINES:
        shapes = [_vertical(x, 0.07, palette.NEUTRAL, 1.5) for x in saved]
    for x, kind in named[-_MOST_LINES:]:
        label = _upright(f"{_SPACE}{escape(visible(kind, 40))}", palette.NEUTRAL, "start")
        shapes.append(_vertical(x, 0.45, palette.NEUTRAL, 1.5) | label)
    return shapes


def _vertical(x: float, height: float, color: str, width: float, dash: str = "solid") -> Shape:
    """A line from the bottom of the chart to `height`, a share of it."""
    line = {"color": color, "width": width, "dash": dash}
    return {"type": "line", "line": line} | _place(x, x, 0.0, height)


def onset_line(
    table: pd.DataFrame, alerts: Sequence[AnyAlert], axis: XAxis, color: str, dash: str
) -> list[Shape]:
    """Where a compared run's decay alarm first fired, in the run's own colour."""
    steps: list[float] = [a.step for a in alerts if a.rule == "lld-decay" and a.step is not None]
    if not np.isfinite(positions(table, axis)).any():
        return []  # the run has no place on this axis
    return [
        _vertical(x, 1.0, color, 1.5, dash)
        | {"opacity": 0.6}
        | _upright(f"lld-decay{_SPACE}", color, "end")
        for x in at_steps(table, axis, steps)
    ]


def _band(x0: float, x1: float, y0: float, y1: float) -> Shape:
    return {"type": "rect", "layer": "below", "line": {"width": 0}} | _place(x0, x1, y0, y1)


def _place(x0: float, x1: float, y0: float, y1: float) -> Shape:
    return {"yref": "paper", "x0": x0, "x1": x1, "y0": y0, "y1": y1}


def _line(x: float, sign: palette.Sign, text: str) -> Shape:
    label = _upright(f"{sign.shape} {text}{_SPACE}", sign.color, "end") if text else {}
    return _vertical(x, 1.0, sign.color, 1.25) | {"opacity": 0.85} | label


def _upright(text: str, color: str, at: str) -> Shape:
    return {
        "label": {
            "text": text,
            "textangle": -90,
            "textposition": at,
            "xanchor": "right" if at == "end" else "left",
            "yanchor": "bottom",
            "padding": 3,
            "font": {"size": 10, "color": color},
        }
    }
