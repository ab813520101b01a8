"""A chart as a light picture, which the first answer brings: it stands where Plotly draws later.

Pure: from the same figure that Plotly gets, with the same axes, so that nothing moves when the one
takes the place of the other. As wide as its card: across it counts in shares, and only the lines
are stretched. What is written in it comes escaped with the figure.
"""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .chart_figures import HEIGHT, Figure
from .series import thin
from .ticks import Range, Tick, auto_range, ticks

MOST = 6000  # points of all lines; more would not be told apart
_WIDE, _FINE = 1000, 4  # units of a line across, and to a pixel of height
_CARD, _TICK = 582, 80  # pixels: of a chart on a page of 1280, and what Plotly gives a label there
_DASHES = {"dot": (1, 1), "dash": (3, 3), "longdash": (5, 5), "dashdot": (3, 1, 1, 1)}
_WIDTHS = {"\u2212": 9.2, ".": 3.5, ",": 3.5}  # of a character, pixels; others 7


def make_picture(figure: Figure) -> str:
    """The figure as an SVG element, to which colours of the theme are given by classes."""
    layout, data = figure["layout"], figure["data"]
    margin = layout["margin"]
    high = HEIGHT - margin["t"] - margin["b"]
    axes = {name.replace("axis", ""): axis for name, axis in layout.items() if "axis" in name}
    scales = {short: _range(axis, short, data, high) for short, axis in axes.items()}
    box = _Box(scales, {short for short, axis in axes.items() if axis.get("type") == "log"}, high)
    parts = [
        *_frame(layout, box),
        *[box.shape(s) for s in layout["shapes"] if s.get("layer") == "below"],
        *_lines(data, box),
        *[box.shape(s) for s in layout["shapes"] if s.get("layer") != "below"],
        *[_note(a, high) for a in layout["annotations"]],
    ]
    place = (
        f"left:{margin['l']}px;width:calc(100% - {margin['l'] + margin['r']}px);"
        f"top:{margin['t']}px;height:{high}px"
    )
    return f'<svg class="picture" aria-hidden="true" style="{place}">{"".join(parts)}</svg>'


def _range(axis: dict[str, Any], short: str, data: list[Figure], high: int) -> Range:
    if "range" in axis:
        low, high = axis["range"]
        return (low, high)
    lines = [trace["y"] for trace in data if trace["yaxis"] == short]
    return auto_range(lines, high, axis.get("type") == "log", axis.get("rangemode") == "tozero")


class _Box:
    """The area between the axes: from values to shares of its width and pixels of its height."""

    def __init__(self, scales: dict[str, Range], logarithmic: set[str], high: int) -> None:
        self.scales, self.logarithmic, self.high = scales, logarithmic, high

    def across(self, value: float) -> float:
        """Percent from the left."""
        low, top = self.scales["x"]
        return round(100 * (value - low) / (top - low), 3)

    def down(self, value: float, axis: str) -> float:
        """Pixels from the top, of a value as the axis counts."""
        low, top = (0.0, 1.0) if axis == "paper" else self.scales[axis]
        return round(self.high * (top - value) / (top - low), 2)

    def place(self, value: float, axis: str) -> float:
        """Pixels from the top, of a value as it was measured."""
        return self.down(np.log10(value) if axis in self.logarithmic else value, axis)

    def shape(self, shape: Figure) -> str:
        """A band or a line of the layout with what is written at it."""
        on = shape.get("yref", "y")
        whole = shape.get("xref") == "paper"
        a, b = (100.0 * v if whole else self.across(v) for v in (shape["x0"], shape["x1"]))
        y0, y1 = self.place(shape["y0"], on), self.place(shape["y1"], on)
        dim = f' opacity="{shape["opacity"]}"' if "opacity" in shape else ""
        if shape["type"] == "rect":
            drawn = (
                f'<rect x="{a}%" width="{b - a:.3f}%" y="{y1}" height="{y0 - y1:.2f}" '
                f'fill="{shape["fillcolor"]}"{dim}/>'
            )
        else:
            drawn = f'<line x1="{a}%" x2="{b}%" y1="{y0}" y2="{y1}" {_stroke(shape["line"])}{dim}/>'
        return drawn + self._label(shape, (a, b), (y0, y1))

    def _label(self, shape: Figure, x: tuple[float, float], y: tuple[float, float]) -> str:
        label = shape.get("label", {})
        if not label.get("text"):
            return ""
        size, text = label["font"]["size"], label["text"]
        if shape["type"] == "rect":  # the name of a phase in its strip
            return (
                f'<text x="{sum(x) / 2:.3f}%" y="{sum(y) / 2 + 4:.1f}" text-anchor="middle" '
                f'font-size="{size}" style="fill:{label["font"]["color"]}">{text}</text>'
            )
        if "textangle" not in label:
            return f'<text class="name" y="{min(y) - 4:.1f}" font-size="{size}">{text}</text>'
        end = label["textposition"] == "end"
        anchor, dx, dy = ("end", -5, min(y) - 3) if end else ("start", 12, max(y) + 3)
        return (
            f'<svg x="{x[0]}%" overflow="visible"><text class="name" text-anchor="{anchor}" '
            f'transform="translate({dx} {dy}) rotate(-90)" font-size="{size}">{text}</text></svg>'
        )


