"""The pictures of a report: which charts of `core.charts` it shows, and its timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import chain

import numpy as np
import pandas as pd

from ..core import palette
from ..core.charts import EVIDENCE, Chart, Line, select_charts
from ..diagnosis.assess import PhaseSpan
from ..diagnosis.evidence import SMOOTH
from ..figures.chart_figures import is_measured, make_chart, make_overlay
from ..figures.series import floats, x_axis
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
from ..figures.view import Subject, View, held_out_metric
from .blocks import Strip
from .events import Event
from .facts import PostMortem

CHARTS = select_charts(
    "delta", "reward", "likelihood", "entropy", "gradient", "displaced", "conduct", "tools", "rate"
)
STORY = 2  # charts on the first screen: the reward, and the first of the others that was measured
MOST_SOURCES = 3
UNIT_RANGE = 1.5  # a reward beyond it is not drawn on the axis of a score from 0 to 1
LANE = 16  # height of a row of the timeline
_VIEW = View(window=SMOOTH)


def of_run(facts: PostMortem) -> list[Drawing]:
    """The charts of which something was measured; the first STORY tell the story."""
    subject, scores = _with_evaluations(facts)
    alerts = [a for a in facts.alarms if facts.event(a.rule)]
    onsets = {e.rule: e.onset_step for e in facts.events if e.onset_step is not None}
    subject = replace(subject, alerts=alerts, onsets=onsets)
    axis = x_axis([subject.table], _VIEW.by)
    (reward,) = select_charts("reward")
    reward = replace(reward, lines=(*reward.lines, *scores), right_unit="score")
    if not any(line.right for line in scores):
        reward = replace(reward, right_unit=None)
    charts = [reward, *(chart for chart in CHARTS if chart.id != "reward")]
    figures = [(chart, make_chart(chart, subject, _VIEW, axis)) for chart in charts]
    return [draw(chart, figure) for chart, figure in figures if is_measured(figure)]


def _with_evaluations(facts: PostMortem) -> tuple[Subject, list[Line]]:
    """The run with a column of its held-out score for each data source, and their lines."""
    metric = held_out_metric(list(dict.fromkeys(row["metric"] for row in facts.evals)))
    table, lines = facts.subject.table, list[Line]()
    right = bool((np.abs(floats(table, "reward")) > UNIT_RANGE).any())
    rows = [r for r in facts.evals if r["metric"] == metric and r["value"] is not None]
    for source in list(dict.fromkeys(r["data_source"] for r in rows))[:MOST_SOURCES]:
        name = f"held out: {metric}, {source}" if source else f"held out: {metric}"
        values = {r["step"]: r["value"] for r in rows if r["data_source"] == source}
        column = pd.DataFrame({"step": list(values), name: list(values.values())})
        table = table.merge(column, how="outer", on="step")
        color = (palette.BLUE, palette.VERMILLION, palette.PURPLE)[len(lines)]
        lines.append(
            Line(name, escape(name), color, "dash", mean=False, right=right, markers=True)
        )
    return replace(facts.subject, table=table), lines


def overlays(subjects: Sequence[Subject], groups: Mapping[str, str]) -> list[Drawing]:
    """A chart for each axis whose first signal a run has measured, with a line for each run, or for
    each of the groups that runs are in."""
    view, names = replace(_VIEW, groups=groups), {subject.name for subject in subjects}
    order = [*select_charts("reward"), *(chart for chart in CHARTS if chart.id != "reward")]
    charts = chain.from_iterable(map(_by_axis, order))
    figures = [(chart, make_overlay(chart, [*subjects], names, view)) for chart in charts]
    return [draw(chart, figure) for chart, figure in figures if is_measured(figure)]


def _by_axis(chart: Chart) -> Iterable[Chart]:
    """The chart as one or two of a single axis each, called as its first line."""
    lines = [line for line in chart.lines if line.column != EVIDENCE]
    for right, unit in ((False, chart.unit), (True, chart.right_unit or "")):
        if mine := tuple(line for line in lines if line.right == right):
            label = "" if len(lines) == 1 or mine[0].label in chart.title else mine[0].label
            title = f"{chart.title}: {label}" if label else chart.title
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
    """From where it began to where it was seen, and on while it lasted."""
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

