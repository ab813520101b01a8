"""A figure as inline SVG, for pages without script: reports and notebooks.

The drawing fills any width: curves are stretched, text and line widths are not. Background and ink
are CSS variables of the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any
from xml.etree import ElementTree

from ..core.charts import Chart
from ..core.numbers import number
from .chart_figures import Figure, curves, in_words
from .marks import WIDE_ONLY

PLOT, TICKS = 140, 18  # heights in pixels: of the plot, and of the steps below it
LEFT, RIGHT = 48, 48  # widths in pixels of the numbers beside the plot
ACROSS = 1000.0  # width of the plot in units of its own
DASHES = {"dash": "6 4", "dot": "2 4", "dashdot": "8 3 2 3", "longdash": "10 4"}
STRETCH = {"preserveAspectRatio": "none"}


@dataclass(frozen=True)
class Drawing:
    """A chart to show: heading, legend (name, colour and Plotly dash of each line), picture, and
    description."""

    title: str
    unit: str
    keys: Sequence[dict[str, str]]
    note: str
    words: str
    svg: str


class Axis:
    """Maps values to a range of pixels; for a logarithmic axis, `low` and `high` are exponents."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = False):
        if high <= low:
            low, high = low - 0.5, high + 0.5
        self.low, self.high, self.start, self.end, self.log = low, high, start, end, log

    def __call__(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int) -> list[float]:
        """At most `count` round values."""
        step = 10 ** math.floor(math.log10((self.high - self.low) / count))
        step *= next(m for m in (1, 2, 5, 10) if (self.high - self.low) / (m * step) <= count)
        step = max(1, step) if self.log else step
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [round(i * step, 10) for i in range(first, last + 1)]


def add(
    parent: ElementTree.Element, tag: str, text: str = "", title: str = "", **attributes: Any
) -> ElementTree.Element:
    """An element of a drawing; `title` is shown on hover and read aloud. Text is escaped."""
    plain = {k.rstrip("_").replace("_", "-"): _plain(v) for k, v in attributes.items()}
    element = ElementTree.SubElement(parent, tag, plain)
    element.text = text
    if title:
        ElementTree.SubElement(element, "title").text = title
    return element


def canvas(height: float, words: str, left: float = 0, right: float = 0) -> ElementTree.Element:
    """An empty picture as wide as its container without margins; `words` are its text alternative,
    and a picture without them is decoration."""
    width = f"margin-left:{left:g}px;width:calc(100% - {left + right:g}px)"
    role = {"role": "img", "aria-label": words} if words else {"aria-hidden": "true"}
    size = {"class": "drawing", "height": _plain(height), "style": width}
    return ElementTree.Element("svg", size | role)


def to_text(root: ElementTree.Element) -> str:
    """The drawing as markup."""
    return ElementTree.tostring(root, encoding="unicode")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def draw(chart: Chart, figure: Figure) -> Drawing:
    """Draw the figure of a chart, with legend and description."""
    lines = [t for t in figure["data"] if t["x"]]
    unit = "" if chart.unit == chart.title.lower() else chart.unit
    unit = ", ".join(filter(None, (unit, "logarithmic" if chart.log else "")))
    words = f"{chart.title}: {in_words(figure)}."
    keys = [{"name": unescape(t["name"]), **t["line"]} for t in curves(figure)]
    keys = keys if len(keys) > 1 else []
    layout = figure["layout"]
    picture = to_text(_Picture(lines, layout, words).root)
    return Drawing(chart.title, unit, keys, layout["meta"]["remarks"], words, picture)


