"""Sentences about two arms: how they differ, and what this comparison cannot tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from ...core.numbers import number, percent
from ...core.palette import EVIDENCE
from ...evaluation.scoring import wilson
from ..events import Event
from ..facts import PostMortem
from ..sentences import plural
from .facts import Arm, Comparison, Spread

NAMED = 4  # settings that a sentence names
DECAY, COLLAPSE = "lld-decay", "lld-collapse"


def summary(facts: Comparison) -> list[str]:
    """How the arms differ, in at most five sentences."""
    fates = [f"{arm.title}: {_fate(arm)}." for arm in facts.arms]
    return [s for s in (*fates, _reward(facts), _alarm(facts), _settings(facts)) if s]


def _fate(arm: Arm) -> str:
    """What the headline says of a run; of several, how many ended in which verdict, and why."""
    runs = arm.runs
    if len(runs) == 1:
        return runs[0].state.headline.cause
    verdicts = Counter(run.state.verdict for run in runs)
    counts = ", ".join(f"{n} {verdict}{_reasons(runs, verdict)}" for verdict, n in
                       verdicts.most_common())
    bad = verdicts["critical"]
    low, high = wilson(bad, len(runs))
    share = f"critical: {percent(bad / len(runs))}, 95 %: {percent(low)} to {percent(high)}"
    return f"{len(runs)} runs: {counts} ({share})"


def _reasons(runs: Sequence[PostMortem], verdict: str) -> str:
    """The rules that the headlines of the runs with a verdict name."""
    of = Counter(run.state.headline.rule for run in runs if run.state.verdict == verdict)
    of.pop(None, None)
    return f" [{', '.join(f'{rule} {n}' for rule, n in of.most_common())}]" if of else ""


def spread(of: Spread | None) -> str:
    """A mean over runs with the lowest and the highest; the value itself where it is one run's."""
    if of is None:
        return "–"
    if of.runs == 1:
        return number(of.mean)
    return f"{number(of.mean)} ({number(of.low)} to {number(of.high)})"


def _reward(facts: Comparison) -> str:
    a, b = facts.arms
    if facts.common_step is None or not (a.reward_at_common and b.reward_at_common):
        return ""
    several = any(len(arm.runs) > 1 for arm in (a, b))
    means = ", mean over the runs and their lowest and highest" if several else ""
    tops = [
        Spread.of(run.signals["reward"].highest for run in arm.runs if "reward" in run.signals)
        for arm in (a, b)
    ]
    return (
        f"At step {facts.common_step}, the last that every run has, the reward (ten-step "
        f"mean{means}) is {spread(a.reward_at_common)} in A and "
        f"{spread(b.reward_at_common)} in B; at its best it was {spread(tops[0])} and "
        f"{spread(tops[1])}."
    )


def _alarm(facts: Comparison) -> str:
    a, b = (firing_text(arm, DECAY) for arm in facts.arms)
    if a == b == "–":
        return "The decay alarm fired in neither."
    if "–" in (a, b):
        one, at, other = ("A", a, "B") if b == "–" else ("B", b, "A")
        return f"The decay alarm fired in {one} {at}; in {other} it never did."
    return f"The decay alarm fired in A {a}; in B {b}."


def firing_text(arm: Arm, rule: str) -> str:
    """When an alarm first fired in an arm, and how long before the collapse; a dash if it never
    did."""
    firings = [
        (run.alarm_step(a), run.event(COLLAPSE))
        for run in arm.runs for a in run.alarms if a.rule == rule
    ]
    steps = [step for step, _ in firings if step is not None]
    if not firings:
        return "–"
    ahead = [n for step, collapse in firings if (n := _lead(step, collapse))]
    if len(arm.runs) == 1:
        before = f", {plural(ahead[0], 'step')} before the collapse" if ahead else ""
        return f"at step {steps[0]}{before}" if steps else "at no step"
    many = f"in {len(firings)} of {len(arm.runs)} runs"
    if not steps:
        return many
    left = f", median {number(median(ahead))} steps before the collapse" if ahead else ""
    return f"{many}, median step {number(median(steps), 6)} ({min(steps)}–{max(steps)}){left}"


def _lead(step: int | None, collapse: Event | None) -> int:
    return 0 if step is None or collapse is None else max(0, collapse.alarm_step - step)


def _settings(facts: Comparison) -> str:
    if not any(run.run.config for arm in facts.arms for run in arm.runs):
        return ""
    rows = [row for row in facts.settings if not row.one_sided]
    if not rows:
        return "No setting that both recorded differs."
    cells = [(row.setting, *row.values_of_arms()) for row in rows[:NAMED]]
    text = "; ".join(f"{name} {a} in A, {b} in B" for name, a, b in cells)
    more = f"; and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    many = "One setting differs" if len(rows) == 1 else f"{len(rows)} settings differ"
    return f"{many}: {text}{more}."


def limits(facts: Comparison) -> list[str]:
    """What the comparison cannot tell, and why."""
    arms, rows = facts.arms, facts.settings
    lacking = [_chance([len(arm.runs) for arm in arms])]
    both, only = ([row for row in rows if row.one_sided == one] for one in (False, True))
    if bare := [arm.title for arm in arms if not all(r.run.config for r in arm.runs)]:
        lacking.append(
            f"In which settings the arms differ: {' and '.join(bare)} recorded no settings."
        )
    elif len(both) > 1:
        lacking.append(
            f"Which of the {len(both)} settings made the difference: they changed together."
        )
    if only and not bare:
        names = ", ".join(row.setting for row in only[:NAMED])
        more = f" and {len(only) - NAMED} more" if len(only) > NAMED else ""
        lacking.append(f"Settings that one arm did not record: {names}{more}.")
    grades = [sorted({run.state.evidence for run in arm.runs}) for arm in arms]
    if grades[0] != grades[1]:
        bases = [" and ".join(EVIDENCE[g] for g in of) for of in grades]
        lacking.append(f"The verdicts are not equally strong: A has {bases[0]}, B {bases[1]}.")
    rules = [{run.run.correct_rule for run in arm.runs} for arm in arms]
    if rules[0] != rules[1]:
        lacking.append("Whether “correct” means the same: the arms were recorded with other rules.")
    return lacking


def _chance(sizes: Sequence[int]) -> str:
    if min(sizes) == 1:
        return (
            "How much of it is chance: with one run in an arm, another seed of the same settings "
            "may end otherwise."
        )
    return (
        f"More than {sizes[0]} and {sizes[1]} runs show: intervals are those of counts, no test of "
        "a difference was made, and a mean of runs that break at different steps falls more "
        "slowly than any of them."
    )
