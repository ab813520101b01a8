"""The answer of `lldscope compare` as a document: a summary of the differences, charts over common
steps, the table of the terminal, and the settings that differ."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

from ..core.numbers import number, true_minus
from ..core.palette import SEVERITIES
from ..core.version import __version__
from ..diagnosis.registry import Rule
from ..explore.comparison import means_at, row_at
from ..explore.settings import NOT_SET, differing, flat
from ..figures.view import subject_of
from ..monitor.health import RunState, check
from ..runs import Run
from . import charts
from .blocks import Block, Cell, Charts, Document, Items, Paragraph, Section, Table
from .sentences import date

MOST_SETTINGS, LONGEST = 60, 80  # rows, and characters of a value
STORY = 4  # charts on the first screen
NAMED = 4  # settings that a sentence names
DECAY = "lld-decay"
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
        Items(_summary(answer, groups, states, arl, rules)),
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


def _summary(
    answer: Mapping[str, Any], groups: Sequence[tuple[str, Sequence[Run]]],
    states: Sequence[RunState], arl: float | None, rules: Sequence[Rule] | None,
) -> list[str]:
    """How the runs, or folders of runs, differ: their ends, the reward at the last common step, the
    decay alarm, the settings."""
    rest = iter(zip(answer["runs"], states, strict=True))
    sides = {name: [next(rest) for _ in of] for name, of in groups}
    sentences = [f"{name}: {_fate([state for _, state in of])}." for name, of in sides.items()]
    sentences += _rewards(groups, arl, rules)
    firings = {
        name: [a["step"] for about, _ in of for a in about["alerts"] if a["rule"] == DECAY]
        for name, of in sides.items()
    }
    if any(firings.values()):
        each = (f"{_firing(firings[name], len(of))} in {name}" for name, of in sides.items())
        sentences.append(f"{DECAY} fired {'; '.join(each)}.")
    else:
        sentences.append(f"{DECAY} fired in none of them.")
    return [*sentences, *_difference(groups)]


def _fate(states: Sequence[RunState]) -> str:
    """The headline of one run; of several runs, how many ended in each verdict, and by which
    rule."""
    if len(states) == 1:
        return states[0].headline.cause
    ends = Counter((state.sign.word, state.headline.rule) for state in states)
    counts = (f"{n} {word}{f' ({rule})' if rule else ''}" for (word, rule), n in ends.most_common())
    return f"{len(states)} runs, {', '.join(counts)}"


def _rewards(
    groups: Sequence[tuple[str, Sequence[Run]]], arl: float | None, rules: Sequence[Rule] | None
) -> Iterator[str]:
    steps = [run.assess(arl, rules).evidence.step for _, of in groups for run in of]
    if not all(map(len, steps)) or max(s[0] for s in steps) > min(s[-1] for s in steps):
        return
    common = int(min(s[-1] for s in steps))
    texts = []
    for name, of in groups:
        values = []
        for run in of:
            assessment = run.assess(arl, rules)
            row = row_at(assessment.evidence.step.astype(float), common)
            values += [v for v in means_at(assessment, "reward", [row]) if v is not None]
        if not values:
            return
        bounds = f" ({number(min(values))} to {number(max(values))})" if len(of) > 1 else ""
        texts.append(f"{number(mean(values))}{bounds} in {name}")
    several = any(len(of) > 1 for _, of in groups)
    kind = "mean of ten rows" + "; over several runs their mean and range" * several
    values_of_all = " and ".join([", ".join(texts[:-1]), texts[-1]] if texts[1:] else texts)
    yield (
        f"At step {common:,}, the last that all have, the reward ({kind}) is {values_of_all}."
    )


def _firing(steps: Sequence[int], n_runs: int) -> str:
    if not steps:
        return "never"
    if n_runs == 1:
        return f"at step {steps[0]:,}"
    return f"in {len(steps)} of {n_runs} runs (median step {number(median(steps), 6)})"


def _difference(groups: Sequence[tuple[str, Sequence[Run]]]) -> Iterator[str]:
    """The settings that differ between folders. A setting that takes the same values in every
    folder, such as a seed, does not."""
    configs = []
    for _, of in groups:
        each = [flat(run.info.get("config")) for run in of]
        names = dict.fromkeys(name for config in each for name in config)
        values = {n: sorted({config.get(n, NOT_SET) for config in each}) for n in names}
        configs.append({n: ", ".join(v[:LONGEST] for v in of_n) for n, of_n in values.items()})
    rows = [row for row in differing(configs) if row[0] != "name"] if all(configs) else []
    if not rows:
        return
    texts = [
        f"{name} {', '.join(f'{v} in {side}' for v, (side, _) in zip(values, groups, strict=True))}"
        for name, values in rows[:NAMED]
    ]
    more = f"; and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    many = "One setting differs" if len(rows) == 1 else f"{len(rows)} settings differ"
    yield f"{many}: {'; '.join(texts)}{more}."
    if len(rows) > 1:
        yield f"Which of the {len(rows)} settings made the difference, this cannot tell."


def _alarms(answer: Mapping[str, Any]) -> Table:
    """Every alarm that ever fired in a run, the worst first, with the step at which it first
    fired."""
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
