"""The post-mortem as blocks: what is said and in which order. `html` and `markdown` render them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .. import palette
from .words import date, interval, lead, number

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Items:
    items: Sequence[str]
    ordered: bool = False


@dataclass(frozen=True)
class Table:
    """Cells are text, or a sign with its word; numbers stand to the right."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | palette.Sign]]
    right: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Picture:
    """Drawn from the facts where there are pictures; where there are none, left out."""

    kind: Literal["timeline", "charts"]


@dataclass(frozen=True)
class Example:
    facts: Mapping[str, Any]

    @property
    def shared(self) -> str:
        """With what both responses begin, and what that lost; empty without a partner."""
        count, delta = self.facts["shared_characters"], self.facts["shared_delta"]
        if count is None:
            return ""
        lost = "" if delta is None else f"; there the correct one changed by {delta:+.3g} nats"
        return f"Both begin with the same {count:,} characters{lost}."


Block = Heading | Paragraph | Items | Table | Picture | Example

_FINDINGS = {
    "supported": palette.Sign(palette.VERMILLION, "#111418", "◆", "supported"),
    "ruled_out": palette.Sign(palette.GREEN, "#111418", "✓", "ruled out"),
    "not_observable": palette.Sign(palette.GREY, "#111418", "?", "not observable"),
}
_CONTRASTS = {
    "low_likelihood": "beside wrong responses that are less likely (per token) than the step's "
    "median",
    "long": "beside wrong responses that are longer than the step's median",
    "good_first_action": "beside a wrong response that began with a correct one's first action",
}


def document(facts: Facts) -> Iterator[Block]:
    """The whole post-mortem, without its title."""
    yield Heading("What happened")
    yield Items(facts["summary"], ordered=True)
    if facts["kind"] != "empty":
        yield from _timeline(facts)
        yield Heading("Signals")
        yield Picture("charts")
        yield _signals(facts)
        yield from _alarms(facts)
        yield from _links(facts)
        yield from _losses(facts)
        yield from _examples(facts)
        yield from _look_alikes(facts)
        yield from _advice(facts)
    yield Heading("What this log cannot tell")
    yield Items(facts["limits"])


def _timeline(facts: Facts) -> Iterator[Block]:
    yield Heading("Phases")
    yield Picture("timeline")
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


def _signals(facts: Facts) -> Table:
    rows = [
        [name, s["unit"], number(s["first"]), number(s["mean"][0] if len(s["mean"]) < 2 else
         min(s["mean"])), number(max(s["mean"])), number(s["last"]), f"{s['n']:,}"]
        for name, s in facts["signals"].items()
    ]  # fmt: skip
    head = ["signal", "unit", "first", "lowest mean", "highest mean", "last mean", "steps"]
    return Table("Measured signals; means are trailing, over ten steps", head, rows,
                 frozenset(range(2, 7)))  # fmt: skip


