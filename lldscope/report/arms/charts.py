"""The charts of two arms: of each chart the first signal, a line for each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ...core import palette
from ...core.charts import Chart, Line
from ...core.numbers import number
from ..charts import CHARTS, axes, dash, key, nearest, strips
from ..drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, grid, path, svg, text, upward
from ..timeline import extent

COLORS, DASHES = palette.RUN_COLORS[:2], ("solid", "dash")
Facts = Mapping[str, Any]


def charts(facts: Facts) -> list[str]:
    """A figure per axis whose first signal an arm has measured."""
    measured = {name for arm in facts["arms"] for name in arm["signals"]}
    return [
        _figure(chart, title, unit, lines, facts)
        for chart in CHARTS
        for title, unit, lines in axes(chart, measured)
        if lines[0].column in measured
    ]


def _figure(chart: Chart, title: str, unit: str, lines: Sequence[Line], facts: Facts) -> str:
    name = lines[0].column
    sides = [(i, arm, s) for i, arm in enumerate(facts["arms"]) if (s := arm["signals"].get(name))]
    x = Axis(*extent(facts), LEFT, WIDTH - RIGHT)
    values = [v for _, _, s in sides for k in _curves(s) for v in s[k]]
    if (y := upward(values, chart.log, chart.zero)) is None:
        return ""
    parts = grid(x, y, chart.zero)
    parts += [_behind(s, COLORS[i], x, y) for i, _, s in sides]
    for i, arm, s in sides:
        mean = path(s["step"], s["mean"], x, y)
        drawn_as = dash(_line(arm, i, name))
        parts.append(f'<path d="{mean}" stroke="{COLORS[i]}" stroke-width="2"{drawn_as}/>')
        parts += [*_phases(arm, i, x), *_alarms(arm, COLORS[i], x)]
    parts += _hover(sides, x)
    said = "; ".join(f"{arm['letter']}: last mean {number(s['last'])}" for _, arm, s in sides)
    title = title if len(lines) == 1 else f"{title}: {lines[0].label}"
    keys = "".join(key(_line(arm, i, name)) for i, arm, _ in sides)
    caption = f"<b>{title}</b> <small>{unit}{', logarithmic' * chart.log}</small> {keys}"
    label = f"{title}{f', {unit}' if unit else ''}, over steps{', logarithmic' * chart.log}. {said}"
    return f"<figure><figcaption>{caption}</figcaption>{svg(parts, label)}</figure>"


def _line(arm: Facts, i: int, signal: str) -> Line:
    return Line(signal, arm["letter"], COLORS[i], DASHES[i])


def _curves(s: Facts) -> tuple[str, ...]:
    """What is drawn of a signal: values and mean of a run, or mean and band of several."""
    return ("mean", "low", "high") if "low" in s else ("value", "mean")


def _behind(s: Facts, color: str, x: Axis, y: Axis) -> str:
    """The band of several runs, or the raw values of one."""
    if "low" not in s:
        raw = path(s["step"], s["value"], x, y)
        return f'<path d="{raw}" stroke="{color}" stroke-width="1" opacity=".3"/>'
    rows = [r for r in zip(s["step"], s["low"], s["high"], strict=True) if r[1] > 0 or not y.log]
    if not rows:
        return ""
    over = [f"{x(step):g} {y(high):g}" for step, _, high in rows]
    under = [f"{x(step):g} {y(low):g}" for step, low, _ in reversed(rows)]
    return f'<path d="M{"L".join(over + under)}Z" fill="{color}" opacity=".2"/>'


def _phases(arm: Facts, i: int, x: Axis) -> list[str]:
    """Above the chart: a strip with the phases of an arm that is a single run."""
    if len(arm["runs"]) > 1:
        return []
    top = 1 + 11 * i
    parts = [text(x.start - 6, top + 10, arm["letter"], "end")]
    for span in arm["runs"][0]["phases"]:
        sign = palette.PHASES[span["phase"]]
        a, b = x(span["start_step"]), min(x(span["end_step"] + 1), x.end)
        words = f"{arm['letter']}: {sign.word}, steps {span['start_step']}–{span['end_step']}"
        parts.append(
            f'<rect x="{a:g}" y="{top}" width="{max(b - a, 1):g}" height="10" '
            f'fill="{sign.color}"><title>{words}</title></rect>'
        )
        if b - a > 14:
            parts.append(
                f'<text x="{(a + b) / 2:g}" y="{top + 8}" fill="{sign.ink}" text-anchor="middle" '
                f'style="font-size:9px">{sign.shape}</text>'
            )
    return parts


def _alarms(arm: Facts, color: str, x: Axis) -> list[str]:
    """Where the decay alarm of each run first fired."""
    strength = 0.8 if len(arm["runs"]) == 1 else 0.35
    parts = []
    for run in arm["runs"]:
        for alarm in run["alarms"]:
            if alarm["rule"] == "lld-decay" and alarm["step"] is not None:
                words = escape(f"{arm['letter']}: lld-decay fired at step {alarm['step']}")
                parts.append(
                    f'<path d="M{x(alarm["step"]):g} {TOP}V{HEIGHT - BOTTOM}" stroke="{color}" '
                    f'stroke-dasharray="2 3" opacity="{strength}"><title>{words}</title></path>'
                )
    return parts


def _hover(sides: Sequence[tuple[int, Facts, Facts]], x: Axis) -> list[str]:
    """Unseen strips over the chart, each with the numbers in its middle."""
    return strips(x, lambda step, half: "; ".join(_told(arm, s, step, half) for _, arm, s in sides))


def _told(arm: Facts, s: Facts, step: float, half: float) -> str:
    """An arm's numbers at a step; where it has measured nothing it has none."""
    at = nearest(s["step"], step, half)
    if at is None:
        return f"{arm['letter']} – at step {step:,.0f}"
    mean, where = number(s["mean"][at]), f"at step {s['step'][at]:,}"
    if "low" not in s:
        return f"{arm['letter']} {number(s['value'][at])} (mean {mean}) {where}"
    spread = f"{number(s['low'][at])} to {number(s['high'][at])}"
    return f"{arm['letter']} {mean} ({s['runs'][at]} runs, {spread}) {where}"
