"""The report of a run as a document: which sections there are, and of which blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core import palette
from ..core.numbers import number, true_minus
from . import charts, loss_sections, timeline
from .arms import document as arms
from .arms.facts import Comparison
from .blocks import ANSWERS, Block, Cell, Document, Heading, Items, Paragraph, Picture, Table
from .facts import Alarm, PostMortem
from .sentences import date, interval, lead_to_collapse, lead_to_crash

_EVIDENCE = {
    "delta": "Δ measured",
    "level": "likelihood levels; Δ not recorded: weaker evidence",
    "symptoms": "reward, entropy and gradients; likelihood not recorded: weaker evidence",
}


def document(facts: PostMortem | Comparison) -> Document:
    """The report of a run, or of two arms."""
    if isinstance(facts, Comparison):
        return arms.document(facts)
    verdict = palette.VERDICTS[facts.state.verdict]
    title = f"Post-mortem of {facts.run.name}"
    return Document(title, [(verdict, facts.run.place)], _blocks(facts), _footer(facts))


def _blocks(facts: PostMortem) -> Iterator[Block]:
    yield Heading("What happened")
    yield Items(facts.summary, ordered=True)
    if facts.kind != "empty":
        yield from _phases(facts)
        yield from _signals(facts)
        yield from _alarms(facts)
        yield from _onsets(facts)
        yield from loss_sections.losses(facts)
        yield from loss_sections.examples(facts)
        yield from _look_alikes(facts)
        yield from _advice(facts)
    yield Heading("What this log cannot tell")
    yield Items(facts.limits)


def _footer(facts: PostMortem) -> str:
    parts = [
        f"lldscope {facts.lldscope}, made {date(facts.made)}",
        f"evidence: {_EVIDENCE[facts.state.evidence]}",
        f"decay alarm: at most one false alarm in {facts.state.arl:,.0f} steps",
        f"run {facts.run.id}",
        facts.run.trainer and f"recorded by {facts.run.trainer}",
        facts.run.correct_rule and f"correct: {facts.run.correct_rule}",
    ]
    return " · ".join(part for part in parts if part)


def _phases(facts: PostMortem) -> Iterator[Block]:
    yield Heading("Phases")
    yield Picture("timeline", timeline.of_run(facts))
    rows: list[Sequence[Cell]] = [
        ["live", palette.PHASES[s.phase], f"{s.start_step}–{s.end_step}", "",
         "rows up to each step"]
        for s in facts.phases
    ]  # fmt: skip
    rows += [
        ["hindsight", palette.PHASES[b.phase], f"from {b.step}", f"{b.low}–{b.high}",
         f"{b.method}; entered live at {b.live}"]
        for b in facts.boundaries
    ]  # fmt: skip
    yield Table("Phases as they were seen live, and their beginnings with hindsight",
                ["seen", "phase", "steps", "95 %", "from"], rows)  # fmt: skip


def _signals(facts: PostMortem) -> Iterator[Block]:
    yield Heading("Signals")
    yield Picture("charts", charts.of_run(facts))
    rows = [
        [name, s.unit, number(s.first), number(min(s.mean)), number(max(s.mean)), number(s.last),
         f"{s.n:,}"]
        for name, s in facts.signals.items()
    ]  # fmt: skip
    head = ["signal", "unit", "first", "lowest mean", "highest mean", "last mean", "steps"]
    caption = "Measured signals; means are trailing, over ten steps"
    yield Table(caption, head, rows, frozenset(range(2, 7)))


def _alarms(facts: PostMortem) -> Iterator[Block]:
    yield Heading("Alarms, and how early they came")
    if not facts.alarms:
        yield Paragraph("No alarm fired.")
        return
    collapse = (
        "no collapse was recognised" if facts.collapse is None
        else f"the collapse was recognised at step {facts.collapse}"
    )  # fmt: skip
    crash = (
        "the reward did not crash" if facts.reward_crash is None
        else f"the reward had crashed at step {facts.reward_crash}"
    )  # fmt: skip
    yield Paragraph(f"The first alarm of each rule, as seen live; {collapse}, {crash}.")
    head = ["severity", "rule", "fired at", "before collapse", "before reward crash", "why",
            "false alarms"]  # fmt: skip
    rows: list[Sequence[Cell]] = [
        [palette.SEVERITIES[a.severity], a.rule, "–" if a.step is None else str(a.step),
         lead_to_collapse(a) or "–", lead_to_crash(a) or "–", true_minus(a.message), a.false_alarms]
        for a in sorted(facts.alarms, key=_fired)
    ]  # fmt: skip
    yield Table("Alarms", head, rows, frozenset({2}))


def _fired(alarm: Alarm) -> float:
    return float("inf") if alarm.step is None else alarm.step


def _onsets(facts: PostMortem) -> Iterator[Block]:
    yield Heading("What broke, in order")
    yield Paragraph(
        "Something counts as seen at the first step at which its condition has held for two "
        "measured steps; where it began is read from the break of the best broken line around. "
        "Where intervals overlap, the order is not certain."
    )
    rows = [
        [link.link, "–" if link.onset is None else f"{link.onset}{interval(link)}",
         "–" if link.seen is None else str(link.seen),
         link.condition if link.measured else "not measured", link.method or "–"]
        for link in facts.links
    ]  # fmt: skip
    head = ["what", "began (hindsight)", "seen (live)", "condition", "method"]
    yield Table("What broke", head, rows)


def _look_alikes(facts: PostMortem) -> Iterator[Block]:
    yield Heading("LLD and what looks like it")
    rows: list[Sequence[Cell]] = [
        [name, ANSWERS[f.answer], true_minus(f.evidence)] for name, f in facts.look_alikes.items()
    ]
    yield Table("Causes that look the same on the reward curve", ["cause", "this log", "evidence"],
                rows)  # fmt: skip


def _advice(facts: PostMortem) -> Iterator[Block]:
    yield Heading("What to change next")
    if not facts.advice:
        yield Paragraph("This log gives no reason to change anything.")
        return
    rows = [[a.change, a.how, a.why, true_minus("; ".join(a.evidence))] for a in facts.advice]
    yield Table("Changes, each with the evidence for it",
                ["change", "how", "why", "evidence in this run"], rows)  # fmt: skip
