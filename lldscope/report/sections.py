"""The sections of a post-mortem but for its losses: each gives the blocks of which it is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core import palette
from ..core.numbers import number, true_minus
from .blocks import Block, Facts, Heading, Paragraph, Picture, Table
from .sentences import interval, lead

FINDINGS = {
    "supported": palette.Sign(palette.VERMILLION, "#111418", "◆", "supported"),
    "ruled_out": palette.Sign(palette.GREEN, "#111418", "✓", "ruled out"),
    "not_observable": palette.Sign(palette.GREY, "#111418", "?", "not observable"),
}


def timeline(facts: Facts) -> Iterator[Block]:
    yield Heading("Phases")
    yield Picture("timeline", facts)
    rows: list[Sequence[str | palette.Sign]] = [
        ["live", palette.PHASES[s["phase"]], f"{s['start_step']}–{s['end_step']}", "",
         "rows up to each step"]
        for s in facts["phases"]
    ]  # fmt: skip
    rows += [
        ["hindsight", palette.PHASES[b["phase"]], f"from {b['step']}", f"{b['low']}–{b['high']}",
         f"{b['method']}; entered live at {b['live']}"]
        for b in facts["boundaries"]
    ]  # fmt: skip
    yield Table("Phases as they were seen live, and their beginnings with hindsight",
                ["seen", "phase", "steps", "95 %", "from"], rows)  # fmt: skip


def signals(facts: Facts) -> Iterator[Block]:
    yield Heading("Signals")
    yield Picture("charts", facts)
    rows = [
        [name, s["unit"], number(s["first"]), number(s["mean"][0] if len(s["mean"]) < 2 else
         min(s["mean"])), number(max(s["mean"])), number(s["last"]), f"{s['n']:,}"]
        for name, s in facts["signals"].items()
    ]  # fmt: skip
    head = ["signal", "unit", "first", "lowest mean", "highest mean", "last mean", "steps"]
    yield Table("Measured signals; means are trailing, over ten steps", head, rows,
                 frozenset(range(2, 7)))  # fmt: skip


def alarms(facts: Facts) -> Iterator[Block]:
    yield Heading("Alarms, and the time they left")
    if not facts["alarms"]:
        yield Paragraph("No alarm fired.")
        return
    rows = [
        [
            palette.SEVERITIES[a["severity"]], a["rule"], "–" if a["step"] is None else
            str(a["step"]), lead(a, "collapse") or "–", lead(a, "reward_crash") or "–",
            true_minus(a["message"]), a["false_alarms"],
        ]
        for a in sorted(facts["alarms"], key=_fired)
    ]  # fmt: skip
    head = ["severity", "rule", "fired at", "before collapse", "before reward crash", "why",
            "false alarms"]  # fmt: skip
    ends = [
        f"the collapse was recognised at step {facts['collapse']}"
        if facts["collapse"] is not None else "no collapse was recognised",
        f"the reward had crashed at step {facts['reward_crash']}"
        if facts["reward_crash"] is not None else "the reward did not crash",
    ]  # fmt: skip
    yield Paragraph(
        f"Of each rule the first alarm, with the rows up to its step; {', '.join(ends)}."
    )
    yield Table("Alarms", head, rows, frozenset({2}))


def _fired(alarm: Mapping[str, Any]) -> float:
    return float("inf") if alarm["step"] is None else float(alarm["step"])


def links(facts: Facts) -> Iterator[Block]:
    yield Heading("The spiral's links, in order")
    rows = [
        [link["link"], "–" if link["onset"] is None else f"{link['onset']}{interval(link)}",
         "–" if link["seen"] is None else str(link["seen"]),
         link["condition"] if link["measured"] else "not measured",
         link["method"] or "–"]
        for link in facts["links"]
    ]  # fmt: skip
    yield Paragraph(
        "A link is seen at the first step at which its condition has held for two measured steps; "
        "where it began is read from the break of the best broken line around. Where intervals "
        "overlap, the order is not certain."
    )
    yield Table("Links", ["link", "began (hindsight)", "seen (live)", "condition", "method"], rows)


def look_alikes(facts: Facts) -> Iterator[Block]:
    yield Heading("LLD and what looks like it")
    rows = [
        [name, FINDINGS[f["answer"]], true_minus(f["evidence"])]
        for name, f in facts["look_alikes"].items()
    ]
    yield Table("Causes that look the same on the reward curve", ["cause", "this log", "evidence"],
                rows)  # fmt: skip


def advice(facts: Facts) -> Iterator[Block]:
    yield Heading("What to change next")
    if not facts["advice"]:
        yield Paragraph("This log gives no reason to change anything.")
        return
    rows = [
        [a["change"], a["how"], a["why"], true_minus("; ".join(a["evidence"]))]
        for a in facts["advice"]
    ]
    yield Table("Changes, each with the evidence for it",
                ["change", "how", "why", "evidence in this run"], rows)  # fmt: skip
