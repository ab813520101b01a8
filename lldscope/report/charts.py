"""Figures (`lldscope.figures`) as inline SVG: of one run with its phases and alarms, or of two
arms."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape, unescape
from itertools import chain
from operator import sub
from statistics import median
from typing import Any

import pandas as pd

from ..core import palette
from ..core.charts import EVIDENCE, Chart, Line, select_charts
from ..core.numbers import number
from ..diagnosis.evidence import SMOOTH
from ..figures.chart_figures import Figure, is_measured, make_chart, make_overlay, remarks
from ..figures.series import x_axis
from ..figures.view import Subject, View, held_out_metric
from .arms.facts import Comparison
from .drawing import LEFT, RIGHT, WIDTH, Axis, label, path, step_ticks, svg, vertical_range
from .facts import PostMortem
from .timeline import phase_bar

STRIPS = 60  # places of a chart that show their numbers on hover
PLOT, BOTTOM = 152, 24  # heights of the plot, and of the steps below it
CHARTS = select_charts(
    "likelihood", "delta", "reward", "entropy", "gradient", "displaced", "conduct", "tools", "rate"
)
DASHES = {"solid": "", "dash": "6 4", "dot": "2 4"}  # Plotly's names in SVG
HELD_OUT = Chart("evals", "Held-out evaluation", "", "", ())
GLANCE = ("likelihood", "delta", "reward", HELD_OUT.id)  # those that tell the story
MOST_SOURCES = 6
RAW = ", raw"  # ends the name of the line behind a mean
_VIEW = View(window=SMOOTH)


def of_run(facts: PostMortem, ids: Collection[str]) -> str:
    """A figure of each chart with these ids of which something was measured."""
    subject, held_out = _with_evaluations(facts)
    axis = x_axis([subject.table], _VIEW.by)
    charts = [chart for chart in (*CHARTS, held_out) if chart.id in ids and chart.lines]
    figures = [(chart, make_chart(chart, subject, _VIEW, axis)) for chart in charts]
    return "".join(_figure(chart, figure) for chart, figure in figures if is_measured(figure))


def _with_evaluations(facts: PostMortem) -> tuple[Subject, Chart]:
    """The run with a column of its held-out score for each data source, and their chart."""
    metric = held_out_metric(list(dict.fromkeys(row["metric"] for row in facts.evals)))
    table, lines = facts.subject.table, list[Line]()
    rows = [r for r in facts.evals if r["metric"] == metric and r["value"] is not None]
    for source in list(dict.fromkeys(r["data_source"] for r in rows))[:MOST_SOURCES]:
        name = f"{metric}, {source}" if source else str(metric)
        values = {r["step"]: r["value"] for r in rows if r["data_source"] == source}
        column = pd.DataFrame({"step": list(values), f"eval/{name}": list(values.values())})
        table = table.merge(column, how="outer", on="step")
        style = palette.RUN_COLORS[len(lines)], tuple(DASHES)[len(lines) % len(DASHES)]
        lines.append(Line(f"eval/{name}", escape(name), *style, mean=False))
    return replace(facts.subject, table=table), replace(HELD_OUT, lines=tuple(lines))


def of_arms(facts: Comparison) -> str:
    """A figure for each axis whose first signal an arm has measured, with a line for each arm."""
    subjects = [
        replace(run.subject, name=f"{arm.letter}{i}", title=arm.letter)
        for arm in facts.arms
        for i, run in enumerate(arm.runs)
    ]
    groups = {
        f"{arm.letter}{i}": arm.letter
        for arm in facts.arms
        if len(arm.runs) > 1
        for i in range(len(arm.runs))
    }
    view, names = replace(_VIEW, groups=groups), {subject.name for subject in subjects}
    figures = []
    for chart in chain.from_iterable(map(_by_axis, CHARTS)):
        figure = make_overlay(chart, subjects, names, view)
        if is_measured(figure):
            x = _across(figure)
            figures.append(_figure(chart, figure, [*_phases_of_arms(facts, x)]))
    return "".join(figures)


def _by_axis(chart: Chart) -> Iterator[Chart]:
    """The chart as one or two of a single axis each, called as its first line."""
    lines = [line for line in chart.lines if line.column != EVIDENCE]
    for right, unit in ((False, chart.unit), (True, chart.right_unit or "")):
        if mine := tuple(line for line in lines if line.right == right):
            title = f"{chart.title}: {mine[0].label}" if len(lines) > 1 else chart.title
            yield replace(chart, title=title, unit=unit, right_unit=None, lines=mine)


def _phases_of_arms(facts: Comparison, x: Axis) -> Iterator[str]:
    """The phases of the arms that are a single run, above the chart."""
    for i, arm in enumerate(facts.arms):
        if len(arm.runs) == 1:
            yield label(x.start - 6, 11 * (i + 1), arm.letter, "end")
            yield from phase_bar(arm.runs[0], x, 1 + 11 * i, 10)


# -- a figure as SVG ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plot:
    """The axes of a figure in its picture; `y` by their names in the figure."""

    x: Axis
    y: dict[str, Axis]
    top: float
    bottom: float

    def place(self, value: float, ref: str) -> float:
        """Where a value of an axis lies, or a share of the height."""
        if ref == "paper":
            return round(self.bottom - value * (self.bottom - self.top), 1)
        return self.y[ref](value)


def _across(figure: Figure) -> Axis:
    right = 52 if "side" in figure["layout"].get("yaxis2", ()) else RIGHT
    low, high = figure["layout"]["xaxis"]["range"]
    return Axis(low, high, LEFT, WIDTH - right)


def _figure(chart: Chart, figure: Figure, above: Sequence[str] = ()) -> str:
    """The figure with its title and legend; `above` is drawn over the plot."""
    layout = figure["layout"]
    top = max(24, layout["margin"]["t"])
    lines = [
        t for t in figure["data"] if t["x"] and layout[_vertical(t["yaxis"])].get("visible", True)
    ]
    ranges = {
        axis: vertical_range(
            [v for t in lines if t["yaxis"] == axis for v in t["y"]], layout[_vertical(axis)]
        )
        for axis in dict.fromkeys(t["yaxis"] for t in lines)
    }
    height = top + PLOT
    axes: dict[str, Axis] = {}
    for axis, ((low, high), log) in ranges.items():
        start, end = _domain(layout[_vertical(axis)], top, height)
        axes[axis] = Axis(low, high, start, end, log)
    plot = Plot(_across(figure), axes, top, height)
    shapes = [s for s in layout["shapes"] if s["yref"] == "paper" or s["yref"] in axes]
    below = [s for s in shapes if s.get("layer") == "below"]
    parts = [_shape(s, plot) for s in below]
    for axis in axes:
        parts += _grid(plot, axis, layout[_vertical(axis)])
    parts += [_inside([_line(lines, i, plot) for i in range(len(lines))], plot)]
    parts += [_shape(s, plot) for s in shapes if s not in below]
    parts += [_annotation(a, plot) for a in layout["annotations"]]
    curves = [t for t in lines if t["line"]["width"] and not t["name"].endswith(RAW)]
    parts += [*above, *step_ticks(plot.x, 8, height + 16), *_hover(curves, figure["data"], plot)]
    unit = ", ".join(filter(None, (chart.unit, "logarithmic" if chart.log else "")))
    ends = "; ".join(f"{unescape(t['name'])}: last {number(t['y'][-1])}" for t in curves)
    title = f"{chart.title}{f', {unit}' if unit else ''}, over steps. {ends}"
    keys = "".join(
        '<span class="key"><svg width="22" height="8" aria-hidden="true">'
        f'<path d="M0 4H22" {_stroke(t["line"])}/></svg>{escape(unescape(t["name"]))}</span>'
        for t in curves
    )
    note = f" <small>· {escape(remarks(figure))}</small>" if remarks(figure) else ""
    caption = f"<b>{chart.title}</b> <small>{unit}</small> {keys}{note}"
    image = svg(parts, title, height + BOTTOM)
    return f"<figure><figcaption>{caption}</figcaption>{image}</figure>"


def _vertical(axis: str) -> str:
    """The key in the layout of an axis that lines call `y` or `y2`."""
    return f"yaxis{axis[1:]}"


def _domain(axis: dict[str, Any], top: float, bottom: float) -> tuple[float, float]:
    low, high = axis.get("domain") or (0.0, 1.0)
    return bottom - low * (bottom - top), bottom - high * (bottom - top)


def _grid(plot: Plot, name: str, axis: dict[str, Any]) -> list[str]:
    """Lines and numbers of a vertical axis."""
    y, parts = plot.y[name], list[str]()
    right = axis.get("side") == "right"
    values = axis.get("tickvals") or [10**t if y.log else t for t in y.ticks(4)]
    if y.log and len(values) < 2:  # less than a power of ten
        powers = (y.low + share * (y.high - y.low) for share in (0.1, 0.5, 0.9))
        values = [float(f"{10**power:.1g}") for power in powers]
    for value in values:
        at = y(value)
        if name == "y":
            strong = "var(--zero)" if axis["zeroline"] and value == 0 else "var(--grid)"
            parts.append(f'<path d="M{plot.x.start:g} {at:g}H{plot.x.end:g}" stroke="{strong}"/>')
        place, anchor = (plot.x.end + 6, "start") if right else (plot.x.start - 6, "end")
        parts.append(label(place, at + 4, number(value, 4), anchor))
    return parts


def _stroke(line: dict[str, Any]) -> str:
    dashes = DASHES.get(line["dash"], "8 3 2 3")
    dashes = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'stroke="{line["color"]}" stroke-width="{line["width"]:g}"{dashes}'


def _line(lines: Sequence[dict[str, Any]], i: int, plot: Plot) -> str:
    """A line, or the area between one and the line before it."""
    trace, y = lines[i], plot.y[lines[i]["yaxis"]]
    if trace.get("fill") == "tonexty":
        under = lines[i - 1]
        edge = [*zip(trace["x"], trace["y"], strict=True)]
        edge += reversed([*zip(under["x"], under["y"], strict=True)])
        points = [f"{plot.x(a):g} {y(b):g}" for a, b in edge if b > 0 or not y.log]
        return f'<path d="M{"L".join(points)}Z" fill="{trace["fillcolor"]}"/>' if points else ""
    if not trace["line"]["width"]:
        return ""
    look = f'{_stroke(trace["line"])} opacity="{trace["opacity"]:g}"'
    return f'<path d="{path(trace["x"], trace["y"], plot.x, y)}" {look}/>'


def _inside(parts: Sequence[str], plot: Plot) -> str:
    """The parts, cut at the edges of the plot."""
    left, width, height = plot.x.start, plot.x.end - plot.x.start, plot.bottom - plot.top
    size = f'x="{left:g}" y="{plot.top:g}" width="{width:g}" height="{height:g}"'
    box = f'viewBox="{left:g} {plot.top:g} {width:g} {height:g}"'
    return f"<svg {size} {box}>{''.join(parts)}</svg>"


def _shape(shape: dict[str, Any], plot: Plot) -> str:
    """A band or a line of the figure, with its words."""
    x0, x1 = shape["x0"], shape["x1"]
    across = shape.get("xref") == "paper"
    a, b = (plot.x.start, plot.x.end) if across else (plot.x(x0), plot.x(x1))
    y0, y1 = (plot.place(v, shape["yref"]) for v in (shape["y0"], shape["y1"]))
    title = f"<title>{escape(unescape(shape.get('name', '')))}</title>"
    look = f'opacity="{shape.get("opacity", 1):g}"'
    words, size = shape.get("label") or {}, 10.0
    text = unescape(words.get("text", "")).strip()
    color = words["font"]["color"] if text else ""
    if shape["type"] == "rect":
        mark = (
            f'<rect x="{a:g}" y="{y1:g}" width="{max(b - a, 1):g}" height="{y0 - y1:g}" '
            f'fill="{shape["fillcolor"]}" {look}>{title}</rect>'
        )
        words_of = label((a + b) / 2, (y0 + y1) / 2 + 3.5, text, "middle", color, size)
    else:
        stroke = _stroke(shape["line"])
        mark = f'<path d="M{a:g} {y0:g}L{b:g} {y1:g}" {stroke} {look}>{title}</path>'
        words_of = label(a + 3, y0 - 3, text, "start", color, size)
        if words.get("textangle"):
            words_of = f'<g transform="rotate(-90 {a + 3:g} {y0 - 3:g})">{words_of}</g>'
    return mark + (words_of if text else "")


def _annotation(note: dict[str, Any], plot: Plot) -> str:
    """The name of an alarm above the plot."""
    anchor = "start" if note["xanchor"] == "left" else "end"
    y = plot.place(note["y"], note["yref"]) - note["yshift"] - 4
    return label(plot.x(note["x"]) + note["xshift"], y, unescape(note["text"]), anchor, size=10)


# -- numbers on hover -----------------------------------------------------------------------------


def _hover(
    curves: Sequence[dict[str, Any]], lines: Sequence[dict[str, Any]], plot: Plot
) -> Iterator[str]:
    """Invisible strips over the chart, each with the numbers measured in its middle."""
    x, by_name = plot.x, {t["name"]: t for t in lines if t["x"]}
    width, half = (x.end - x.start) / STRIPS, (x.high - x.low) / STRIPS / 2
    for i in range(STRIPS):
        middle = x.low + (2 * i + 1) * half
        texts = (_numbers(t, by_name, middle, half) for t in curves)
        yield (
            f'<rect class="hover" x="{x.start + i * width:.1f}" y="{plot.top:g}" '
            f'width="{width:.1f}" height="{plot.bottom - plot.top:g}">'
            f"<title>{escape('; '.join(texts))}</title></rect>"
        )


def _numbers(
    trace: dict[str, Any], by_name: dict[str, dict[str, Any]], middle: float, half: float
) -> str:
    """The numbers nearest to a step, with the step at which they were measured; of a mean over runs
    with their number and their range."""
    name = unescape(trace["name"])
    measured = by_name.get(f"{trace['name']}{RAW}", trace)
    at = nearest(measured["x"], middle, half)
    if at is None:
        return f"{name} – at step {middle:,.0f}"
    step = measured["x"][at]

    def beside(curve: dict[str, Any] | None) -> str | None:
        row = nearest(curve["x"], step, half) if curve else None
        return None if curve is None or row is None else number(curve["y"][row])

    text = f"{name} {number(measured['y'][at])}"
    if measured is not trace and (mean := beside(trace)):
        text += f" (mean {mean})"
    group = trace["name"].removesuffix(", mean")
    runs, low, high = (
        beside(by_name.get(f"{group}, {what}")) for what in ("runs", "lowest run", "highest run")
    )
    if runs and low and high:
        text += f" ({runs} runs, {low} to {high})"
    return f"{text} at step {step:,.0f}"


def nearest(steps: Sequence[float], middle: float, half: float) -> int | None:
    """The row whose step is nearest to the middle of a strip; None if it lies outside of the strip
    and further away than the usual distance between rows."""
    row = min(range(len(steps)), key=lambda k: abs(steps[k] - middle))
    spacing = median(map(sub, steps[1:], steps)) if len(steps) > 1 else 0
    return row if abs(steps[row] - middle) <= max(half, spacing) else None
