"""The pictures of the report as inline SVG: the phase timeline, and signals over steps.

Every mark has a `<title>`, which browsers show on hover and screen readers read. Colours of ground
and ink are the page's CSS variables, the others those of `palette`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .. import palette
from .text import visible
from .words import number

WIDTH, HEIGHT = 580, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 24, 24
STRIPS = 60  # places of a chart that say their numbers on hover


@dataclass(frozen=True)
class Line:
    signal: str
    label: str
    color: str
    dash: str = ""


@dataclass(frozen=True)
class Chart:
    title: str
    lines: tuple[Line, ...]
    log: bool = False
    zero: bool = False


CHARTS = (
    Chart("Likelihood of responses", (
        Line("correct_logp", "correct", palette.BLUE),
        Line("incorrect_logp", "wrong", palette.VERMILLION, "6 4"))),
    Chart("Δ of correct responses", (Line("delta_correct", "Δ", palette.BLUE),), zero=True),
    Chart("Reward", (Line("reward", "reward", palette.GREEN),)),
    Chart("Entropy", (Line("entropy", "entropy", palette.AMBER),)),
    Chart("Gradient norm, logarithmic", (
        Line("grad_norm", "median", palette.BLUE),
        Line("grad_norm_max", "largest", palette.PURPLE, "2 4")), log=True),
    Chart("Groups and first actions", (
        Line("displaced_share", "groups that lost likelihood", palette.VERMILLION),
        Line("good_first_action_share", "good first action, wrong rollout", palette.BLUE, "6 4"))),
    Chart("Length", (Line("response_tokens", "tokens", palette.BLUE),)),
    Chart("Searches", (Line("valid_searches", "valid searches", palette.GREEN),)),
)  # fmt: skip


class Axis:
    """Values onto a stretch of pixels."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = False):
        if high <= low:
            low, high = low - 0.5, high + 0.5
        self.low, self.high, self.start, self.end, self.log = low, high, start, end, log

    def __call__(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int) -> list[float]:
        step = 10 ** math.floor(math.log10((self.high - self.low) / count))
        step *= next(m for m in (1, 2, 5, 10) if (self.high - self.low) / (m * step) <= count)
        step = max(1, step) if self.log else step
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [round(i * step, 10) for i in range(first, last + 1)]


def charts(facts: Mapping[str, Any]) -> list[str]:
    """A figure per chart whose signals were measured."""
    return [
        _figure(chart, lines, facts)
        for chart in CHARTS
        if (lines := [line for line in chart.lines if line.signal in facts["signals"]])
    ]


def _figure(chart: Chart, lines: Sequence[Line], facts: Mapping[str, Any]) -> str:
    series = [facts["signals"][line.signal] for line in lines]
    x = _steps(facts)
    values = [v for s in series for v in (*s["value"], *s["mean"]) if v > 0 or not chart.log]
    values = [math.log10(v) for v in values] if chart.log else values
    values += [0.0] if chart.zero else []
    if not values:
        return ""
    room = (max(values) - min(values)) * 0.05
    y = Axis(min(values) - room, max(values) + room, HEIGHT - BOTTOM, TOP, chart.log)
    parts = [*_bands(facts, x), *_grid(x, y, chart)]
    for line, s in zip(lines, series, strict=True):
        raw = _path(s["step"], s["value"], x, y)
        parts.append(f'<path d="{raw}" stroke="{line.color}" stroke-width="1" opacity=".35"/>')
        mean = _path(s["step"], s["mean"], x, y)
        parts.append(f'<path d="{mean}" stroke="{line.color}" stroke-width="2"{_dash(line)}/>')
    parts += _alarms(facts, x)
    parts += _hover(lines, series, x)
    unit = series[0]["unit"]
    label = f"{chart.title}{f', {unit}' if unit else ''}, over steps"
    said = "; ".join(
        f"{line.label}: first {number(s['first'])}, last mean {number(s['last'])}"
        for line, s in zip(lines, series, strict=True)
    )
    legend = "".join(_key(line) for line in lines)
    caption = f"<b>{chart.title}</b> <small>{unit}</small> {legend}"
    return f"<figure><figcaption>{caption}</figcaption>{_svg(parts, f'{label}. {said}')}</figure>"


def _key(line: Line) -> str:
    return (
        '<span class="key"><svg width="22" height="8" aria-hidden="true"><path d="M0 4H22" '
        f'stroke="{line.color}" stroke-width="2"{_dash(line)}/></svg>{line.label}</span>'
    )


def _dash(line: Line) -> str:
    return f' stroke-dasharray="{line.dash}"' if line.dash else ""


def _svg(parts: Sequence[str], label: str, height: int = HEIGHT, width: int = WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" fill="none">'
        f"{''.join(parts)}</svg>"
    )


def _steps(facts: Mapping[str, Any], start: float = LEFT, end: float = WIDTH - RIGHT) -> Axis:
    return Axis(facts["run"]["first_step"], facts["run"]["last_step"], start, end)


