"""Tables to figures. Pure functions: the same table and view give the same figure.

Figures are plain dictionaries of Python lists, as Plotly's JSON is: quick to build and to patch.
Text that comes from a run is escaped, because Plotly reads a little HTML in text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape, unescape
from typing import Any

import numpy as np

from ..core import palette
from ..core.charts import EVIDENCE, Chart, Line, select_charts
from ..core.numbers import number
from ..core.terminal import visible
from . import averages, marks
from .layout import STRIP, chart_layout, evidence_axis
from .marks import alarm_labels
from .series import (
    MOST_POINTS,
    Numbers,
    Thinned,
    XAxis,
    floats,
    positions,
    smooth,
    thin,
    trace,
    x_axis,
)
from .view import Subject, View

Figure = dict[str, Any]

CHARTS = select_charts(
    "reward", "delta", "likelihood", "entropy", "gradient", "by-action", "conduct", "shares"
)
"""The charts of a run page, in order."""
HEIGHT = 252  # of a chart, pixels
MOST_TOGETHER = 8 * MOST_POINTS  # points of all runs in a chart that compares them
SMALL = 0.01  # if all values are below it, the axis is written in powers of ten
MEAN_WIDTH, GHOST_WIDTH = 2.0, 1.0
MOST_DESCRIBED, FEW_LINES = 6, 2  # lines that are described in words, and with extremes
CLEARLY = 0.3  # of a line's range


def make_chart(chart: Chart, subject: Subject, view: View, axis: XAxis | None = None) -> Figure:
    """A chart of one run with phases, alarms and events. `axis` is an axis shared with other
    charts; by default the chart has its own."""
    axis = axis or x_axis([subject.table], view.by)
    zoom = axis.shown(view.zoom)
    x = positions(subject.table, axis)
    counts: list[Thinned] = []
    data, absent = [], []
    for i, line in enumerate(chart.lines):
        values = floats(subject.table, line.column)
        if not np.isfinite(values).any():
            absent.append(i)
        y = _mask(values, chart.log and not line.right)
        if line.mean and line.ghost and view.window > 1:
            data.append(_draw(raw := thin(x, y, zoom), line, raw=True))
            counts.append(raw)
        mean = thin(x, _smooth(y, line, view, subject), zoom)
        data.append(_draw(mean, line))
        if line.column != EVIDENCE:  # present even if Δ was not measured
            counts.append(mean)
    window = zoom or axis.extent
    layout = chart_layout(chart, axis, window)
    layout["shapes"] = [
        *marks.phase_bands(subject.table, subject.spans, axis, window),
        *marks.event_ticks(subject.table, subject.events, axis, window),
        *marks.alarm_lines(subject.table, subject.alerts, axis, window),
    ]
    names = alarm_labels(subject.table, subject.alerts, axis, window)
    if any(line.column == EVIDENCE for line in chart.lines):
        layout["yaxis2"] |= evidence_axis(subject.arl)
        layout["yaxis"]["domain"] = [STRIP + 0.06, 1.0]
        layout["xaxis"] |= {"anchor": "free", "position": 0.0}
        layout["shapes"].append(_threshold(subject.arl))
    missing = "Not measured in this run" if len(subject.table) else "Nothing recorded yet"
    figure = _finish(data, layout, counts, missing, names)
    layout["meta"]["absent"] = absent
    right = {i for i, line in enumerate(chart.lines) if line.right}
    if right and right <= {*absent}:
        layout["yaxis2"]["visible"] = False
    return _scale(figure, chart, view)


def make_overlay(
    chart: Chart, subjects: list[Subject], subset: set[str], view: View, names: Sequence[str] = ()
) -> Figure:
    """A chart of several runs: its first line for each run, in the run's colour and dash. `names`
    are all compared runs, even unreadable ones, so that each run keeps its colour."""
    subjects = [aligned(s, view.by) for s in subjects]
    axis = x_axis([s.table for s in subjects], view.by)
    most = min(MOST_POINTS, MOST_TOGETHER // max(1, len(subset)))
    main = chart.lines[0]
    counts: list[Thinned] = []
    data, shapes = [], []
    zoom = axis.shown(view.zoom)
    lines = averages.lines_of(names or [s.name for s in subjects], view.groups)
    for i, members in enumerate(lines.values()):
        runs = [s for s in subjects if s.name in members and s.name in subset]
        if not runs:
            continue
        color, dash = run_style(i)
        columns = [_mask(floats(s.table, main.column), chart.log) for s in runs]
        means = [_smooth(y, main, view, s) for y, s in zip(columns, runs, strict=True)]
        if group := view.groups.get(members[0]):
            traces, onsets, points = averages.group_line(
                group, (color, dash), runs, means, axis, zoom, most
            )
        else:
            (run,) = runs
            points = thin(positions(run.table, axis), means[0], zoom, most)
            line = Line(main.column, escape(visible(run.called)), color, dash)
            traces = [_draw(points, line)]
            onsets = marks.onset_line(run.table, run.alerts, axis, color, dash)
        data += traces
        shapes += onsets
        counts.append(points)
    layout = chart_layout(chart, axis, zoom or axis.extent, right=False)
    layout["shapes"] = shapes
    return _scale(_finish(data, layout, counts, "Not measured in these runs"), chart, view)


def _smooth(values: Numbers, line: Line, view: View, subject: Subject) -> Numbers:
    if not line.mean:
        return values
    return smooth(values, view.window, floats(subject.table, line.weight) if line.weight else None)


def aligned(subject: Subject, by: str) -> Subject:
    """The run with an additional column of steps since the onset of decay; NaN if it never
    decayed."""
    if by != "onset":
        return subject
    since = floats(subject.table, "step") - zero(subject)
    return replace(subject, table=subject.table.assign(onset=since))


def zero(subject: Subject) -> float:
    """The step at which decay began, as judged live; NaN if it never did."""
    starts = (s.start_step for s in subject.spans if s.phase in ("decay", "collapse"))
    return float(next(starts, math.nan))


def run_style(position: int) -> tuple[str, str]:
    """Colour and dash of the run at this position of a comparison."""
    colors, dashes = palette.RUN_COLORS, palette.RUN_DASHES
    return colors[position % len(colors)], dashes[position % len(dashes)]


def is_measured(figure: Figure) -> bool:
    """Whether any signal of the chart was measured."""
    return bool(figure["layout"]["meta"]["measured"])


def curves(figure: Figure) -> list[Figure]:
    """The lines that legend and description name: no raw values, no edges of a band."""
    lines = (t for t in figure["data"] if t["type"] == "scatter" and t["x"])
    return [line for line in lines if line["opacity"] == 1 and line["line"]["width"]]


def in_words(figure: Figure) -> str:
    """The chart in words, for people who cannot see it: the first and the last value of each line,
    the extremes of few lines, and the remarks."""
    lines = curves(figure)
    courses = []
    for line in lines[:MOST_DESCRIBED]:
        y = line["y"]
        ends = " → ".join(map(number, y if len(y) < 2 else (y[0], y[-1])))
        beyond = _extremes(line, figure) if len(lines) <= FEW_LINES else ""
        courses.append(f"{unescape(line['name'])} {ends}{beyond}")
    more = [f"and {len(lines) - MOST_DESCRIBED} more"] if len(lines) > MOST_DESCRIBED else []
    return " · ".join(filter(None, [*courses, *more, figure["layout"]["meta"]["remarks"]]))


def _extremes(line: Figure, figure: Figure) -> str:
    """The highest and the lowest value of a line, if they are clearly beyond its two ends."""
    x, y = line["x"], line["y"]
    words = ""
    for word, pick in (("highest", max), ("lowest", min)):
        value = pick(y)
        if abs(value - pick(y[0], y[-1])) > CLEARLY * (max(y) - min(y)):
            by_step = figure["layout"]["meta"]["x"] == "step"
            at = f" at step {x[y.index(value)]:,.0f}" if by_step else ""
            words += f", {word} {number(value)}{at}"
    return words


# -- parts of a figure ----------------------------------------------------------------------------


def _mask(y: Numbers, log: bool) -> Numbers:
    """The values that have a place on the axis; a logarithmic axis has none for 0 and below."""
    return np.where(y > 0, y, np.nan) if log else y


def _draw(points: Thinned, line: Line, *, raw: bool = False) -> Figure:
    name = f"{line.label}, raw" if raw else line.label
    width, dash = (GHOST_WIDTH, "solid") if raw else (MEAN_WIDTH, line.dash)
    form = f"%{{y:{',.0f' if line.column == EVIDENCE else ',.4~r'}}}"
    return trace(points, name, line.color, width, dash) | {
        "mode": "markers" if len(points.x) == 1 else "lines+markers" if line.markers else "lines",
        "yaxis": "y2" if line.right else "y",
        "opacity": 0.32 if raw else 1.0,
        "hovertemplate": form,
    }


def _threshold(arl: float) -> Figure:
    """The evidence at which the decay test alarms."""
    font = {"size": 10, "color": palette.PURPLE}
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0.0,
        "x1": 1.0,
        "yref": "y2",
        "y0": arl,
        "y1": arl,
        "line": {"color": palette.PURPLE, "width": 1, "dash": "dot"},
        "opacity": 0.7,
        "label": {"text": f"alarm at {arl:,.0f}", "textposition": "start", "font": font,
                  "yanchor": "top"},  # above it a narrow strip would cut the words
    }


def _scale(figure: Figure, chart: Chart, view: View) -> Figure:
    """Give the y axis the scale that the reader chose, and a level line room on both sides."""
    axis, log = figure["layout"]["yaxis"], chart.log or chart.id in view.log
    if chart.id in view.log:
        axis |= {"type": "log", "exponentformat": "power", "autorange": True}
        axis.pop("range", None)
    values = [v for t in figure["data"] if t["yaxis"] == "y" for v in t["y"] if v > 0 or not log]
    if values and not log and min(values) == max(values) and "range" not in axis:
        pad = abs(values[0]) / 2 or 0.5  # Plotly's own would be 1 to either side
        axis |= {"range": [values[0] - pad, values[0] + pad], "autorange": False}
    return figure


def _finish(
    data: list[Figure],
    layout: Figure,
    counts: list[Thinned],
    missing: str,
    names: Sequence[Figure] = (),
) -> Figure:
    n_invalid = max((c.not_finite for c in counts), default=0)
    remarks = []
    longest = max(counts, key=lambda c: c.total, default=None)
    if longest and longest.total > len(longest.x):
        remarks.append(f"{len(longest.x):,} of {longest.total:,} points, extremes included")
    if n_invalid:
        remarks.append(f"{n_invalid:,} not finite, not drawn")
    layout["meta"]["remarks"] = " · ".join(remarks)
    sizes = [abs(y) for t in data if t["yaxis"] == "y" for y in t["y"]]
    if 0 < max(sizes, default=0) < SMALL:
        layout["yaxis"]["exponentformat"] = "power"  # 4 × 10⁻⁴ in the place of 400µ
    layout["annotations"] = list(names)
    layout["meta"]["measured"] = any(c.x for c in counts)
    if not layout["meta"]["measured"]:
        layout["meta"]["remarks"] = missing
        centre = {"xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
        layout["annotations"] = [
            centre | {"text": missing, "showarrow": False, "font": {"size": 13}}
        ]
        layout["shapes"] = []
        for name in [n for n in layout if n.startswith("yaxis")]:
            layout[name] |= {"showticklabels": False, "showgrid": False, "zeroline": False}
    return {"data": data, "layout": layout}