class _Picture:
    """A drawing in progress: its axes and elements."""

    def __init__(self, lines: Sequence[Figure], layout: dict[str, Any], words: str) -> None:
        self.top = max(24, layout["margin"]["t"])
        low, high = layout["xaxis"]["range"]
        self.x = Axis(low, high, 0.0, ACROSS)
        self.y = {
            name: _axis([t for t in lines if t["yaxis"] == name], layout[_vertical(name)])
            for name in dict.fromkeys(t["yaxis"] for t in lines)
        }
        sides = {layout[_vertical(name)].get("side") for name in self.y}
        height = self.top + PLOT
        self.root = canvas(height + TICKS, words, LEFT, RIGHT if "right" in sides else 8)
        view = f"0 {-self.top} {ACROSS:g} {height}"
        self.plot = add(self.root, "svg", viewBox=view, width="100%", height=height, **STRETCH)
        shapes = [s for s in layout["shapes"] if s["yref"] in ("paper", *self.y)]
        below = [s for s in shapes if s.get("layer") == "below"]
        for shape in below:
            self.draw_shape(shape)
        for name, axis in self.y.items():
            self.draw_grid(axis, layout[_vertical(name)], name == "y")
        view = f"-5 0 {ACROSS + 10:g} {PLOT}"  # dots at the ends are whole
        inside = add(self.plot, "svg", x=-5, width=ACROSS + 10, height=PLOT, viewBox=view,
                     **STRETCH)
        for i, trace in enumerate(lines):
            self.draw_line(inside, trace, lines[i - 1])
        for shape in (s for s in shapes if s not in below):
            self.draw_shape(shape)
        for note in layout["annotations"]:
            y = self.top - (note["y"] - 1) * PLOT - note["yshift"] - 4
            anchor = "start" if note["xanchor"] == "left" else "end"
            self.write(note["text"], self.x(note["x"]), y, anchor, dx=note["xshift"])
        add_steps(self.root, self.x, height + 14)

    def write(self, text: str, x: float, y: float, anchor: str, **look: Any) -> None:
        """Add small text, which is not stretched."""
        add(self.root, "text", unescape(text).strip(), x=across(x), y=y, text_anchor=anchor,
            style="font-size:10px", **look)

    def draw_grid(self, axis: Axis, look: dict[str, Any], left: bool) -> None:
        """Draw lines and numbers of a vertical axis."""
        values = look.get("tickvals") or [10**t if axis.log else t for t in axis.ticks(4)]
        if axis.log and len(values) < 2:  # less than a power of ten
            powers = (axis.low + share * (axis.high - axis.low) for share in (0.1, 0.5, 0.9))
            values = [float(f"{10**power:.1g}") for power in powers]
        place: dict[str, Any] = {"x": "0", "dx": -6, "text_anchor": "end"}
        if look.get("side") == "right":
            place = {"x": "100%", "dx": 6}
        texts = ([number(v, digits) for v in values] for digits in range(4, 9))
        names = next((of for of in texts if len({*of}) == len(of)), [""] * len(values))
        for value, name in zip(values, names, strict=True):
            if left:
                stroke = "var(--zero)" if look["zeroline"] and value == 0 else "var(--grid)"
                add(self.plot, "path", d=f"M0 {axis(value):g}H{ACROSS:g}", stroke=stroke)
            add(self.root, "text", name, y=self.top + axis(value) + 4, **place)

    def draw_line(self, parent: ElementTree.Element, trace: Figure, before: Figure) -> None:
        """Draw a line, or the area between a line and the previous one."""
        points, line = self.points(trace), trace["line"]
        if trace.get("fill") == "tonexty":
            edge = [*points, *reversed(self.points(before))]
            add(parent, "path", d=_path(edge) + "Z", fill=trace["fillcolor"])
        elif line["width"]:
            look = {"stroke": line["color"], "opacity": trace["opacity"]}
            add(parent, "path", d=_path(points), stroke_width=line["width"], **look, **_dash(line))
            if "markers" in trace["mode"]:  # a round cap is a dot that stretching leaves round
                dots = "".join(f"M{a:g} {b:g}h0" for a, b in points)
                add(parent, "path", d=dots, stroke_width=6, stroke_linecap="round", **look)

    def points(self, trace: Figure) -> list[tuple[float, float]]:
        """The positions of a line's values. A logarithmic axis has none for values of 0 or less."""
        y = self.y[trace["yaxis"]]
        pairs = zip(trace["x"], trace["y"], strict=True)
        return [(self.x(a), y(b)) for a, b in pairs if b > 0 or not y.log]

    def draw_shape(self, shape: dict[str, Any]) -> None:
        """Draw a band or a line of the figure with its label; a label that is upright is shown on
        hover only."""
        left, right = 0.0, ACROSS
        if shape.get("xref") != "paper":
            left, right = self.x(shape["x0"]), self.x(shape["x1"])
        low, high = (
            PLOT * (1 - v) if shape["yref"] == "paper" else self.y[shape["yref"]](v)
            for v in (shape["y0"], shape["y1"])
        )
        words = shape.get("label") or {}
        text = words.get("text", "")
        look = {"opacity": shape.get("opacity", 1), "title": unescape(shape.get("name") or text)}
        if shape["type"] == "rect":
            add(self.plot, "rect", x=left, y=high, width=max(right - left, 1), height=low - high,
                fill=shape["fillcolor"], **look)
            place = (left + right) / 2, self.top + (low + high) / 2 + 3.5, "middle"
        else:
            line = shape["line"]
            add(self.plot, "path", d=f"M{left:g} {low:g}L{right:g} {high:g}", stroke=line["color"],
                stroke_width=line["width"], **_dash(line), **look)
            place = 40.0, self.top + low - 3, "start"
        if text and not words.get("textangle"):
            look = {"class_": "wide"} if words["font"]["size"] == WIDE_ONLY else {}
            self.write(text, *place, fill=words["font"]["color"], **look)


def _axis(lines: Sequence[Figure], axis: dict[str, Any]) -> Axis:
    """The vertical axis of the lines, with the range of the layout, or else of all drawable values
    with a margin, and of 0 if the layout wants it."""
    log = axis.get("type") == "log"
    if "range" in axis:
        low, high = axis["range"]
    else:
        points = [v for t in lines for v in t["y"] if v > 0 or not log]
        points = [math.log10(v) for v in points] if log else points
        if not log and (axis.get("zeroline") or axis.get("rangemode") == "tozero"):
            points.append(0.0)
        least, most = min(points), max(points)
        margin = (most - least) * 0.05
        low, high = least - margin, most + margin
        if axis.get("rangemode") in ("nonnegative", "tozero") and not log and least >= 0:
            low, high = max(low, 0.0), high if high > 0 else 1.0
    bottom, top = axis.get("domain") or (0.0, 1.0)
    return Axis(low, high, PLOT * (1 - bottom), PLOT * (1 - top), log)


def _vertical(axis: str) -> str:
    """The layout's key for the axis that lines call `y` or `y2`."""
    return f"yaxis{axis[1:]}"


def _dash(line: dict[str, Any]) -> dict[str, str]:
    return {"stroke_dasharray": DASHES[line["dash"]]} if line["dash"] in DASHES else {}


def _path(points: Sequence[tuple[float, float]]) -> str:
    return f"M{'L'.join(f'{a:g} {b:g}' for a, b in points)}" if points else ""


def across(x: float) -> str:
    """A position between the left and the right edge."""
    return f"{100 * x / ACROSS:.2f}%"


def add_steps(root: ElementTree.Element, x: Axis, y: float) -> None:
    """Add integer steps below a picture."""
    for tick in (t for t in x.ticks(6) if t == int(t)):
        share = x(tick) / ACROSS
        anchor = "start" if share < 0.02 else "end" if share > 0.98 else "middle"
        add(root, "text", f"{tick:,.0f}", x=across(x(tick)), y=y, text_anchor=anchor)
