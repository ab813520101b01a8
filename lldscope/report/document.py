"""The report of a run as a document: which sections there are, and of which blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..core import palette
from ..core.numbers import number, percent, signed, true_minus
from ..explore.settings import flat
from . import charts, timeline
from .arms import document as arms
from .arms.facts import Comparison
from .blocks import Block, Box, Cell, Document, Heading, Items, Paragraph, Picture, Table
from .facts import Cost, PostMortem
from .losses import Row
from .sentences import date, duration, interval, lead

MOST_SETTINGS = 300
MOST_TEXT = 300  # characters of a setting
# Sections that are closed when the file is opened: what happened, when, and what to change come
# first, and the evidence is one click away.
FOLDED = frozenset({
    "What to change next", "Phases", "Signals",
    "Alarms, and how early they came", "What broke, in order",
    "What lost likelihood, and beside what", "What was forgotten",
    "Correct responses that lost most, token by token", "LLD and what looks like it",
    "Configuration", "What broke", "At matched points",
})

_CONTRASTS = {
    "low_likelihood": "with incorrect responses less likely (per token) than the step's median",
    "long": "with incorrect responses longer than the step's median",
    "good_first_action": "with an incorrect response that began with a correct one's first action",
}
_FINDINGS = {True: "they lose more", False: "no clear difference", None: "too few steps"}


def document(facts: PostMortem | Comparison) -> Document:
    """The report of a run, or of two arms."""
    if isinstance(facts, Comparison):
        return arms.document(facts)
    verdict = palette.VERDICTS[facts.state.verdict]
    title = f"Post-mortem of {facts.run.name}"
    return Document(title, [(verdict, facts.run.place)], _blocks(facts), _footer(facts))


def _blocks(facts: PostMortem) -> Iterator[Block]:
    yield _box(facts)
    if facts.run.tags:
        yield Paragraph(f"Tags: {', '.join(facts.run.tags)}.")
    if facts.run.note:
        yield Paragraph(f"Note: {facts.run.note}")
    yield Heading("What happened")
    yield Items(facts.summary, ordered=True)
    if facts.kind != "empty":
        yield Heading("At a glance")
        yield Picture("timeline", timeline.of_run(facts))
        yield Picture("charts", charts.of_run(facts, charts.GLANCE))
        yield from _advice(facts)
        yield from _phases(facts)
        yield from _signals(facts)
        yield from _alarms(facts)
        yield from _onsets(facts)
        yield from _losses(facts)
        yield from _forgetting(facts)
        yield from _examples(facts)
        yield from _look_alikes(facts)
    yield from _configuration(facts)
    yield Heading("What this log cannot tell")
    yield Items(facts.limits)


def _box(facts: PostMortem) -> Box:
    """Cause, confidence, cost and action: what the reader must begin with."""
    headline = facts.state.headline
    of = {answer: [n for n, f in facts.look_alikes.items() if f.answer == answer]
          for answer in ("ruled_out", "not_observable")}
    words = {"ruled_out": "ruled out", "not_observable": "this log cannot tell"}
    other = [f"{words[answer]}: {', '.join(names)}" for answer, names in of.items() if names]
    rows = [("what is wrong", f"{headline.cause}.")]
    rows += [("other causes", "; ".join(other))] if other else []
    rows.append(("confidence", _confidence(facts)))
    rows += [("cost", _cost(facts.cost))] if facts.cost else []
    action = f"{headline.action[:1].upper()}{headline.action[1:]}"
    rows += [("what to do", action)] if action else []
    return Box(rows)


def _confidence(facts: PostMortem) -> str:
    evidence = palette.EVIDENCE[facts.state.evidence]
    alarm = next((a for a in facts.alarms if a.rule == facts.state.headline.rule), None)
    return f"{evidence}. {alarm.rule}: {alarm.false_alarms}." if alarm else f"{evidence}."


def _cost(cost: Cost) -> str:
    rollouts = "" if cost.rollouts is None else f" with {cost.rollouts:,} rollouts"
    hours = "" if cost.hours is None else f" in {duration(3600 * cost.hours)}"
    money = "" if cost.money is None else f", which cost {cost.money:,.2f}"
    steps = "1 step" if cost.steps == 1 else f"{cost.steps:,} steps"
    return f"{steps}{rollouts}{hours} after the first alarm ({cost.rule}, step {cost.step}){money}."


def _footer(facts: PostMortem) -> str:
    parts = [
        f"lldscope {facts.lldscope}, made {date(facts.made)}",
        f"evidence: {palette.EVIDENCE[facts.state.evidence]}",
        f"decay alarm: at most one false alarm in {facts.state.arl:,.0f} steps",
        f"run {facts.run.id}",
        facts.run.trainer and f"recorded by {facts.run.trainer}",
        facts.run.correct_rule and f"correct: {facts.run.correct_rule}",
    ]
    return " · ".join(part for part in parts if part)


def _configuration(facts: PostMortem) -> Iterator[Block]:
    settings = flat(facts.run.config)
    if not settings:
        return
    rows = [[name[:MOST_TEXT], value[:MOST_TEXT]] for name, value in settings.items()]
    left = len(rows) - MOST_SETTINGS
    more = f"; {left:,} more are in run.json" if left > 0 else ""
    yield Heading("Configuration")
    yield Table(f"{len(rows):,} settings{more}", ["setting", "value"], rows[:MOST_SETTINGS])


def _phases(facts: PostMortem) -> Iterator[Block]:
    yield Heading("Phases")
    rows: list[Sequence[Cell]] = [
        ["live", palette.PHASES[s.phase], f"{s.start_step}–{s.end_step}", "",
         "rows up to each step"]
        for s in facts.phases
    ]
    rows += [
        ["hindsight", palette.PHASES[b.phase], f"from {b.step}", f"{b.low}–{b.high}",
         f"{b.method}; entered live at {b.live}"]
        for b in facts.boundaries
    ]
    yield Table("Phases as they were seen live, and their beginnings with hindsight",
                ["seen", "phase", "steps", "95 %", "from"], rows)


def _signals(facts: PostMortem) -> Iterator[Block]:
    yield Heading("Signals")
    others = [chart.id for chart in charts.CHARTS if chart.id not in charts.GLANCE]
    yield Picture("charts", charts.of_run(facts, others))
    rows = [
        [name, s.unit, number(s.first), number(min(s.mean)), number(max(s.mean)), number(s.last),
         f"{s.n:,}"]
        for name, s in facts.signals.items()
    ]
    head = ["signal", "unit", "first", "lowest mean", "highest mean", "last mean", "steps"]
    caption = "Measured signals; means are trailing, over ten steps"
    yield Table(caption, head, rows, frozenset(range(2, 7)))


def _alarms(facts: PostMortem) -> Iterator[Block]:
    yield Heading("Alarms, and how early they came")
    if not facts.alarms:
        yield Paragraph("No alarm fired.")
        return
    collapse, crash = "no collapse was recognised", "the reward did not crash"
    if facts.collapse is not None:
        collapse = f"the collapse was recognised at step {facts.collapse}"
    if facts.reward_crash is not None:
        crash = f"the reward had crashed at step {facts.reward_crash}"
    yield Paragraph(f"The first alarm of each rule, as seen live; {collapse}, {crash}.")
    head = ["severity", "rule", "fired at", "before collapse", "before reward crash", "why",
            "false alarms"]
    rows: list[Sequence[Cell]] = [
        [palette.SEVERITIES[a.severity], a.rule, "–" if a.step is None else str(a.step),
         lead(facts, a, facts.collapse) or "–", lead(facts, a, facts.reward_crash) or "–",
         true_minus(a.message), a.false_alarms]
        for a in sorted(facts.alarms, key=lambda a: math.inf if a.step is None else a.step)
    ]
    yield Table("Alarms", head, rows, frozenset({2}))


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
    ]
    head = ["what", "began (hindsight)", "seen (live)", "condition", "method"]
    yield Table("What broke", head, rows)


def _losses(facts: PostMortem) -> Iterator[Block]:
    losses = facts.losses
    yield Heading("What lost likelihood, and beside what")
    where = f"Steps {losses.first_step}–{losses.last_step}, mixed groups"
    if not losses.by_action and not losses.n_groups:
        yield Paragraph(f"{where}: Δ was not measured.")
        return
    share = f" ({percent(losses.displaced_share)})" if losses.displaced_share else ""
    yield Paragraph(
        f"{where}. Correct responses lost likelihood on average in {losses.n_displaced:,} of "
        f"{losses.n_groups:,} groups{share}."
    )
    yield Table(
        "Δ per action, by turn of the rollout (nats)",
        ["action", "rollouts", "before", "in these steps", "actions"],
        [[str(r["action_index"]), "correct" if r["correct"] else "incorrect", number(r["before"]),
          number(r["in_window"]), f"{r['n_in_window']:,}"] for r in losses.by_action],
        frozenset({2, 3, 4}),
    )
    yield Table(
        "Correct responses by data source",
        ["data source", "responses", "mean Δ", "share with Δ ≤ 0", "nats lost"],
        [[r["data_source"] or "–", f"{r['n_responses']:,}", number(r["delta"]),
          number(r["lld_share"]), number(r["lost"], 4)] for r in losses.by_source],
        frozenset({1, 2, 3, 4}),
    )
    yield Table(
        "What was beside them: Δ of correct responses, groups of the same step compared",
        ["correct responses", "Δ there", "Δ elsewhere", "difference", "steps", "finding"],
        [[_CONTRASTS[c["contrast"]], number(c["with"]), number(c["without"]), _difference(c),
          str(c["n_steps"]), _FINDINGS[c["supported"]]] for c in losses.contrasts],
        frozenset({1, 2, 3, 4}),
    )
    yield Table(
        "Groups whose correct responses lost most",
        ["step", "group", "data source", "Δ correct", "Δ incorrect", "correct : incorrect",
         "question"],
        [[str(r["step"]), str(r["group_id"]), r["data_source"] or "–", number(r["delta"]),
          number(r["delta_incorrect"]), f"{r['n_correct']} : {r['n_incorrect']}",
          r["question"] or "–"] for r in losses.groups],
        frozenset({0, 1, 3, 4, 5}),
    )
    yield Table(
        "Incorrect responses with the largest weight in groups that lost: unlikely and long",
        ["step", "response", "group", "tokens", "log π per token", "Σ ‖e − π‖²", "|advantage|",
         "Δ correct of its group"],
        [[str(r["step"]), str(r["response_id"]), str(r["group_id"]), number(r["n_tokens"], 5),
          number(r["logp"]), number(r["error_norm"]), number(r["advantage"]),
          number(r["group_delta"])] for r in losses.wrong],
        frozenset(range(8)),
    )
    yield from _first_actions(facts)


def _difference(contrast: Row) -> str:
    if contrast["difference"] is None:
        return "–"
    return f"{signed(contrast['difference'], '.2f')} ± {contrast['error']:.2f}"


def _first_actions(facts: PostMortem) -> Iterator[Block]:
    share = facts.good_first_action_share
    if share is None:
        return
    text = (
        f"{percent(share)} of the incorrect rollouts began with a good first action: it retrieved "
        "the same documents as that of a correct rollout of the group."
    )
    delta = {r["correct"]: f"{signed(r['delta'], '.2f')} nats" for r in facts.losses.first_actions}
    if False in delta:
        text += f" These actions changed by {delta[False]} on average"
        text += f", the same in correct rollouts by {delta[True]}." if True in delta else "."
    yield Paragraph(text)


def _forgetting(facts: PostMortem) -> Iterator[Block]:
    if not facts.forgotten:
        return
    yield Heading("What was forgotten")
    yield Paragraph(
        "Correct responses that were kept and scored again while the training went on with other "
        "questions. Most likelihood was lost by these; the step that cost each of them most stands "
        "beside them, with what that step gave its own correct responses."
    )
    rows: list[Sequence[Cell]] = [
        [str(r.sampled), f"{r.response_id}" + (f", {r.data_source}" if r.data_source else ""),
         signed(r.lost), str(r.until), f"{r.questions_since:,}", str(r.worst),
         signed(r.worst_change), "–" if r.gained is None else signed(r.gained),
         number(r.step_kl), (r.text or "").strip() or "–"]
        for r in facts.forgotten
    ]
    head = ["sampled at", "response", "change, nats", "until", "questions since", "worst step",
            "change there", "Δ of that step's own", "its step_kl", "how it ends"]
    yield Table("Kept correct responses that lost most", head, rows, frozenset({0, *range(2, 9)}))


def _examples(facts: PostMortem) -> Iterator[Block]:
    if facts.examples:
        yield Heading("Correct responses that lost most, token by token")
        yield Paragraph(
            "Of the responses that were recorded. Text that the policy did not write is grey; the "
            "shared beginning of both responses is underlined."
        )
        yield from facts.examples


def _look_alikes(facts: PostMortem) -> Iterator[Block]:
    yield Heading("LLD and what looks like it")
    rows: list[Sequence[Cell]] = [
        [name, palette.ANSWERS[f.answer], true_minus(f.evidence)]
        for name, f in facts.look_alikes.items()
    ]
    yield Table("Causes that look the same on the reward curve", ["cause", "this log", "evidence"],
                rows)


def _advice(facts: PostMortem) -> Iterator[Block]:
    yield Heading("What to change next")
    if not facts.advice:
        yield Paragraph("No alarm fired that asks for a change.")
        return
    rows = [[a.change, a.how, a.why, true_minus("; ".join(a.evidence))] for a in facts.advice]
    yield Table("Changes, each with the evidence for it",
                ["change", "how", "why", "evidence in this run"], rows)
