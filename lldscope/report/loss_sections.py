"""The sections of a report about losses: which actions, groups and sources, and beside what."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.numbers import number, signed
from .blocks import Block, Heading, Paragraph, Table
from .contrasts import Contrast
from .facts import PostMortem

_CONTRASTS = {
    "low_likelihood": "with incorrect responses less likely (per token) than the step's median",
    "long": "with incorrect responses longer than the step's median",
    "good_first_action": "with an incorrect response that began with a correct one's first action",
}
_FINDINGS = {True: "they lose more", False: "no clear difference", None: "too few steps"}


def losses(facts: PostMortem) -> Iterator[Block]:
    lost = facts.losses
    yield Heading("What lost likelihood, and beside what")
    where = f"Steps {lost.first_step}–{lost.last_step}, mixed groups"
    if not lost.by_action and not lost.n_groups:
        yield Paragraph(f"{where}: Δ was not measured.")
        return
    share = f" ({lost.displaced_share:.0%})" if lost.displaced_share else ""
    yield Paragraph(
        f"{where}. Correct responses lost likelihood on average in {lost.n_displaced:,} of "
        f"{lost.n_groups:,} groups{share}."
    )
    yield Table(
        "Δ per action, by turn of the rollout (nats)",
        ["action", "rollouts", "before", "in these steps", "actions"],
        [[str(r.action_index), "correct" if r.correct else "incorrect", number(r.before),
          number(r.in_window), f"{r.n_in_window:,}"] for r in lost.by_action],
        frozenset({2, 3, 4}),
    )  # fmt: skip
    yield Table(
        "Correct responses by data source",
        ["data source", "responses", "mean Δ", "share with Δ ≤ 0", "nats lost"],
        [[r.data_source or "–", f"{r.n_responses:,}", number(r.delta), number(r.lld_share),
          number(r.lost, 4)] for r in lost.by_source],
        frozenset({1, 2, 3, 4}),
    )  # fmt: skip
    yield Table(
        "What was beside them: Δ of correct responses, groups of the same step compared",
        ["correct responses", "Δ there", "Δ elsewhere", "difference", "steps", "finding"],
        [[_CONTRASTS[c.contrast], number(c.with_), number(c.without), _difference(c),
          str(c.n_steps), _FINDINGS[c.supported]] for c in lost.contrasts],
        frozenset({1, 2, 3, 4}),
    )  # fmt: skip
    yield Table(
        "Groups whose correct responses lost most",
        ["step", "group", "data source", "Δ correct", "Δ incorrect", "correct : incorrect",
         "question"],
        [[str(r.step), str(r.group_id), r.data_source or "–", number(r.delta),
          number(r.delta_incorrect), f"{r.n_correct} : {r.n_incorrect}", r.question or "–"]
         for r in lost.groups],
        frozenset({0, 1, 3, 4, 5}),
    )  # fmt: skip
    yield Table(
        "Incorrect responses with the largest weight in groups that lost: unlikely and long",
        ["step", "response", "group", "tokens", "log π per token", "Σ ‖e − π‖²", "|advantage|",
         "Δ correct of its group"],
        [[str(r.step), str(r.response_id), str(r.group_id), number(r.n_tokens, 5), number(r.logp),
          number(r.error_norm), number(r.advantage), number(r.group_delta)] for r in lost.wrong],
        frozenset(range(8)),
    )  # fmt: skip
    yield from _first_actions(facts)


def _difference(contrast: Contrast) -> str:
    if contrast.difference is None:
        return "–"
    return f"{signed(contrast.difference, '.2f')} ± {contrast.error:.2f}"


def _first_actions(facts: PostMortem) -> Iterator[Block]:
    share = facts.good_first_action_share
    if share is None:
        return
    text = (
        f"{share:.0%} of the incorrect rollouts began with a good first action: it retrieved the "
        "same documents as that of a correct rollout of the group."
    )
    delta = {r.correct: f"{signed(r.delta, '.2f')} nats" for r in facts.losses.first_actions}
    if False in delta:
        text += f" These actions changed by {delta[False]} on average"
        text += f", the same in correct rollouts by {delta[True]}." if True in delta else "."
    yield Paragraph(text)


def examples(facts: PostMortem) -> Iterator[Block]:
    if facts.examples:
        yield Heading("Correct responses that lost most, token by token")
        yield Paragraph(
            "Of the responses that were recorded. Text that the policy did not write is grey; the "
            "shared beginning of both responses is underlined."
        )
        yield from facts.examples