def _alarms(facts: Facts) -> Iterator[Block]:
    yield Heading("Alarms, and the time they left")
    if not facts["alarms"]:
        yield Paragraph("No alarm fired.")
        return
    rows = [
        [
            palette.SEVERITIES[a["severity"]], a["rule"], "–" if a["step"] is None else
            str(a["step"]), lead(a, "collapse") or "–", lead(a, "reward_crash") or "–",
            a["message"], a["false_alarms"],
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


def _links(facts: Facts) -> Iterator[Block]:
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


def _losses(facts: Facts) -> Iterator[Block]:
    lost = facts["losses"]
    yield Heading("What lost likelihood, and beside what")
    where = f"Steps {lost['first_step']}–{lost['last_step']}, mixed groups"
    if not lost["by_action"] and not lost["n_groups"]:
        yield Paragraph(f"{where}: no Δ was measured, so losses cannot be told apart.")
        return
    share = lost["n_displaced"] / lost["n_groups"] if lost["n_groups"] else None
    told = f"{where}. Correct responses lost likelihood on average in {lost['n_displaced']:,} of "
    yield Paragraph(f"{told}{lost['n_groups']:,} groups" + (f" ({share:.0%})." if share else "."))
    yield Table(
        "Δ per action, by turn of the rollout (nats)",
        ["action", "rollouts", "before", "in these steps", "actions"],
        [[str(r["action_index"]), "correct" if r["correct"] else "wrong", number(r["before"]),
          number(r["in_window"]), f"{r['n_in_window']:,}"] for r in lost["by_action"]],
        frozenset({2, 3, 4}),
    )  # fmt: skip
    yield Table(
        "Correct responses by data source",
        ["data source", "responses", "mean Δ", "share with Δ ≤ 0", "nats lost"],
        [[r["data_source"] or "–", f"{r['n_responses']:,}", number(r["delta"]),
          number(r["lld_share"]), number(r["lost"], 4)] for r in lost["by_source"]],
        frozenset({1, 2, 3, 4}),
    )  # fmt: skip
    yield Table(
        "What stood beside them: Δ of correct responses, groups of the same step compared",
        ["correct responses", "Δ there", "Δ elsewhere", "difference", "steps", "finding"],
        [[_CONTRASTS[c["contrast"]], number(c["with"]), number(c["without"]),
          "–" if c["difference"] is None else f"{c['difference']:+.2f} ± {c['error']:.2f}",
          str(c["n_steps"]), {True: "they lose more", False: "no clear difference",
                              None: "too few steps"}[c["supported"]]] for c in lost["contrasts"]],
        frozenset({1, 2, 3, 4}),
    )  # fmt: skip
    yield Table(
        "Groups whose correct responses lost most",
        ["step", "group", "data source", "Δ correct", "Δ wrong", "right : wrong", "question"],
        [[str(r["step"]), str(r["group_id"]), r["data_source"] or "–", number(r["delta"]),
          number(r["delta_incorrect"]), f"{r['n_correct']} : {r['n_incorrect']}",
          r["question"] or "–"] for r in lost["groups"]],
        frozenset({0, 1, 3, 4, 5}),
    )  # fmt: skip
    yield Table(
        "Wrong responses that weighed most in groups that lost: unlikely and long",
        ["step", "response", "group", "tokens", "log π per token", "Σ ‖e − π‖²", "|advantage|",
         "Δ correct of its group"],
        [[str(r["step"]), str(r["response_id"]), str(r["group_id"]), number(r["n_tokens"], 5),
          number(r["logp"]), number(r["error_norm"]), number(r["advantage"]),
          number(r["group_delta"])] for r in lost["wrong"]],
        frozenset(range(8)),
    )  # fmt: skip
    yield from _first_actions(facts)


def _first_actions(facts: Facts) -> Iterator[Block]:
    share = facts["good_first_action_share"]
    rows = {r["correct"]: r for r in facts["losses"]["first_actions"]}
    if share is None:
        return
    told = (
        f"{share:.0%} of the wrong rollouts began with a good first action: it retrieved the same "
        "documents as that of a correct rollout of the group."
    )
    if False in rows:
        told += f" These actions changed by {rows[False]['delta']:+.2f} nats on average"
        told += (
            f", the same in correct rollouts by {rows[True]['delta']:+.2f}."
            if True in rows
            else "."
        )
    yield Paragraph(told)


def _examples(facts: Facts) -> Iterator[Block]:
    if facts["examples"]:
        yield Heading("Correct responses that lost most, in words")
        yield Paragraph(
            "Of those whose words were recorded. Text that the policy did not write is grey; what "
            "both responses begin with is underlined."
        )
        yield from map(Example, facts["examples"])


def _look_alikes(facts: Facts) -> Iterator[Block]:
    yield Heading("LLD and what looks like it")
    rows = [
        [name, _FINDINGS[f["answer"]], f["evidence"]] for name, f in facts["look_alikes"].items()
    ]
    yield Table("Causes that look the same on the reward curve", ["cause", "this log", "evidence"],
                rows)  # fmt: skip


def _advice(facts: Facts) -> Iterator[Block]:
    yield Heading("What to change next")
    if not facts["advice"]:
        yield Paragraph("This log gives no reason to change anything.")
        return
    rows = [[a["change"], a["how"], a["why"], "; ".join(a["evidence"])] for a in facts["advice"]]
    yield Table("Changes, each with the evidence for it",
                ["change", "how", "why", "evidence in this run"], rows)  # fmt: skip


def title(facts: Facts) -> str:
    return f"Post-mortem of {facts['run']['name']}"


def footer(facts: Facts) -> str:
    run, state = facts["run"], facts["state"]
    evidence = {"delta": "Δ measured", "level": "likelihood levels only",
                "symptoms": "reward, entropy and gradients only"}[state["evidence"]]  # fmt: skip
    told = [f"lldscope {facts['lldscope']}, made {date(facts['made'])}", f"evidence: {evidence}",
            f"decay alarm at one false alarm in {state['arl']:,.0f} steps at most",
            f"run {run['id']}"]  # fmt: skip
    if run["trainer"]:
        told.append(f"recorded by {run['trainer']}")
    if run["correct_rule"]:
        told.append(f"correct: {run['correct_rule']}")
    return " · ".join(told)
