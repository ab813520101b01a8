"""Groups: whether they carry a gradient, and whether each is one prompt."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.numbers import short
from .. import detectors as d
from ..conditions import CUT_STEPS
from ..evidence import Evidence, Flags, on_measured, once
from ..outcome import SOLVED, halved, outcome, solved
from ..rule import CauseRank, Measurement, Rule
from .measures import REPORTS, mean, percent

NO_SIGNAL = 0.95  # of the groups
NO_SIGNAL_STEPS = 10
MIXED = 0.75  # of the groups: where fewer have equal rewards, the gradient is the usual one
ONE_KIND = 0.75  # of the groups without a signal: what then is advised is for that kind alone
MANY_GROUPS = 0.1  # of the groups with two prompts, before they explain a fall of the likelihood
KINDS = ("all_right_share", "all_wrong_share")
CENTRED = 0.01  # mean advantage of a group that is relative to it
CENTRED_LEAST = 5  # steps with such advantages before others are called wrong
OFF_CENTRE = 0.05  # mean advantage of a group that is not relative to it

TRAINS = 0.05  # gradient norm that neither rounding nor a small KL term leaves
AS_USUAL = 0.3  # × the median gradient norm of the last steps whose groups differ
USUAL = 400  # of such steps


class Why(NamedTuple):
    """Why the rewards of each group are equal, what to do, and an optional addition."""

    cause: str
    action: str
    more: str = ""

    @property
    def advice(self) -> str:
        return f"{self.action[:1].upper()}{self.action[1:]}. {self.more}".rstrip()


ANOTHER = Why(
    "Another reward than the logged one trains",
    "log the reward that trains",
    "The logged rewards of each group are equal, and the gradient is not 0: another reward trains, "
    "or a KL or entropy term alone.",
)
CUT_OFF = Why("responses are cut before they can be right", "raise the length limit")
LOST = Why(
    "all responses are wrong, and were not before",
    "look for what broke first",
    "Responses were right before, so the questions are not too hard.",
)
RIGHT = Why(
    "all responses are right",
    "take harder questions",
    "Or leave out what is always solved.",
)
WRONG = Why(
    "all responses are wrong",
    "check the reward and the answer format, then take easier questions",
    "Or reward parts of an answer, or sample more rollouts of each.",
)
BOTH = Why(
    "their rewards are equal",
    "change the difficulty or the reward",
    "All right: take harder questions. All wrong: check the reward and the answer format; take "
    "easier questions, reward parts of an answer, or sample more rollouts of each.",
)


@once
def zero_signal(e: Evidence) -> Measurement:
    rows = e.cadence.rows(NO_SIGNAL_STEPS)
    alone = e.column("group_size_max") == 1  # a group of one has no signal to lose
    column = np.where(alone, 0.0, mean(e, "zero_signal_share", NO_SIGNAL_STEPS))

    def unchanged(reward: d.Series) -> d.Series:
        """The share of steps whose mean reward equals the previous one, to the last digit."""
        same = np.where(reward == d.shifted(reward, 1), 1.0, 0.0)
        return d.trailing_mean(same, rows, rows)

    same = on_measured(e.reward, unchanged)
    same = np.where(e.column("reward_sd") > 0, 0.0, same)
    share = np.where(np.isnan(column), same, column)

    def message(row: int) -> str:
        if np.isnan(column[row]):
            steps = e.cadence.spans(NO_SIGNAL_STEPS)
            return f"the mean reward was {short(e.reward[row])} in every one of {steps} steps"
        return (
            f"in {percent(share[row])} of the groups of {e.cadence.spans(NO_SIGNAL_STEPS)} steps "
            f"all rewards were equal (limit {percent(NO_SIGNAL)}); {_kinds(e, row)}"
        )

    def why(row: int) -> Why:
        return ANOTHER if _trains(e)[row] else _why(e, row)

    def words(row: int) -> tuple[str, str]:
        cause, action, _ = why(row)
        return (cause if _trains(e)[row] else f"Groups teach nothing: {cause}"), action

    return Measurement(
        share > NO_SIGNAL, share, NO_SIGNAL, message,
        advice=lambda row: why(row).advice, words=words,
        grave=~(solved(e) | (mean(e, KINDS[0], NO_SIGNAL_STEPS) >= ONE_KIND))
        & ~(np.isnan(column) & _trains(e)),
    )


@once
def _trains(e: Evidence) -> Flags:
    """The gradient is not 0, and not much smaller than on steps whose groups differ."""
    norm, rows = e.column("grad_norm"), e.cadence.rows(NO_SIGNAL_STEPS)
    level = on_measured(norm, lambda v: d.trailing_median(v, rows, rows))
    of_different = np.where(e.column("zero_signal_share") < MIXED, norm, np.nan)
    usual = on_measured(of_different, lambda v: d.trailing_median(v, USUAL, 1))
    return np.asarray(level > np.fmax(AS_USUAL * usual, TRAINS))


@once
def starved(e: Evidence) -> Flags:
    """No group has a signal because responses are cut before they can be right."""
    lowest = np.fmin(d.accumulated(np.fmin, e.reward), 0.0)
    wrong = mean(e, "all_wrong_share", NO_SIGNAL_STEPS)
    fail = np.where(np.isnan(wrong), e.reward <= lowest, wrong >= ONE_KIND)
    return zero_signal(e).holds & fail & (mean(e, "truncated_share", CUT_STEPS) >= ONE_KIND)


def _kinds(e: Evidence, row: int) -> str:
    """In words: the share of groups without a signal that are all right or all wrong."""
    right, wrong = (mean(e, name, NO_SIGNAL_STEPS)[row] for name in KINDS)
    if np.isnan(right + wrong):
        return f"the mean reward was {short(e.reward[row], 2)}"
    return f"{percent(right)} were all right and {percent(wrong)} all wrong"


def _why(e: Evidence, row: int) -> Why:
    right, wrong = (mean(e, name, NO_SIGNAL_STEPS)[row] for name in KINDS)
    if np.isnan(right + wrong):  # a mean reward between 0 and 1 may be that of each response
        level = outcome(e).level[row]
        right, wrong = float(SOLVED <= level <= 1), float(level <= 1 - ONE_KIND)
        if not right + wrong:
            right = wrong = 0.5
    if right >= ONE_KIND * (right + wrong):
        return RIGHT
    if starved(e)[row]:
        return CUT_OFF
    if not wrong >= ONE_KIND * (right + wrong):
        return BOTH
    return LOST if halved(e)[row] else WRONG


@once
def collision(e: Evidence) -> Measurement:
    share, offset = e.column("prompt_collision_share"), e.column("advantage_offset")
    # Methods that never centre advantages in groups are left alone.
    centred_before = d.total(offset < CENTRED) >= CENTRED_LEAST
    off_centre = centred_before & (offset > OFF_CENTRE)
    by_offset = ~(share > 0) & (off_centre | np.isnan(share))

    def message(row: int) -> str:
        if share[row] > 0:
            return f"{percent(share[row])} of the groups hold rollouts of more than one prompt"
        return (
            f"the advantages of a recorded group have a mean of {offset[row]:.2f} in absolute "
            "value, where it was 0 before: they are relative to other groups"
        )

    return Measurement(
        holds=(share > 0) | off_centre,
        value=np.where(by_offset, offset, share),
        limit=np.where(by_offset, OFF_CENTRE, 0.0),
        message=message,
        explains=(share >= MANY_GROUPS) | off_centre,
        unit=lambda row: "mean advantage" if by_offset[row] else "of the groups",
    )


RULES = (
    Rule(
        "zero-signal", measure=zero_signal, needs=("zero_signal_share", "reward"),
        unit="of the groups", for_steps=10,
        cause=f"Groups teach nothing: {BOTH.cause}", action=BOTH.action,
        meaning="Nearly all groups have equal rewards and carry no gradient: the step trains on "
        "almost nothing.",
        evidence=f"Groups whose rewards are all equal: above {percent(NO_SIGNAL)} in "
        f"{NO_SIGNAL_STEPS} steps. Without groups, a mean reward that is the same to the last "
        "digit in each, without a spread. Info where nearly all responses are right, and where "
        "such a log has a gradient: then another reward trains.",
        advice=BOTH.advice,
        confused_with="Without groups, a reward that is logged with few digits.",
        promise=REPORTS,
    ),
    Rule(
        "group-collision", measure=collision, needs=("prompt_collision_share", "advantage_offset"),
        unit="of the groups", rank=CauseRank.PRIMARY, back=True,
        cause="Groups mix prompts", action="fix the ids of the groups",
        meaning="Rollouts of different prompts are compared as one group, so advantages are wrong.",
        evidence="Groups with more than one prompt_hash; or advantages that are no longer relative "
        f"to the recorded groups: their mean is above {OFF_CENTRE:g}, and was under {CENTRED:g}.",
        advice="Fix the ids: a group is one prompt of one data source and index. What was "
        "trained meanwhile compared the wrong rewards.",
        confused_with="Another advantage estimator, or one prompt drawn twice in a step. A "
        "collision since the first step is seen by prompt hashes alone.",
        promise=REPORTS,
    ),
)
