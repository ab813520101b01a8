"""A figure as inline SVG, for pages without script: reports and notebooks.

The drawing fills whatever width it is given: curves are stretched, text and the width of lines are
not. Colours of ground and ink are CSS variables of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any
from xml.etree import ElementTree

from ..core.charts import Chart
from ..core.numbers import number
from .chart_figures import Figure, remarks

PLOT, TICKS = 140, 18  # heights in pixels: of the plot, and of the steps below it
LEFT, RIGHT = 48, 48  # widths in pixels of the numbers beside the plot
ACROSS = 1000.0  # width of the plot in units of its own
DASHES = {"dash": "6 4", "dot": "2 4", "dashdot": "8 3 2 3", "longdash": "10 4"}
RAW = ", raw"  # ends the name of the line behind a mean
SMALL_TEXT = "font-size:10px"


@dataclass(frozen=True)
class Key:
    """An entry of a legend; `dash` is a Plotly style."""

    name: str
    color: str
    dash: str


@dataclass(frozen=True)
class Drawing:
    """A chart to show: its heading, the legend, the picture, and the picture in words."""

    title: str
    unit: str
    keys: Sequence[Key]
    note: str
    words: str
    svg: str


class Axis:
    """Maps values to a range of pixels; of a logarithmic one, `low` and `high` are exponents."""

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
    """An empty picture as wide as its place but for the margins; `words` are its text alternative,
    and without them it is one of decoration."""
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
    """The figure of a chart, with its legend and the same in words."""
    layout = figure["layout"]
    lines = [
        t for t in figure["data"] if t["x"] and layout[_vertical(t["yaxis"])].get("visible", True)
    ]
    curves = [t for t in lines if t["line"]["width"] and not t["name"].endswith(RAW)]
    unit = "" if chart.unit == chart.title.lower() else chart.unit
    unit = ", ".join(filter(None, (unit, "logarithmic" if chart.log else "")))
    words = f"{chart.title}: {'; '.join(map(_course, curves))}."
    keys = [Key(unescape(t["name"]), t["line"]["color"], t["line"]["dash"]) for t in curves]
    keys = keys if len(keys) > 1 else []
    picture = to_text(_picture(lines, layout, words))
    return Drawing(chart.title, unit, keys, remarks(figure), words, picture)


def _course(trace: Figure) -> str:
    """A line in words: its beginning, its extremes, its end."""
    x, y = trace["x"], trace["y"]
    low, high = (y.index(extreme(y)) for extreme in (min, max))
    turns = sorted({i for i in (low, high) if 0 < i < len(y) - 1})
    at = [f"{number(y[i])} at step {x[i]:,.0f}" for i in (0, *turns, len(y) - 1)]
    return f"{unescape(trace['name'])} {', then '.join(dict.fromkeys(at))}"


def _picture(
    lines: Sequence[Figure], layout: dict[str, Any], words: str
) -> ElementTree.Element:
    top = max(24, layout["margin"]["t"])
    sides = {layout[_vertical(t["yaxis"])].get("side") for t in lines}
    right = RIGHT if "right" in sides else 8
    root = canvas(top + PLOT + TICKS, words, LEFT, right)
    first, last = layout["xaxis"]["range"]
    x = Axis(first, last, 0.0, ACROSS)
    axes = {
        name: _axis([t for t in lines if t["yaxis"] == name], layout[_vertical(name)])
        for name in dict.fromkeys(t["yaxis"] for t in lines)
    }
    shapes = [s for s in layout["shapes"] if s["yref"] == "paper" or s["yref"] in axes]
    view = f"0 {-top} {ACROSS:g} {top + PLOT}"
    plot = add(root, "svg", viewBox=view, height=top + PLOT, width="100%",
               preserveAspectRatio="none")
    for shape in (s for s in shapes if s.get("layer") == "below"):
        _shape(plot, shape, x, axes)
    for name, axis in axes.items():
        _grid(root, plot, axis, layout[_vertical(name)], name == "y", top)
    inside = add(plot, "svg", x=-5, width=ACROSS + 10, height=PLOT,
                 viewBox=f"-5 0 {ACROSS + 10:g} {PLOT}", preserveAspectRatio="none")
    for i, trace in enumerate(lines):
        _line(inside, trace, lines[i - 1], x, axes[trace["yaxis"]])
    for shape in (s for s in shapes if s.get("layer") != "below"):
        _shape(plot, shape, x, axes)
    for shape in shapes:
        _name_of(root, shape, x, axes, top)
    for note in layout["annotations"]:
        y = top - (note["y"] - 1) * PLOT - note["yshift"] - 4
        anchor = "start" if note["xanchor"] == "left" else "end"
        add(root, "text", unescape(note["text"]), x=_across(x(note["x"])), dx=note["xshift"], y=y,
            text_anchor=anchor, style=SMALL_TEXT)
    for tick in (t for t in x.ticks(6) if t == int(t)):
        share = x(tick) / ACROSS
        anchor = "start" if share < 0.02 else "end" if share > 0.98 else "middle"
        add(root, "text", f"{tick:,.0f}", x=_across(x(tick)), y=top + PLOT + 14, text_anchor=anchor)
    return root


def _vertical(axis: str) -> str:
    """The key in the layout of an axis that lines call `y` or `y2`."""
    return f"yaxis{axis[1:]}"


def _across(x: float) -> str:
    return f"{100 * x / ACROSS:.2f}%"


def _axis(lines: Sequence[Figure], axis: dict[str, Any]) -> Axis:
    """The vertical axis of the lines: what the layout says, or else all values with a margin,
    without what cannot be, and with 0 where it belongs."""
    log = axis.get("type") == "log"
    if "range" in axis:
        low, high = axis["range"]
    else:
        values = [v for t in lines for v in t["y"] if v > 0 or not log]
        points = [math.log10(v) for v in values] if log else values
        with_zero = axis.get("zeroline") or axis.get("rangemode") == "tozero"
        points = [*points, 0.0] if with_zero and not log else points
        low, high = min(points), max(points)
        margin = (high - low) * 0.05
        low, high = low - margin, high + margin
        if axis.get("rangemode") in ("nonnegative", "tozero") and not log:
            low, high = max(low, 0.0), high if high > 0 else 1.0
    bottom, top = axis.get("domain") or (0.0, 1.0)
    return Axis(low, high, PLOT * (1 - bottom), PLOT * (1 - top), log)


def _grid(
    root: ElementTree.Element, plot: ElementTree.Element, axis: Axis, look: dict[str, Any],
    left: bool, top: float,
) -> None:
    """Lines and numbers of a vertical axis."""
    values = look.get("tickvals") or [10**t if axis.log else t for t in axis.ticks(4)]
    if axis.log and len(values) < 2:  # less than a power of ten
        powers = (axis.low + share * (axis.high - axis.low) for share in (0.1, 0.5, 0.9))
        values = [float(f"{10**power:.1g}") for power in powers]
    place: dict[str, Any] = {"x": "0", "dx": -6.0, "text_anchor": "end"}
    if look.get("side") == "right":
        place = {"x": "100%", "dx": 6.0}
    texts = ([number(v, digits) for v in values] for digits in range(4, 9))
    names = next((of for of in texts if len({*of}) == len(of)), [""] * len(values))
    for value, name in zip(values, names, strict=True):
        y = axis(value)
        if left:
            stroke = "var(--zero)" if look["zeroline"] and value == 0 else "var(--grid)"
            add(plot, "path", d=f"M0 {y:g}H{ACROSS:g}", stroke=stroke)
        add(root, "text", name, y=top + y + 4, **place)


def _line(
    parent: ElementTree.Element, trace: Figure, before: Figure, x: Axis, y: Axis
) -> None:
    """A line, or the area between one and the line before it."""
    if trace.get("fill") == "tonexty":
        edge = [*_points(trace, x, y), *reversed([*_points(before, x, y)])]
        add(parent, "path", d=_path(edge) + "Z", fill=trace["fillcolor"])
        return
    line, points = trace["line"], [*_points(trace, x, y)]
    if not line["width"]:
        return
    look = {"stroke": line["color"], "stroke_width": line["width"], "opacity": trace["opacity"]}
    dash = {"stroke_dasharray": DASHES[line["dash"]]} if line["dash"] in DASHES else {}
    add(parent, "path", d=_path(points), **look, **dash)
    if "markers" in trace["mode"]:  # a round cap is the one dot that stretching leaves round
        dots = "".join(f"M{a:g} {b:g}h0" for a, b in points)
        add(parent, "path", d=dots, **look | {"stroke_width": 6}, stroke_linecap="round")


def _points(trace: Figure, x: Axis, y: Axis) -> Iterator[tuple[float, float]]:
    for step, value in zip(trace["x"], trace["y"], strict=True):
        if value > 0 or not y.log:
            yield x(step), y(value)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return f"M{'L'.join(f'{a:g} {b:g}' for a, b in points)}" if points else ""


def _ends(
    shape: dict[str, Any], x: Axis, axes: dict[str, Axis]
) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of a band or line."""
    across = shape.get("xref") == "paper"
    left, right = (0.0, ACROSS) if across else (x(shape["x0"]), x(shape["x1"]))
    ref = shape["yref"]
    y0, y1 = (
        PLOT * (1 - v) if ref == "paper" else axes[ref](v) for v in (shape["y0"], shape["y1"])
    )
    return left, right, y0, y1


