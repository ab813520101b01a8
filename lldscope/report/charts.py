"""The pictures of a report: which charts of `core.charts` it shows, and its timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from ..core import palette
from ..core.charts import EVIDENCE, Chart, select_charts
from ..diagnosis.account import Event
from ..diagnosis.evidence import SMOOTH
from ..diagnosis.phases import PhaseSpan
from ..figures.chart_figures import is_measured, make_chart, make_overlay
from ..figures.series import x_axis
from ..figures.svg import (
    ACROSS,
    Axis,
    Drawing,
    across,
    add,
    add_steps,
    canvas,
    draw,
    to_text,
)
from ..figures.view import Subject, View
from .blocks import Strip
from .facts import PostMortem

CHARTS = select_charts(
    "reward", "delta", "likelihood", "entropy", "gradient", "by-action", "displaced", "conduct",
    "tools", "rate"
)
STORY = 2  # charts on the first screen: the reward, and the first of the others that was measured
LANE = 16  # height of a row of the timeline
_VIEW = View(window=SMOOTH)


def of_run(facts: PostMortem) -> list[Drawing]:
    """The charts with a measured signal; the first STORY of them tell the story."""
    alerts = [a for a in facts.alarms if facts.event(a.rule)]
    subject = replace(facts.subject, alerts=alerts)
    axis = x_axis([subject.table], _VIEW.by)
    figures = [(chart, make_chart(chart, subject, _VIEW, axis)) for chart in CHARTS]
    return [draw(chart, figure) for chart, figure in figures if is_measured(figure)]


def overlays(subjects: Sequence[Subject], groups: Mapping[str, str]) -> list[Drawing]:
    """A chart for each axis whose first signal a run has measured, with a line for each run or each
    group of runs."""
    view, names = replace(_VIEW, groups=groups), {subject.name for subject in subjects}
    charts = chain.from_iterable(map(_by_axis, CHARTS))
    figures = [(chart, make_overlay(chart, [*subjects], names, view)) for chart in charts]
    return [draw(chart, figure) for chart, figure in figures if is_measured(figure)]


def _by_axis(chart: Chart) -> Iterable[Chart]:
    """The chart as one or two charts of a single axis, each named after its first line."""
    lines = [line for line in chart.lines if line.column != EVIDENCE]
    for right, unit in ((False, chart.unit), (True, chart.right_unit or "")):
        if mine := tuple(line for line in lines if line.right == right):
            label, title = mine[0].label, chart.title
            if len(lines) > 1 and label.lower() not in title.lower():
                title = f"{title}: {label}"
            yield replace(chart, title=title, unit=unit, right_unit=None, lines=mine)


# -- the timeline ---------------------------------------------------------------------------------


def steps_axis(steps: Iterable[int | None]) -> Axis:
    """An axis from the least to the greatest of some steps."""
    ends = [int(step) for step in steps if step is not None]
    return Axis(min(ends, default=0), max(ends, default=0), 0.0, ACROSS)


def phase_strip(phases: Iterable[PhaseSpan], x: Axis) -> Strip:
    """The phases as they were seen live, where there are any."""
    names = [(palette.PHASES[s.phase], s) for s in phases if s.phase is not None]
    words = ", ".join(f"{sign.word} {s.start_step}–{s.end_step}" for sign, s in names)
    root = canvas(LANE, words)
    for sign, span in names:
        a, b = x(span.start_step), min(x(span.end_step + 1), ACROSS)
        title = f"{sign.word}, steps {span.start_step}–{span.end_step}"
        add(root, "rect", x=across(a), width=across(max(b - a, 2)), height=LANE, fill=sign.color,
            title=title)
        share = (b - a) / ACROSS
        if share > 0.012 * len(sign.word):
            add(root, "text", sign.word, x=across((a + b) / 2), y=LANE - 4, text_anchor="middle",
                fill=sign.ink, style="font-size:11px",
                class_="wide" if share < 0.02 * len(sign.word) else "")
    return Strip(to_text(root), words)


def event_strip(event: Event, x: Axis) -> Strip:
    """The strip of an event: from its beginning to the step that showed it, and on while it
    lasted."""
    color = palette.SEVERITIES[event.severity].color
    root, middle = canvas(LANE, ""), LANE / 2
    end = ACROSS if event.end_step is None else x(event.end_step)
    a, alarm = x(event.start), x(event.alarm_step)
    add(root, "rect", x=across(alarm), width=across(max(end - alarm, 2)), y=middle - 2, height=4,
        fill=color, opacity=0.35)
    add(root, "rect", x=across(a), width=across(max(alarm - a, 2)), y=middle - 2, height=4,
        fill=color)
    if event.low is not None and event.high is not None:
        low, high = x(event.low), x(event.high)
        add(root, "rect", x=across(low), width=across(max(high - low, 2)), y=middle + 4, height=1.5,
            fill=color, title=f"began at {event.low}–{event.high}, 95 %")
    if event.onset_step is not None:
        add(root, "circle", cx=across(a), cy=middle, r=4, stroke=color, stroke_width=2,
            fill="var(--card)", title=f"began at step {event.onset_step}")
    add(root, "circle", cx=across(alarm), cy=middle, r=4, fill=color,
        title=f"seen at step {event.alarm_step}")
    return Strip(to_text(root), "")


def step_strip(x: Axis) -> Strip:
    """The steps below the timeline."""
    root = canvas(LANE, "")
    add_steps(root, x, LANE - 4)
    return Strip(to_text(root), "")

