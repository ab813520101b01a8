"""The charts of a run's report: signals over steps, with phases, alarms and numbers on hover."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from html import escape
from operator import sub
from statistics import median
from typing import Any

from ..core import palette
from ..core.charts import Chart, Line, select_charts
from ..core.numbers import number
from .drawing import BOTTOM, HEIGHT, TOP, Axis, grid, path, steps, svg, text, upward

STRIPS = 60  # places of a chart that say their numbers on hover

CHARTS = select_charts(
    "likelihood", "delta", "reward", "entropy", "gradient", "displaced", "conduct"
)
DASHES = {"solid": "", "dash": "6 4", "dot": "2 4"}  # of Plotly's names


def axes(chart: Chart, measured: Container[str]) -> Iterator[tuple[str, str, list[Line]]]:
    """Title, unit and lines of each axis of a chart with a measured signal, because a figure has
    one axis."""
    sides = [[line for line in chart.lines if line.right == right] for right in (False, True)]
    shown = [any(line.column in measured for line in lines) for lines in sides]
    for lines, unit, there in zip(sides, (chart.unit, chart.right_unit or ""), shown, strict=True):
        if there:
            yield f"{chart.title}: {lines[0].label}" if all(shown) else chart.title, unit, lines


def charts(facts: Mapping[str, Any]) -> list[str]:
    """A figure per axis whose signals were measured."""
    return [
        _figure(chart, title, unit, [line for line in lines if line.column in facts["signals"]],
                facts)
        for chart in CHARTS
        for title, unit, lines in axes(chart, facts["signals"])
    ]  # fmt: skip


def _figure(
    chart: Chart, title: str, unit: str, lines: Sequence[Line], facts: Mapping[str, Any]
) -> str:
    series = [facts["signals"][line.column] for line in lines]
    x = steps(facts)
    values = [v for s in series for v in (*s["value"], *s["mean"])]
    if (y := upward(values, chart.log, chart.zero)) is None:
        return ""
    parts = [*_bands(facts, x), *grid(x, y, chart.zero)]
    for line, s in zip(lines, series, strict=True):
        raw = path(s["step"], s["value"], x, y)
        parts.append(f'<path d="{raw}" stroke="{line.color}" stroke-width="1" opacity=".35"/>')
        mean = path(s["step"], s["mean"], x, y)
        parts.append(f'<path d="{mean}" stroke="{line.color}" stroke-width="2"{dash(line)}/>')
    parts += _alarms(facts, x)
    parts += _hover(lines, series, x)
    label = f"{title}{f', {unit}' if unit else ''}, over steps{', logarithmic' * chart.log}"
    said = "; ".join(
        f"{line.label}: first {number(s['first'])}, last mean {number(s['last'])}"
        for line, s in zip(lines, series, strict=True)
    )
    legend = "".join(key(line) for line in lines)
    caption = f"<b>{title}</b> <small>{unit}{', logarithmic' * chart.log}</small> {legend}"
    return f"<figure><figcaption>{caption}</figcaption>{svg(parts, f'{label}. {said}')}</figure>"


def key(line: Line) -> str:
    return (
        '<span class="key"><svg width="22" height="8" aria-hidden="true"><path d="M0 4H22" '
        f'stroke="{line.color}" stroke-width="2"{dash(line)}/></svg>{line.label}</span>'
    )


def dash(line: Line) -> str:
    return f' stroke-dasharray="{DASHES[line.dash]}"' if line.dash != "solid" else ""


def _bands(facts: Mapping[str, Any], x: Axis) -> list[str]:
    """Phases as the live classifier saw them: colour, shape on top, word on hover."""
    parts = []
    for span in facts["phases"]:
        sign = palette.PHASES[span["phase"]]
        a, b = x(span["start_step"]), min(x(span["end_step"] + 1), x.end)
        words = f"{sign.word}, steps {span['start_step']}–{span['end_step']}, as seen live"
        strength = 0.22 if span["phase"] in ("stagnation", "decay", "collapse") else 0.05
        parts.append(
            f'<rect x="{a:g}" y="{TOP}" width="{max(b - a, 1):g}" height="{HEIGHT - TOP - BOTTOM}"'
            f' fill="{sign.color}" opacity="{strength}"><title>{words}</title></rect>'
        )
        if strength > 0.1 and b - a > 12:
            parts.append(text((a + b) / 2, TOP - 8, sign.shape, "middle"))
    return parts


def _alarms(facts: Mapping[str, Any], x: Axis) -> list[str]:
    parts = []
    for alarm in facts["alarms"]:
        if alarm["step"] is None or alarm["severity"] == "info" or alarm["rule"] == "stalled":
            continue
        sign = palette.SEVERITIES[alarm["severity"]]
        words = escape(f"{alarm['rule']} fired at step {alarm['step']}")
        at = x(alarm["step"])
        parts.append(
            f'<g><title>{words}</title><path d="M{at:g} {TOP}V{HEIGHT - BOTTOM}" '
            f'stroke="{sign.color}" stroke-dasharray="4 3"/>'
            f"{text(at, HEIGHT - BOTTOM - 3, sign.shape, 'middle', sign.color)}</g>"
        )
    return parts


def _hover(lines: Sequence[Line], series: Sequence[Any], x: Axis) -> list[str]:
    """Unseen strips over the chart, each with the numbers in its middle."""

    def told(step: float, half: float) -> str:
        both = zip(lines, series, strict=True)
        return ", ".join(f"{line.label} {_told(s, step, half)}" for line, s in both)

    return strips(x, told)


def _told(s: Mapping[str, Any], step: float, half: float) -> str:
    """A signal's numbers, with the step at which they were measured."""
    at = nearest(s["step"], step, half)
    if at is None:
        return f"– at step {step:,.0f}"
    return f"{number(s['value'][at])} (mean {number(s['mean'][at])}) at step {s['step'][at]:,}"


def strips(x: Axis, told: Callable[[float, float], str]) -> list[str]:
    """Unseen strips over a chart; `told` gives the words of each, from the step in its middle and
    half its width in steps."""
    width, half = (x.end - x.start) / STRIPS, (x.high - x.low) / STRIPS / 2
    parts = []
    for i in range(STRIPS):
        words = escape(told(x.low + (2 * i + 1) * half, half))
        parts.append(
            f'<rect class="hover" x="{x.start + i * width:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{words}</title></rect>'
        )
    return parts


def nearest(steps: Sequence[int], middle: float, half: float) -> int | None:
    """The row whose step is nearest to the middle of a strip; None if it lies outside of the strip
    and further away than the rows usually do from each other."""
    row = min(range(len(steps)), key=lambda k: abs(steps[k] - middle))
    spacing = median(map(sub, steps[1:], steps)) if len(steps) > 1 else 0
    return row if abs(steps[row] - middle) <= max(half, spacing) else None
