"""The comparison of two arms as a document: which sections there are, and of which blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core import palette
from ...core.numbers import number, signed, true_minus
from ...monitor.alerts import AnyAlert
from .. import charts, timeline
from ..blocks import Block, Cell, Document, Heading, Items, Paragraph, Picture, Table
from ..facts import PostMortem
from ..sentences import date, interval
from .facts import Arm, Comparison, Spread
from .sentences import firing_text, spread

MOST_SETTINGS = 60
MOST_RANGES = 12


def document(facts: Comparison) -> Document:
    a, b = facts.arms
    title = f"{a.name} and {b.name} compared"
    about = [
        (palette.VERDICTS[arm.runs[0].state.verdict],
         f"{arm.title}: {arm.runs[0].run.place}")
        for arm in facts.arms if len(arm.runs) == 1
    ]
    return Document(title, about, _blocks(facts), _footer(facts))


def _blocks(facts: Comparison) -> Iterator[Block]:
    yield Heading("What differs")
    yield Items(facts.summary, ordered=True)
    for arm in facts.arms:
        yield from _arm(arm)
    if any(arm.carried for arm in facts.arms):
        yield Heading("Phases of both arms")
        yield Picture("timeline", timeline.of_arms(facts))
        yield _phases(facts)
        yield Heading("Signals of both arms")
        yield Paragraph(_legend(facts))
        yield Picture("charts", charts.of_arms(facts))
        yield from _matched(facts)
        yield from _alarms(facts)
        yield from _onsets(facts)
        yield from _look_alikes(facts)
    yield from _settings(facts)
    yield Heading("What this comparison cannot tell")
    yield Items(facts.limits)


def _arm(arm: Arm) -> Iterator[Block]:
    """What happened in an arm: in sentences for a run, in a table for several."""
    yield Heading(f"{arm.letter}: {arm.name}")
    if len(arm.runs) == 1:
        yield Items(arm.runs[0].summary, ordered=True)
        return
    rows = [_run(run) for run in arm.runs]
    head = ["run", "verdict", "steps", "fall from", "decay alarm", "collapse", "best reward",
            "last reward", "ended"]
    yield Table(f"Runs of {arm.title}", head, rows, frozenset(range(2, 8)))
    ranges = [f"{s.start_step}–{s.end_step}: {s.runs}" for s in arm.carried]
    listing = "; ".join(ranges[:MOST_RANGES])
    more = f"; and {len(ranges) - MOST_RANGES} more" if len(ranges) > MOST_RANGES else ""
    yield Paragraph(f"Steps, and how many runs have rows there: {listing}{more}.")


def _run(run: PostMortem) -> list[Cell]:
    reward = run.outline.get("reward")
    about = run.run
    steps = "–" if about.first_step is None else f"{about.first_step}–{about.last_step}"
    return [
        about.name, palette.VERDICTS[run.state.verdict], steps, _step(run.fall),
        _step(run.alarm_step("lld-decay")), _step(run.collapse),
        number(reward.highest if reward else None), number(reward.end if reward else None),
        run.state.life,
    ]


def _step(step: int | None) -> str:
    return "–" if step is None else str(step)


def _phases(facts: Comparison) -> Table:
    rows = []
    for arm in facts.arms:
        for run in arm.runs:
            live = [f"{palette.PHASES[s.phase].word} {s.start_step}–{s.end_step}"
                    for s in run.phases]
            began = [f"{palette.PHASES[b.phase].word} from {b.step}{interval(b)}"
                     for b in run.boundaries]
            rows.append([arm.letter, run.run.name, ", ".join(live) or "–",
                         ", ".join(began) or "–"])
    return Table("Phases", ["arm", "run", "as seen live, steps", "with hindsight"], rows)


def _legend(facts: Comparison) -> str:
    """What the lines and bands of the charts mean."""
    several = [arm for arm in facts.arms if len(arm.runs) > 1]
    text = "Solid is A, dashed is B; trailing means over ten measured steps."
    if len(several) < 2:
        text += " The phases of a single run are drawn above."
    if several:
        text += (
            " Of several runs the line is the mean, step by step, over those that have the step, "
            "each counting once; the band goes from the lowest run to the highest. Their number is "
            "shown on hover and above."
        )
    return f"{text} Vertical lines: the decay alarm of each run."


def _matched(facts: Comparison) -> Iterator[Block]:
    matched = facts.matched
    if not matched["points"]:
        return
    yield Heading("At matched points")
    rows: list[list[str]] = []
    for of in matched["signals"]:
        name = f"{of['signal']}, {of['unit']}" if of["unit"] else of["signal"]
        for i, (point, sides) in enumerate(zip(matched["points"], of["values"], strict=True)):
            if sides != [None, None]:
                place = point if isinstance(point, str) else number(point, 12)
                rows.append([name if i == 0 else "", place, *map(spread, sides), _gap(sides)])
    at = {"step": "step", "tokens": "tokens", "onset": "steps since the fall began"}
    head = ["signal", at[matched["align"]] if matched["every"] else "at", "A", "B", "B − A"]
    caption = "Means over the last ten measured steps"
    if any(len(arm.runs) > 1 for arm in facts.arms):
        caption += "; of several runs their mean, and the lowest and highest in brackets"
    yield Table(caption, head, rows, frozenset({1, 2, 3, 4}))


def _gap(sides: Sequence[Spread | None]) -> str:
    a, b = sides
    return "–" if a is None or b is None else signed(b.mean - a.mean)


def _alarms(facts: Comparison) -> Iterator[Block]:
    yield Heading("Alarms")
    alarms: dict[str, AnyAlert] = {}
    for alarm in (a for arm in facts.arms for run in arm.runs for a in run.alarms):
        alarms.setdefault(alarm.rule, alarm)
    if not alarms:
        yield Paragraph("No alarm fired in either.")
        return
    rows: list[Sequence[Cell]] = [
        [palette.SEVERITIES[alarm.severity], rule, *(firing_text(arm, rule) for arm in facts.arms)]
        for rule, alarm in sorted(alarms.items(), key=lambda pair: -pair[1].severity.rank)
    ]
    yield Table("The first alarm of each rule in a run", ["severity", "rule", "A", "B"], rows)


def _onsets(facts: Comparison) -> Iterator[Block]:
    yield Heading("What broke")
    names = [link.link for link in facts.arms[0].runs[0].links]
    rows = [[name, *(_onset(arm, name) for arm in facts.arms)] for name in sorted(names)]
    yield Table("Where it began, with hindsight", ["what", "A", "B"], rows)


def _onset(arm: Arm, name: str) -> str:
    links = [link for run in arm.runs for link in run.links if link.link == name]
    onsets = [link for link in links if link.seen is not None]
    steps = [link.start for link in onsets if link.start is not None]
    if not any(link.measured for link in links):
        return "not measured"
    if not onsets:
        return "not seen"
    if len(links) == 1:
        return f"step {steps[0]}{interval(onsets[0])}"
    return f"in {len(onsets)} of {len(links)} runs, from step {min(steps)} to {max(steps)}"


def _look_alikes(facts: Comparison) -> Iterator[Block]:
    yield Heading("LLD and what looks like it")
    names = dict.fromkeys(n for arm in facts.arms for run in arm.runs for n in run.look_alikes)
    rows: list[list[Cell]] = [
        [name, *(cell for arm in facts.arms for cell in _answers(arm, name))] for name in names
    ]
    head = ["cause", "A", "evidence in A", "B", "evidence in B"]
    yield Table("Causes that look the same on the reward curve", head, rows)


def _answers(arm: Arm, name: str) -> list[Cell]:
    """Whether the log of a run supports a cause, or how many of several do; and the evidence."""
    findings = [run.look_alikes[name] for run in arm.runs if name in run.look_alikes]
    if not findings:
        return ["–", "–"]
    if len(findings) == 1:
        return [palette.ANSWERS[findings[0].answer], true_minus(findings[0].evidence)]
    counts = [
        f"{sign.shape} {n} {sign.word}"
        for answer, sign in palette.ANSWERS.items()
        if (n := sum(f.answer == answer for f in findings))
    ]
    first = next((f for f in findings if f.answer == "supported"), None)
    return [", ".join(counts), true_minus(first.evidence) if first else "–"]


def _settings(facts: Comparison) -> Iterator[Block]:
    yield Heading("Settings that differ")
    rows = [[row.setting, *row.shown()] for row in facts.settings[:MOST_SETTINGS]]
    if not rows:
        recorded = any(run.run.config for arm in facts.arms for run in arm.runs)
        yield Paragraph("None of those recorded." if recorded else "No settings are recorded.")
    yield Table("Recorded settings", ["setting", "A", "B"], rows)
    if len(facts.settings) > len(rows):
        yield Paragraph(f"And {len(facts.settings) - len(rows)} more.")
    if facts.varying:
        same = ", ".join(facts.varying[:MOST_SETTINGS])
        yield Paragraph(f"These vary within each arm, with the same values in both: {same}.")


def _footer(facts: Comparison) -> str:
    ids = [f"{arm.letter}: {', '.join(str(run.run.id) for run in arm.runs)}" for arm in facts.arms]
    return " · ".join([f"lldscope {facts.lldscope}, made {date(facts.made)}", *ids])