def _frame(layout: Figure, box: _Box) -> list[str]:
    """Grid, zero, numbers and titles of the axes."""
    parts = []
    across = 1 + (_CARD - layout["margin"]["l"] - layout["margin"]["r"]) / _TICK
    for name in [n for n in layout if "axis" in n]:
        axis, short = layout[name], name.replace("axis", "")
        if axis.get("visible") is False:
            continue
        shown = ticks(axis, box.scales[short], across)
        bare = axis.get("showticklabels") is False
        title = escape(axis["title"]["text"])
        if short == "x":
            parts.append(f'<line class="zero" x2="100%" y1="{box.high}" y2="{box.high}"/>')
            parts += [_text(t, f'x="{box.across(t.at)}%" y="{box.high + 13.6}"', "middle")
                      for t in shown if not bare]  # fmt: skip
            parts.append(f'<text x="50%" y="{box.high + 29.8}" text-anchor="middle">{title}</text>')
            continue
        right = short == "y2"
        if right:
            parts.append(f'<line class="zero" x1="100%" x2="100%" y2="{box.high}"/>')
        for tick in shown:
            y = box.down(tick.at, short)
            if not -0.5 <= y <= box.high + 0.5:
                continue
            if axis.get("showgrid", True):
                zero = axis.get("zeroline") and tick.at == 0 and axis.get("type") != "log"
                kind = "zero" if zero else "grid"
                parts.append(f'<line class="{kind}" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
            if not bare:
                place = f'y="{y + 4.2:.1f}"'
                parts.append(
                    _text(tick, f'x="100%" dx="3.2" {place}', "start")
                    if right
                    else _text(tick, f'x="-1" {place}', "end")
                )
        wide = 0.0 if bare else max((_wide(t) for t in shown), default=0.0)
        parts.append(_upright(title, wide, right, box.high))
    return parts


def _upright(title: str, labels: float, right: bool, high: int) -> str:
    """The title beside the numbers, `labels` pixels wide."""
    at = min(labels + 16.8, 49.4) if right else -labels - 11.6
    turned = f"translate({at:.1f} {high / 2}) rotate(-90)"
    text = f'<text text-anchor="middle" transform="{turned}">{title}</text>'
    return f'<svg x="100%" overflow="visible">{text}</svg>' if right else text


def _wide(tick: Tick) -> float:
    return tick.size * sum(_WIDTHS.get(c, 7.0) for c in tick.text) + 6 * len(tick.power)


def _text(tick: Tick, place: str, anchor: str) -> str:
    size = f' font-size="{11 * tick.size:g}"' if tick.size != 1 else ""
    raised = f'<tspan dy="-5" font-size="9">{tick.power}</tspan>' if tick.power else ""
    return f'<text {place} text-anchor="{anchor}"{size}>{escape(tick.text)}{raised}</text>'


def _lines(data: list[Figure], box: _Box) -> list[str]:
    most = max(100, min(800, MOST // max(1, len(data))))
    paths, dots, below = [], [], np.empty((0, 2), dtype=np.int64)
    for trace in data:
        points = _points(trace, box, most)
        line = trace["line"]
        if trace["mode"] == "markers":
            dots += [_dot(box, trace, *at) for at in zip(trace["x"], trace["y"], strict=True)]
            continue
        dim = f' opacity="{trace["opacity"]}"' if trace["opacity"] < 1 else ""
        if trace.get("fill") == "tonexty" and len(points) and len(below):
            around = np.concatenate([points, below[::-1]])
            paths.append(f'<path d="{_path(around)}z" style="fill:{trace["fillcolor"]}"/>')
        if line["width"] and len(points):
            paths.append(f'<path d="{_path(points)}" {_stroke(line)}{dim}/>')
        below = points
    stretched = (
        f'<svg class="lines" viewBox="0 0 {_WIDE} {_FINE * box.high}" preserveAspectRatio="none" '
        f'width="100%" height="{box.high}">{"".join(paths)}</svg>'
    )
    return [stretched, *dots]


def _dot(box: _Box, trace: Figure, x: float, y: float) -> str:
    """A lone point, which Plotly draws as a marker."""
    if trace["yaxis"] in box.logarithmic and y <= 0:
        return ""
    place = f'cx="{box.across(x)}%" cy="{box.place(y, trace["yaxis"])}"'
    return f'<circle {place} r="3" fill="{trace["line"]["color"]}"/>'


def _points(trace: Figure, box: _Box, most: int) -> NDArray[np.int64]:
    """Whole units across and down of what is kept of a line; shape (points, 2)."""
    x, y = (np.array(trace[a], dtype=float) for a in "xy")
    (left, right), (low, top) = box.scales["x"], box.scales[trace["yaxis"]]
    if trace["yaxis"] in box.logarithmic:
        y = np.log10(np.where(y > 0, y, 10 ** (2 * low - top)))  # far below, as Plotly has it
    kept = thin(x, y, most=most)
    px = _WIDE * (np.array(kept.x) - left) / (right - left)
    py = _FINE * box.high * (top - np.array(kept.y)) / (top - low)
    return np.rint(np.stack([px, py], axis=1)).astype(np.int64)


def _path(points: NDArray[np.int64]) -> str:
    """Straight lines from point to point, each counted from the one before."""
    steps = np.diff(points, axis=0, prepend=0)
    return f"m{steps[0][0]} {steps[0][1]}l" + " ".join(map(str, steps[1:].ravel()))


def _stroke(line: dict[str, Any]) -> str:
    wide = max(line["width"], 3)
    dashes = ",".join(f"{wide * n:g}" for n in _DASHES.get(line.get("dash", "solid"), ()))
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'stroke="{line["color"]}" stroke-width="{line["width"]:g}"{dashed}'


def _note(note: Figure, high: int) -> str:
    size = note["font"]["size"]
    return (
        f'<text x="50%" y="{high / 2 + 4:g}" text-anchor="middle" font-size="{size}">'
        f"{escape(note['text'])}</text>"
    )