def _shape(
    plot: ElementTree.Element, shape: dict[str, Any], x: Axis, axes: dict[str, Axis]
) -> None:
    """A band or a line of the figure."""
    left, right, y0, y1 = _ends(shape, x, axes)
    words = shape.get("name") or shape.get("label", {}).get("text", "")
    look = {"opacity": shape.get("opacity", 1), "title": unescape(words).strip()}
    if shape["type"] == "rect":
        width = max(right - left, 1)
        add(plot, "rect", x=left, y=y1, width=width, height=y0 - y1, fill=shape["fillcolor"],
            **look)
        return
    line = shape["line"]
    dash = {"stroke_dasharray": DASHES[line["dash"]]} if line["dash"] in DASHES else {}
    add(plot, "path", d=f"M{left:g} {y0:g}L{right:g} {y1:g}", stroke=line["color"],
        stroke_width=line["width"], **dash, **look)


def _name_of(
    root: ElementTree.Element, shape: dict[str, Any], x: Axis, axes: dict[str, Axis], top: float
) -> None:
    """The words on a band or a horizontal line. Upright ones are left to the hover."""
    words = shape.get("label") or {}
    text = unescape(words.get("text", "")).strip()
    if not text or words.get("textangle"):
        return
    left, right, y0, y1 = _ends(shape, x, axes)
    band = shape["type"] == "rect"
    at = (left + right) / 2 if band else 40.0
    y = (y0 + y1) / 2 + 3.5 if band else y0 - 3
    add(root, "text", text, x=_across(at), y=top + y, fill=words["font"]["color"],
        text_anchor="middle" if band else "start", style=SMALL_TEXT)
