"""Signals over steps as inline SVG: of one run with its phases and alarms, or of two arms."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from operator import sub
from statistics import median

from ..core import palette
from ..core.charts import Chart, Line, select_charts
from ..core.numbers import number
from .arms.facts import Arm, Comparison
from .drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, grid, label, path, svg, upward
from .facts import PostMortem
from .series import AveragedSeries, Series
from .timeline import extent, phase_bar

STRIPS = 60  # places of a chart that show their numbers on hover
CHARTS = select_charts(
    "likelihood", "delta", "reward", "entropy", "gradient", "displaced", "conduct", "tools", "rate"
)
DASHES = {"solid": "", "dash": "6 4", "dot": "2 4"}  # Plotly's names in SVG
HELD_OUT = Chart("evals", "Held-out evaluation", "", "", ())
GLANCE = ("likelihood", "delta", "reward", HELD_OUT.id)  # those that tell the story
MOST_SOURCES = 6
ARMS = ((palette.RUN_COLORS[0], "solid"), (palette.RUN_COLORS[1], "dash"))


@dataclass(frozen=True)
class Curve:
    """A signal to draw, the name it has in the legend, and its style."""

    name: str
    color: str
    dash: str
    data: Series | AveragedSeries

    @property
    def stroke(self) -> str:
        dashes = f' stroke-dasharray="{DASHES[self.dash]}"' if DASHES[self.dash] else ""
        return f'stroke="{self.color}" stroke-width="2"{dashes}'


def of_run(facts: PostMortem, ids: Collection[str]) -> str:
    """A figure per axis whose signals were measured, of the charts with these ids."""
    evals = _evaluated(facts) if HELD_OUT.id in ids else []
    ends = [c.data.step[-1] for c in evals]
    x = Axis(
        facts.run.first_step or 0, max(facts.run.last_step or 0, *ends, 0), LEFT, WIDTH - RIGHT
    )
    bands, marks = _bands(facts, x), _alarms(facts, x)
    figures = []
    for chart in (c for c in CHARTS if c.id in ids):
        for title, unit, lines in axes(chart, facts.signals):
            curves = [
                Curve(line.label, line.color, line.dash, facts.signals[line.column])
                for line in lines if line.column in facts.signals
            ]  # fmt: skip
            figures.append(_figure(chart, title, unit, curves, x, bands, marks))
    if evals:
        figures.append(_figure(HELD_OUT, HELD_OUT.title, HELD_OUT.unit, evals, x, bands, marks))
    return "".join(figures)


def _evaluated(facts: PostMortem) -> list[Curve]:
    """Held-out exact match, by data source; of `em_greedy`, as this trainer calls it, or of the
    first metric that sounds like it, or else of the first."""
    metrics = list(dict.fromkeys(row["metric"] for row in facts.evals))
    choices = [m for m in metrics if re.search("(^|_)(em|exact|acc)", m)] or metrics
    choices.sort(key=lambda metric: metric != "em_greedy")
    curves: list[Curve] = []
    for metric, source in dict.fromkeys((r["metric"], r["data_source"]) for r in facts.evals):
        if choices and metric == choices[0] and len(curves) < MOST_SOURCES:
            rows = {r["step"]: r["value"] for r in facts.evals
                    if (r["metric"], r["data_source"]) == (metric, source)
                    and r["value"] is not None}  # fmt: skip
            if rows:
                steps, values = list(rows), list(rows.values())
                data = Series("", metric, len(rows), values[0], values[-1], steps, values, values)
                color = palette.RUN_COLORS[len(curves)]
                dash = ("solid", "dash", "dot")[len(curves) % 3]
                curves.append(Curve(f"{metric}, {source}" if source else metric, color, dash, data))
    return curves


def of_arms(facts: Comparison) -> str:
    """A figure per axis whose first signal an arm has measured, with a line for each arm."""
    x = Axis(*extent(facts), LEFT, WIDTH - RIGHT)
    marks = [mark for i, arm in enumerate(facts.arms) for mark in _of_arm(arm, i, x)]
    figures = []
    for chart in CHARTS:
        for title, unit, lines in axes(chart, {name for arm in facts.arms for name in arm.signals}):
            curves = [
                Curve(arm.letter, *style, arm.signals[lines[0].column])
                for arm, style in zip(facts.arms, ARMS, strict=True)
                if lines[0].column in arm.signals
            ]
            title = title if len(lines) == 1 else f"{title}: {lines[0].label}"
            figures.append(_figure(chart, title, unit, curves, x, [], marks))
    return "".join(figures)


def axes(chart: Chart, columns: Collection[str]) -> Iterator[tuple[str, str, list[Line]]]:
    """Title, unit and lines of each axis of a chart with a measured signal: a figure has one axis,
    so a chart with two becomes two figures."""
    sides = [[line for line in chart.lines if line.right == right] for right in (False, True)]
    flags = [any(line.column in columns for line in lines) for lines in sides]
    for lines, unit, there in zip(sides, (chart.unit, chart.right_unit or ""), flags, strict=True):
        if there:
            yield f"{chart.title}: {lines[0].label}" if all(flags) else chart.title, unit, lines


def _figure(
    chart: Chart, title: str, unit: str, curves: Sequence[Curve], x: Axis, behind: Sequence[str],
    marks: Sequence[str],
) -> str:  # fmt: skip
    fitted = curves[:1] if chart.fit else curves
    values = [v for c in fitted for of in _axis_values(c.data) for v in of]
    if chart.nonnegative and not any(values):
        values = [0.0, 1.0]  # around 0 there would be values that cannot be
    if (y := upward(values, chart.log, chart.zero)) is None:
        return ""
    lines = [_spread(c, x, y) for c in curves]
    lines += [f'<path d="{path(c.data.step, c.data.mean, x, y)}" {c.stroke}/>' for c in curves]
    parts = [*behind, *grid(x, y, chart.zero), *(_inside(lines, x) if chart.fit else lines)]
    parts += [*marks, *_hover(curves, x)]
    unit = ", ".join(filter(None, (unit, "logarithmic" if chart.log else "")))
    ends = "; ".join(f"{c.name}: last mean {number(c.data.last)}" for c in curves)
    image = svg(parts, f"{title}{f', {unit}' if unit else ''}, over steps. {ends}")
    keys = "".join(
        '<span class="key"><svg width="22" height="8" aria-hidden="true">'
        f'<path d="M0 4H22" {c.stroke}/></svg>{escape(c.name)}</span>'
        for c in curves
    )
    caption = f"<b>{title}</b> <small>{unit}</small> {keys}"
    return f"<figure><figcaption>{caption}</figcaption>{image}</figure>"


def _inside(parts: Sequence[str], x: Axis) -> list[str]:
    """The parts, cut at the edges of the plot."""
    width, height = f"{x.end - x.start:g}", HEIGHT - TOP - BOTTOM
    size = f'x="{x.start:g}" y="{TOP}" width="{width}" height="{height}"'
    box = f'viewBox="{x.start:g} {TOP} {width} {height}"'
    return [f"<svg {size} {box}>{''.join(parts)}</svg>"]


def _axis_values(data: Series | AveragedSeries) -> tuple[list[float], ...]:
    """Everything that has to fit onto the axis."""
    if isinstance(data, Series):
        return data.value, data.mean
    return data.mean, data.low, data.high


def _spread(curve: Curve, x: Axis, y: Axis) -> str:
    """The raw values of one run, or the band of several, behind the mean."""
    data = curve.data
    if isinstance(data, Series):
        raw = path(data.step, data.value, x, y)
        return f'<path d="{raw}" stroke="{curve.color}" stroke-width="1" opacity=".35"/>'
    rows = [r for r in zip(data.step, data.low, data.high, strict=True) if r[1] > 0 or not y.log]
    if not rows:
        return ""
    over = [f"{x(step):g} {y(high):g}" for step, _, high in rows]
    under = [f"{x(step):g} {y(low):g}" for step, low, _ in reversed(rows)]
    return f'<path d="M{"L".join(over + under)}Z" fill="{curve.color}" opacity=".2"/>'


# -- phases and alarms ----------------------------------------------------------------------------


def _bands(facts: PostMortem, x: Axis) -> list[str]:
    """Phases as the live classifier saw them: colour, shape on top, word on hover."""
    parts = []
    for span in facts.phases:
        sign = palette.PHASES[span.phase]
        a, b = x(span.start_step), min(x(span.end_step + 1), x.end)
        strength = 0.22 if span.phase in ("stagnation", "decay", "collapse") else 0.05
        parts.append(
            f'<rect x="{a:g}" y="{TOP}" width="{max(b - a, 1):g}" height="{HEIGHT - TOP - BOTTOM}"'
            f' fill="{sign.color}" opacity="{strength}">'
            f"<title>{sign.word}, steps {span.start_step}–{span.end_step}, as seen live</title>"
            "</rect>"
        )
        if strength > 0.1 and b - a > 12:
            parts.append(label((a + b) / 2, TOP - 8, sign.shape, "middle"))
    return parts


def _alarms(facts: PostMortem, x: Axis) -> list[str]:
    parts = []
    for alarm in facts.alarms:
        if alarm.step is None or alarm.severity == "info" or alarm.rule == "stalled":
            continue
        sign = palette.SEVERITIES[alarm.severity]
        at = x(alarm.step)
        line = _vertical(at, f"{alarm.rule} fired at step {alarm.step}", sign.color, "4 3")
        shape = label(at, HEIGHT - BOTTOM - 3, sign.shape, "middle", sign.color)
        parts.append(f"<g>{line}{shape}</g>")
    return parts


def _of_arm(arm: Arm, i: int, x: Axis) -> Iterator[str]:
    """The phases of an arm that is a single run, above the chart; and the decay alarms."""
    color, _ = ARMS[i]
    if len(arm.runs) == 1:
        yield label(x.start - 6, 11 * (i + 1), arm.letter, "end")
        yield from phase_bar(arm.runs[0], x, 1 + 11 * i, 10)
    for run in arm.runs:
        if (step := run.alarm_step("lld-decay")) is not None:
            title = f"{arm.letter}: lld-decay fired at step {step}"
            yield _vertical(x(step), title, color, "2 3", 0.8 if len(arm.runs) == 1 else 0.35)


def _vertical(at: float, title: str, color: str, dashes: str, opacity: float = 1) -> str:
    return (
        f'<path d="M{at:g} {TOP}V{HEIGHT - BOTTOM}" stroke="{color}" stroke-dasharray="{dashes}" '
        f'opacity="{opacity:g}"><title>{escape(title)}</title></path>'
    )


# -- numbers on hover -----------------------------------------------------------------------------


def _hover(curves: Sequence[Curve], x: Axis) -> list[str]:
    """Invisible strips over the chart, each with the numbers measured in its middle."""
    width, half = (x.end - x.start) / STRIPS, (x.high - x.low) / STRIPS / 2
    parts = []
    for i in range(STRIPS):
        middle = x.low + (2 * i + 1) * half
        title = escape("; ".join(f"{c.name} {_numbers(c.data, middle, half)}" for c in curves))
        parts.append(
            f'<rect class="hover" x="{x.start + i * width:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{title}</title></rect>'
        )
    return parts


def _numbers(data: Series | AveragedSeries, middle: float, half: float) -> str:
    """The numbers nearest to a step, with the step at which they were measured."""
    at = nearest(data.step, middle, half)
    if at is None:
        return f"– at step {middle:,.0f}"
    mean = number(data.mean[at])
    if isinstance(data, Series):
        numbers = f"{number(data.value[at])} (mean {mean})"
    else:
        spread = f"{number(data.low[at])} to {number(data.high[at])}"
        numbers = f"{mean} ({data.runs[at]} runs, {spread})"
    return f"{numbers} at step {data.step[at]:,}"


def nearest(steps: Sequence[int], middle: float, half: float) -> int | None:
    """The row whose step is nearest to the middle of a strip; None if it lies outside of the strip
    and further away than the usual distance between rows."""
    row = min(range(len(steps)), key=lambda k: abs(steps[k] - middle))
    spacing = median(map(sub, steps[1:], steps)) if len(steps) > 1 else 0
    return row if abs(steps[row] - middle) <= max(half, spacing) else None
