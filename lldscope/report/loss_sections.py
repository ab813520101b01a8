"""The section of a post-mortem about losses: which actions, groups and sources, and beside what."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.numbers import number, signed
from .blocks import Block, Example, Facts, Heading, Paragraph, Table

_CONTRASTS = {
    "low_likelihood": "beside wrong responses that are less likely (per token) than the step's "
    "median",
    "long": "beside wrong responses that are longer than the step's median",
    "good_first_action": "beside a wrong response that began with a correct one's first action",
}


def losses(facts: Facts) -> Iterator[Block]:
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
          _difference(c), str(c["n_steps"]), {True: "they lose more", False: "no clear difference",
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


def _difference(contrast: Facts) -> str:
    if contrast["difference"] is None:
        return "–"
    return f"{signed(contrast['difference'], '.2f')} ± {contrast['error']:.2f}"


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
        told += f" These actions changed by {signed(rows[False]['delta'], '.2f')} nats on average"
        told += (
            f", the same in correct rollouts by {signed(rows[True]['delta'], '.2f')}."
            if True in rows
            else "."
        )
    yield Paragraph(told)


def examples(facts: Facts) -> Iterator[Block]:
    if facts["examples"]:
        yield Heading("Correct responses that lost most, in words")
        yield Paragraph(
            "Of those whose words were recorded. Text that the policy did not write is grey; what "
            "both responses begin with is underlined."
        )
        yield from map(Example, facts["examples"])