def _path(steps: Sequence[int], values: Sequence[float], x: Axis, y: Axis) -> str:
    points = [(x(s), y(v)) for s, v in zip(steps, values, strict=True) if v > 0 or not y.log]
    if len(points) == 1:  # a lone point is a short stroke
        return f"M{points[0][0] - 2:g} {points[0][1]:g}h4"
    return "M" + "L".join(f"{a:g} {b:g}" for a, b in points) if points else ""


def _text(x: float, y: float, text: str, anchor: str = "start", color: str = "var(--ink-2)") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{color}" text-anchor="{anchor}">{escape(text)}</text>'


def _grid(x: Axis, y: Axis, chart: Chart) -> list[str]:
    parts = []
    for tick in y.ticks(4):
        at = y(10**tick if y.log else tick)
        strong = "var(--zero)" if chart.zero and tick == 0 else "var(--grid)"
        parts.append(f'<path d="M{LEFT} {at:g}H{WIDTH - RIGHT}" stroke="{strong}"/>')
        parts.append(_text(LEFT - 6, at + 4, number(10**tick if y.log else tick, 4), "end"))
    for tick in x.ticks(8):
        if tick == int(tick):
            parts.append(_text(x(tick), HEIGHT - 8, f"{tick:,.0f}", "middle"))
    return parts


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
            parts.append(_text((a + b) / 2, TOP - 8, sign.shape, "middle"))
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
            f"{_text(at, HEIGHT - BOTTOM - 3, sign.shape, 'middle', sign.color)}</g>"
        )
    return parts


def _hover(lines: Sequence[Line], series: Sequence[Any], x: Axis) -> list[str]:
    """Unseen strips over the chart, each with the numbers in its middle."""
    width = (x.end - x.start) / STRIPS
    parts = []
    for i in range(STRIPS):
        step = x.low + (i + 0.5) / STRIPS * (x.high - x.low)
        said = []
        for line, s in zip(lines, series, strict=True):
            at = min(range(len(s["step"])), key=lambda k: abs(s["step"][k] - step))
            said.append(f"{line.label} {number(s['value'][at])} (mean {number(s['mean'][at])})")
        title = escape(f"step {step:,.0f}: {', '.join(said)}")
        parts.append(
            f'<rect class="hover" x="{x.start + i * width:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{title}</title></rect>'
        )
    return parts


def timeline(facts: Mapping[str, Any]) -> str:
    """Three lanes: phases as seen live, their beginnings with hindsight, and the alarms."""
    width, left, row = 1180, 90, 34
    x = _steps(facts, left, width - 16)
    parts = [_text(0, row * i + 26, word) for i, word in enumerate(("live", "hindsight", "alarms"))]
    for span in facts["phases"]:
        sign = palette.PHASES[span["phase"]]
        a, b = x(span["start_step"]), min(x(span["end_step"] + 1), x.end)
        words = f"{sign.word}, steps {span['start_step']}–{span['end_step']}"
        parts.append(f'<rect x="{a:g}" y="8" width="{max(b - a, 1.5):g}" height="26" rx="2" '
                     f'fill="{sign.color}"><title>{words}</title></rect>')  # fmt: skip
        fits = next(
            (w for w in (f"{sign.shape} {sign.word}", sign.shape) if b - a > 9 * len(w)), ""
        )
        parts.append(_text((a + b) / 2, 26, fits, "middle", sign.ink))
    for mark in facts["boundaries"]:
        sign = palette.PHASES[mark["phase"]]
        words = f"{sign.word} from step {mark['step']}, 95 %: {mark['low']}–{mark['high']}"
        place = f"{sign.shape} {mark['step']}"
        a, at, b, y = x(mark["low"]), x(mark["step"]), x(mark["high"]), row + 21
        parts.append(
            f"<g><title>{words}</title>"
            f'<path d="M{a:g} {y}H{b:g}M{a:g} {y - 6}v12M{b:g} {y - 6}v12" stroke="{sign.color}" '
            f'stroke-width="2"/><path d="M{at:g} {y - 7}l6 7l-6 7l-6 -7z" fill="{sign.color}"/>'
            f"{_text(b + 9, y + 4, place)}</g>"
        )
    lanes: list[float] = []
    for alarm in sorted((a for a in facts["alarms"] if a["step"] is not None), key=_at):
        sign = palette.SEVERITIES[alarm["severity"]]
        words = f"{sign.shape} {visible(alarm['rule'])} {alarm['step']}"
        at, long = x(alarm["step"]), 7.6 * len(words)
        turned = at + long > x.end
        begin = at - long if turned else at
        lane = next((i for i, end in enumerate(lanes) if end < begin), len(lanes))
        lanes[lane : lane + 1] = [begin + long + 8]
        y = 2 * row + 26 + 20 * lane
        parts.append(_text(at, y, words, "end" if turned else "start", "var(--ink)"))
    bottom = 2 * row + 30 + 20 * max(len(lanes), 1)
    for tick in x.ticks(12):
        if tick == int(tick):
            parts.append(_text(x(tick), bottom + 14, f"{tick:,.0f}", "middle"))
    spans = ", ".join(f"{s['phase']} {s['start_step']}–{s['end_step']}" for s in facts["phases"])
    return _svg(parts, f"Timeline over steps. Live phases: {spans}", bottom + 20, width)


def _at(alarm: Mapping[str, Any]) -> int:
    return int(alarm["step"])
