"""The comparison of two arms as a document: how they differ first, and the evidence folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core import palette
from ..core.numbers import number
from ..figures.svg import Axis, Drawing
from ..monitor.alerts import AnyAlert
from . import charts
from .arms import COLLAPSE, DECAY, Arm, Comparison, firing_text
from .blocks import Block, Cell, Charts, Document, Items, Paragraph, Section, Table
from .document import timeline
from .facts import PostMortem
from .sentences import date

MOST_SETTINGS = 60
STORY = 4  # charts on the first screen


def document(facts: Comparison) -> Document:
    """The comparison of two arms."""
    a, b = facts.arms
    about = [
        (run.state.sign, f"{arm.title}: {run.run.place}")
        for arm in facts.arms if len(arm.runs) == 1
        for run in arm.runs
    ]
    drawings = charts.of_arms([(arm.letter, arm.runs) for arm in facts.arms])
    sections = [
        Section("", [*_story(facts, drawings)]),
        Section("More charts", [Charts(drawings[STORY:])] if drawings[STORY:] else []),
        Section("Alarms", [*_alarms(facts)]),
        Section("Settings that differ", [*_settings(facts)]),
        Section("What this comparison cannot tell", [Items(facts.limits)]),
    ]
    ids = [f"{arm.letter}: {', '.join(str(run.run.id) for run in arm.runs)}" for arm in facts.arms]
    footer = " · ".join([f"lldscope {facts.lldscope}, made {date(facts.made)}", *ids])
    return Document(
        f"{a.name} and {b.name} compared", about, [s for s in sections if s.blocks], footer
    )


def _story(facts: Comparison, drawings: Sequence[Drawing]) -> Iterator[Block]:
    yield Items(facts.summary)
    x = charts.steps_axis([run for arm in facts.arms for run in arm.runs])
    for arm in facts.arms:
        if any(run.run.n_steps for run in arm.runs):
            single = len(arm.runs) == 1
            yield timeline(arm.runs[0], x, arm.title) if single else _runs(arm, x)
    if drawings:
        yield Charts(drawings[:STORY])
        yield Paragraph(_legend(facts))


def _runs(arm: Arm, x: Axis) -> Table:
    """The runs of an arm, a row each."""
    rows = [_run(run, x) for run in arm.runs]
    head = ["run", "verdict", "fall from", "decay alarm", "collapse", "best reward", "last reward",
            "phases"]
    return Table(f"{arm.title}, {len(rows)} runs", head, rows, frozenset(range(2, 7)))


def _run(run: PostMortem, x: Axis) -> list[Cell]:
    reward = run.signals.get("reward")
    events = [run.event(rule) for rule in (DECAY, COLLAPSE)]
    steps = [run.fall, *(None if event is None else event.alarm_step for event in events)]
    return [
        run.run.name, run.state.sign,
        *("–" if step is None else f"{step:,}" for step in steps),
        number(reward.highest if reward else None), number(reward.last if reward else None),
        charts.phase_strip(run, x),
    ]


def _legend(facts: Comparison) -> str:
    """What the lines and bands of the charts mean."""
    text = "Solid is A, dashed is B; trailing means over ten measured steps."
    if any(len(arm.runs) > 1 for arm in facts.arms):
        text += (
            " Of several runs the line is the mean, step by step, over those that have the step, "
            "each counting once; the band goes from the lowest run to the highest."
        )
    return f"{text} Vertical lines: the decay alarm of each run."


def _alarms(facts: Comparison) -> Iterator[Block]:
    alarms: dict[str, AnyAlert] = {}
    for alarm in (a for arm in facts.arms for run in arm.runs for a in run.alarms):
        alarms.setdefault(alarm.rule, alarm)
    rows: list[Sequence[Cell]] = [
        [palette.SEVERITIES[alarm.severity], rule, *(firing_text(arm, rule) for arm in facts.arms)]
        for rule, alarm in sorted(alarms.items(), key=lambda pair: -pair[1].severity.rank)
    ]
    if rows:
        yield Table("The first alarm of each rule in a run", ["severity", "rule", "A", "B"], rows)


def _settings(facts: Comparison) -> Iterator[Block]:
    rows = [[row.setting, *row.values_of_arms()] for row in facts.settings[:MOST_SETTINGS]]
    if rows:
        yield Table("Recorded settings", ["setting", "A", "B"], rows)
    if len(facts.settings) > len(rows):
        yield Paragraph(f"And {len(facts.settings) - len(rows)} more.")
    if facts.varying:
        same = ", ".join(facts.varying[:MOST_SETTINGS])
        yield Paragraph(f"These vary within each arm, with the same values in both: {same}.")
