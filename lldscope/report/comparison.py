"""What `lldscope compare` found, as a document: the runs over the same steps, their charts, the
table of the terminal, and the settings that differ."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.numbers import number, true_minus
from ..core.palette import SEVERITIES
from ..core.version import __version__
from ..diagnosis.registry import Rule
from ..explore.settings import differing, flat
from ..figures.view import subject_of
from ..monitor.health import check
from ..runs import Run
from . import charts
from .blocks import Block, Cell, Charts, Document, Items, Paragraph, Section, Table
from .sentences import date

MOST_SETTINGS, LONGEST = 60, 80  # rows, and characters of a value
STORY = 4  # charts on the first screen
NOTE = "Trailing means over ten measured steps. Vertical lines: the decay alarm of each run."
NOTE_OF_GROUPS = (
    "For a folder of runs the line is the mean, step by step, over those that have the step, each "
    "counting once; the band goes from the lowest run to the highest."
)


def document(
    answer: Mapping[str, Any], groups: Sequence[tuple[str, Sequence[Run]]],
    arl: float | None = None, rules: Sequence[Rule] | None = None,
) -> Document:
    """The runs of an `answer` of `explore.comparison`. `groups`: name and runs of each place
    that was given; the runs of a folder are one line in charts."""
    runs = [run for _, of in groups for run in of]
    states = [check(run, arl, rules) for run in runs]
    subjects = [
        replace(subject_of(str(i), run, state), title=about["label"])
        for i, (run, state, about) in enumerate(zip(runs, states, answer["runs"], strict=True))
    ]
    names = [name if len(of) > 1 else None for name, of in groups for _ in of]
    members = {str(i): name for i, name in enumerate(names) if name is not None}
    x = charts.steps_axis(step for s in subjects for step in s.table["step"])
    rows: list[Sequence[Cell]] = [
        [about["label"], state.sign, "–" if about["onset"] is None else f"{about['onset']:,}",
         charts.phase_strip(state.phases, x)]
        for about, state in zip(answer["runs"], states, strict=True)
    ]
    rows.append(["", "", "", charts.step_strip(x)])
    drawings = charts.overlays(subjects, members)
    story: list[Block] = [
        Items([f"{s.called}: {state.headline.cause}."
               for s, state in zip(subjects, states, strict=True)]),
        Table("Runs", ["run", "verdict", "fall from", "steps"], rows, frozenset({2})),
        Charts(drawings[:STORY]),
        Paragraph(f"{NOTE} {NOTE_OF_GROUPS}" if members else NOTE),
    ]
    evidence = (
        ("More charts", [Charts(drawings[STORY:])] if drawings[STORY:] else []),
        ("Alarms", [_alarms(answer)]),
        ("Signals", [_signals(answer)]),
        ("Settings that differ", [*_settings(answer, runs)]),
    )
    sections = [Section(name, blocks) for name, blocks in evidence if blocks]
    lines = dict.fromkeys(members.get(subject.name, subject.title) for subject in subjects)
    title = " and ".join(lines) if len(lines) == 2 else f"{len(runs)} runs"
    footer = f"lldscope {__version__}, made {date(time.time())}"
    return Document(f"{title} compared", [], [Section("", story), *sections], footer)


def _alarms(answer: Mapping[str, Any]) -> Table:
    """Every alarm that ever fired in a run, the worst first, and where it first did."""
    rows = [
        [run["label"], SEVERITIES[alarm["severity"]], alarm["rule"],
         "–" if alarm["step"] is None else f"{alarm['step']:,}"]
        for run in answer["runs"]
        for alarm in run["alerts"]
    ]
    return Table("Alarms that fired", ["run", "severity", "rule", "step"], rows, frozenset({3}))


def _signals(answer: Mapping[str, Any]) -> Table:
    """The values of the terminal's table: a row per signal and point, a column per run."""
    at = "at" if answer["every"] is None else answer["align"]
    rows = [
        [signal["signal"], signal["unit"], point if isinstance(point, str) else number(point, 10),
         *map(number, values)]
        for signal in answer["signals"]
        for point, values in zip(answer["points"], signal["values"], strict=True)
    ]
    head = ["signal", "unit", at, *(run["label"] for run in answer["runs"])]
    caption = "Means over the last ten measured steps"
    return Table(caption, head, rows, frozenset(range(3, len(head))))


def _settings(answer: Mapping[str, Any], runs: Sequence[Run]) -> Iterator[Block]:
    rows = differing([flat(run.info.get("config")) for run in runs])
    head = ["setting", *(run["label"] for run in answer["runs"])]
    texts = [[name, *(true_minus(v[:LONGEST]) + "…" * (len(v) > LONGEST) for v in values)]
             for name, values in rows[:MOST_SETTINGS]]
    if texts:
        yield Table("Recorded settings", head, texts)
    if len(rows) > MOST_SETTINGS:
        yield Paragraph(f"And {len(rows) - MOST_SETTINGS} more.")
