"""Responses that are not the policy's own text: cut by a limit, trained on foreign text, or without
a tool's answer; and responses that repeat themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...core.numbers import percent, short
from .. import conditions as c
from .. import detectors as d
from ..evidence import SMOOTH, Evidence, Flags, on_measured, once
from ..outcome import outcome, slips
from ..rule import CauseRank, Measurement, Rule, Severity
from . import measures as m
from .groups import starved
from .numerics import engine_mismatch

MASK_STEPS = 3
MERGED = 0.5  # of the rollouts with fewer actions than turns
# nats: with a vocabulary of V, fewer than 50·V·e⁻²⁰ of actions of 50 tokens sampled from π_old have
# a token under it, 1.5 % for V = 150,000.
IMPOSSIBLE = -20.0
LENGTH_JUMP = 1.4  # × the longest mean response before
LENGTH_LEAST = 10  # measured steps before a length can be called a jump
GROWN = 1.5  # × the tokens of the first responses: they grow
LONGER = "Find out why responses grow; raise the limit only if longer ones are right."
SAME_LENGTH = "Raise the limit: responses have not grown, so it is too low for the task."
CUT_FROM_THE_START = "Responses are cut by a length limit from the start"
LOST, TIMES_CUT = 0.33, 2.0  # of the reward, × the responses that are cut more: not by the limit
BROKEN_TURNS = 0.1  # share of invalid actions, or of truncated rollouts
STEADY = (0.8 / 1.1, 1.25 * 1.1)  # × the valid searches before

FAILED = 0.5  # of the tool calls
FAILED_STEPS = 5

REPEATED = 0.1  # of the 4-grams, more than at first
REPEATED_FIRST = 20  # measured steps that are the usual


@once
def truncation(e: Evidence) -> Measurement:
    """Info if responses were cut from the first step on; a warning if the share has risen, or if
    truncation leaves no group a signal. Truncation does not explain a loss with which responses
    became longer at once (no limit does that), nor an earlier one, as long as far fewer responses
    were cut than the reward had lost."""
    what = "of the rollouts were cut by a length limit"
    cut = m.share_above(e, "truncated_share", c.CUT_STEPS, c.CUT, what)
    risen, more = c.truncation_risen(e), m.change(e, "truncated_share")
    loss, length = 1 - m.reward_left(e), m.change(e, "response_tokens")
    by_policy = (more.now - more.before < loss / TIMES_CUT) | (length.now > GROWN * length.before)
    uncut = (m.reward_fell(e) | c.reward_crashed(e)) & (loss > LOST) & by_policy
    explains = cut.holds & (starved(e) | (risen & ~c.recently(e, uncut, 1)))
    tokens = e.column("response_tokens")
    smooth = e.cadence.rows(SMOOTH)
    first = on_measured(tokens, lambda v: d.from_first(d.trailing_median(v, smooth, 1), smooth))
    growth = m.mean(e, "response_tokens", c.CUT_STEPS) / first

    def message(row: int) -> str:
        if not growth[row] >= GROWN:
            return cut.message(row)
        now = f"{cut.message(row)}; they have {growth[row]:.1f} × as many tokens as at first"
        return f"{now} ({short(first[row])})"

    def words(row: int) -> tuple[str, str]:
        grows = "find out why responses grow, or raise the limit"
        cause = "More responses are cut by a length limit" if risen[row] else CUT_FROM_THE_START
        return cause, grows if growth[row] >= GROWN else "raise the length limit"

    return replace(
        cut, message=message, words=words, explains=explains, grave=risen | starved(e),
        advice=lambda row: LONGER if growth[row] >= GROWN else SAME_LENGTH,
    )


@once
def mask_lint(e: Evidence) -> Measurement:
    share = m.mean(e, "merged_action_share", MASK_STEPS)
    lowest = m.mean(e, "action_logp_min", MASK_STEPS)
    tokens = e.column("response_tokens")
    longer = m.over_former_max(tokens, LENGTH_JUMP, LENGTH_LEAST, None, m.restarts(e, "data"))
    is_merged = share > MERGED
    # Where the engine disagrees with the trainer, low log-probabilities come from that.
    gap = engine_mismatch(e)
    never_sampled = (lowest <= IMPOSSIBLE) & ~(gap.value >= gap.threshold)

    calls, called = c.tool_use(e)

    def message(row: int) -> str:
        if is_merged[row]:
            return (
                f"{percent(share[row])} of the answered rollouts that searched have fewer actions "
                f"than turns (limit {percent(MERGED)}): the text between the turns counts as the "
                "policy's"
            )
        if never_sampled[row]:
            return (
                "in half of the actions the policy gives a token a log-probability under "
                f"{lowest[row]:.0f} (limit {IMPOSSIBLE:.0f}): it cannot have sampled them"
            )
        return (
            f"rollouts have {tokens[row]:.0f} action tokens, {longer[row]:.1f} × their earlier "
            f"maximum, from one step to the next, with {e.column(calls)[row]:.1f} "
            f"{called} as usual"
        )

    def unit(row: int) -> str:
        if is_merged[row]:
            return "of the rollouts"
        return "nats" if never_sampled[row] else m.EARLIER_MAXIMUM

    kinds = [is_merged, never_sampled]
    return Measurement(
        holds=is_merged | never_sampled | _grown_by_tool_text(e, longer >= LENGTH_JUMP),
        value=np.select(kinds, [share, lowest], longer),
        limit=np.select(kinds, [MERGED, IMPOSSIBLE], LENGTH_JUMP),
        message=message,
        unit=unit,
    )


def _grown_by_tool_text(e: Evidence, long: Flags) -> Flags:
    """Responses became much longer from one step to the next with as many calls as before, and stay
    that long. Text written by the policy grows over many steps, or comes with invalid or truncated
    turns."""
    before, now, _ = m.change(e, c.tool_use(e)[0], 1)
    usual = (now >= STEADY[0] * before) & (now <= STEADY[1] * before)
    bad_share = np.fmax(e.column("invalid_share"), e.column("truncated_share"))
    begins = usual & ~(bad_share > BROKEN_TURNS)
    first = long & (d.consecutive(long) == 1)
    return long & d.last(begins, first, False)


@once
def repetition(e: Evidence) -> Measurement:
    now, before, limit = c.against_first(e, "repeat_share", SMOOTH, REPEATED_FIRST, REPEATED)

    def message(row: int) -> str:
        return (
            f"responses repeat {percent(now[row])} of their 4-grams over {e.cadence.spans(SMOOTH)} "
            f"steps, and {percent(before[row])} in the first {e.cadence.spans(REPEATED_FIRST)} "
            f"(limit {percent(limit[row])})"
        )

    return Measurement(now >= limit, now, limit, message)


@once
def outage(e: Evidence) -> Measurement:
    """Critical once the reward has fallen too."""
    failing = m.share_above(e, "tool_fail_share", FAILED_STEPS, FAILED, "of the tool calls failed")
    return replace(failing, grave=slips(e) | np.isnan(outcome(e).level))


RULES = (
    Rule(
        "tool-outage", measure=outage, severity=Severity.CRITICAL, needs=("tool_fail_share",),
        unit="of the tool calls", for_steps=3, rank=CauseRank.PRIMARY, back=True,
        cause="Retriever or tool dead", action="fix it",
        meaning=f"More than {percent(FAILED)} of the tool calls fail. Critical once the reward "
        "falls with it.",
        evidence=f"Share of tool calls that failed, mean over {FAILED_STEPS} steps.",
        advice="Restart the retriever; discard the steps trained meanwhile. This is not LLD.",
        confused_with="Calls that the tool refuses because the policy writes them badly, where the "
        "trainer counts those as failed: then the share of invalid actions rises too.",
    ),
    Rule(
        "repetition", measure=repetition, needs=("repeat_share",), unit="of the 4-grams",
        for_steps=5, inside=True,
        cause="Responses repeat themselves", action="read some of the responses",
        meaning="Responses have begun to loop, or to copy what they said before.",
        evidence="Share of 4-grams of tokens that a response has had before (seq-rep-4): the "
        f"mean of {SMOOTH} steps is {percent(REPEATED)} above that of the first "
        f"{REPEATED_FIRST}, and {c.RISEN}.",
        advice="Fix a reward that pays for length or does not see the end, and go back to a "
        "checkpoint from before.",
        confused_with="Longer responses with a fixed form, such as one more search each: look at "
        "`response_tokens` and `valid_searches`.",
    ),
    Rule(
        "truncation", measure=truncation, needs=("truncated_share",), unit="of the rollouts",
        for_steps=5, rank=CauseRank.TERTIARY, inside=True,
        cause="More responses are cut by a length limit",
        action="raise the length limit, or find out why responses grow",
        meaning=f"More than {percent(c.CUT)} of the rollouts are cut by a length limit. Info if "
        "this was so from the start, a warning if it has risen, or if it leaves no group a signal.",
        evidence=f"Share of rollouts cut by a length limit, mean over {c.CUT_STEPS} steps; risen "
        f"where it is {percent(c.CUT_RISE)} above that of the first {SMOOTH} steps, and {c.RISEN}.",
        advice=f"{LONGER} If they have not grown, it is too low for the task.",
        confused_with="A policy that collapses and writes without end: what began first decides "
        f"(docs/alarms.md), or that the reward had lost {percent(LOST)} and {TIMES_CUT:g} × the "
        f"share of responses that were cut by then, or that responses became {GROWN:g} × as long "
        "while it was lost.",
    ),
    Rule(
        "mask-lint", measure=mask_lint,
        needs=("merged_action_share", "action_logp_min", "response_tokens"),
        unit=f"share, nats, or {m.EARLIER_MAXIMUM}", for_steps=3, rank=CauseRank.PRIMARY, back=True,
        cause="Tool text counts as the policy's own", action="fix the loss mask",
        meaning="Text that the policy did not write, such as tool answers or appended tokens, is "
        "trained on.",
        evidence=f"Fewer actions than turns in more than {percent(MERGED)} of the answered "
        "rollouts that searched; or a token in half of the actions with a log-probability under "
        f"−{-IMPOSSIBLE:g}; or rollouts that are suddenly {LENGTH_JUMP:g} × as long as ever with "
        "as many tool calls as before.",
        advice="Print one rollout with its mask, token by token: tool text, template and appended "
        "end tokens must be masked out.",
        confused_with="A length limit or prompt that was changed on purpose. An engine that "
        "disagrees with the trainer gives impossible tokens too, but then engine-mismatch fires.",
    ),
)
