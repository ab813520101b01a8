"""Sentences about two arms: how they differ, and what this comparison cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ...core.numbers import number, percent
from ...evaluation.scoring import wilson
from ..facts import Kind, PostMortem
from ..sentences import lead
from .facts import Arm, Comparison, Spread

NAMED = 4  # settings that a sentence names
LOST = 0.1  # of the best reward, from which the loss is named
DECAY = "lld-decay"

_KINDS: dict[Kind, str] = {
    "collapsed": "collapsed",
    "decayed": "lost likelihood without a collapse",
    "healthy": "showed no LLD and raised no warning",
    "alarmed": "showed no LLD, with a warning",
    "failed": "had another critical alarm",
    "short": "had too few steps to judge",
    "empty": "had no step",
}
_GRADES = {
    "delta": "Δ",
    "level": "likelihood levels",
    "symptoms": "reward, entropy and gradients alone",
}


def summary(facts: Comparison) -> list[str]:
    """How the arms differ, in at most four sentences."""
    a, b = facts.arms
    fates = f"{a.title} {_fate(a)}; {b.title} {_fate(b)}."
    return [s for s in (fates, _reward(facts), _alarm(facts), _settings(facts)) if s]


def _fate(arm: Arm) -> str:
    runs = arm.runs
    if len(runs) > 1:
        counts = [f"{n} {words}" for kind, words in _KINDS.items() if (n := arm.kinds.get(kind))]
        dead = arm.kinds.get("collapsed", 0)
        low, high = wilson(dead, len(runs))
        share = (
            f" (collapsed: {percent(dead / len(runs))}, 95 %: {percent(low)} to {percent(high)})"
        )
        return f"has {len(runs)} runs, of which {', '.join(counts)}{share}"
    run = runs[0]
    from_step = "" if run.fall is None else f" from step {run.fall} on"
    if run.kind == "collapsed":
        return f"lost likelihood{from_step} and collapsed at step {run.collapse}"
    if run.kind == "decayed":
        return f"lost likelihood{from_step}, without a collapse"
    if run.kind == "failed" and run.supported:
        return f"went wrong because of {' and '.join(run.supported)}"
    if run.kind in ("healthy", "alarmed") and run.state.evidence == "symptoms":
        alarms = "a warning" if run.kind == "alarmed" else "no warning"
        return f"has no likelihood recorded and raised {alarms}{_reward_lost(run)}"
    return f"{_KINDS[run.kind]}{_reward_lost(run)}"


def _reward_lost(run: PostMortem) -> str:
    """How far the reward ended under its best, where that is worth a word."""
    reward = run.outline.get("reward")
    if reward is None or not reward.highest > 0:
        return ""
    loss = 1 - reward.end / reward.highest
    return f"; its reward ended {percent(loss)} under its best" if loss >= LOST else ""


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
        Spread.of(run.outline["reward"].highest for run in arm.runs if "reward" in run.outline)
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
    """When an alarm fired in an arm, and how long before the collapse; a dash if it never did."""
    runs = arm.runs
    alarms = [(run, a) for run in runs for a in run.alarms if a.rule == rule]
    steps = [a.step for _, a in alarms if a.step is not None]
    if not alarms:
        return "–"
    ahead = [n for run, a in alarms if (n := run.lead(a, run.collapse)[0])]
    if len(runs) == 1:
        run, alarm = alarms[0]
        before = f", {lead(run, alarm, run.collapse)} before the collapse" if ahead else ""
        return f"at step {steps[0]}{before}" if steps else "at no step"
    many = f"in {len(alarms)} of {len(runs)} runs"
    if not steps:
        return many
    left = f", median {number(median(ahead))} steps before the collapse" if ahead else ""
    return f"{many}, median step {number(median(steps), 6)} ({min(steps)}–{max(steps)}){left}"


def _settings(facts: Comparison) -> str:
    if not any(run.run.config for arm in facts.arms for run in arm.runs):
        return ""
    rows = [row for row in facts.settings if not row.one_sided]
    if not rows:
        return "No setting that both recorded differs."
    cells = [(row.setting, *row.shown()) for row in rows[:NAMED]]
    text = "; ".join(f"{name} {a} in A, {b} in B" for name, a, b in cells)
    more = f"; and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    many = "One setting differs" if len(rows) == 1 else f"{len(rows)} settings differ"
    return f"{many}: {text}{more}."


# -- what this cannot tell -------------------------------------------------------------------------


def limits(facts: Comparison) -> list[str]:
    """What the comparison cannot tell, and why."""
    arms = facts.arms
    sizes = [len(arm.runs) for arm in arms]
    unknown = [*_cause(facts), *_chance(sizes), *_unlike(arms)]
    for arm in arms:
        live = [run for run in arm.runs if run.state.life == "live"]
        if live:
            unknown.append(f"How {arm.title} ends: {_some(live, arm)} still going.")
        damage = sum(len(run.state.damaged) for run in arm.runs)
        if damage:
            unknown.append(f"What {damage} damaged parts of {arm.title} held; they are left out.")
        drops = sum(sum(run.state.dropped.values()) for run in arm.runs)
        if drops:
            unknown.append(f"What the recorder of {arm.title} had to drop: {drops:,} rows.")
    for arm, other in (arms, arms[::-1]):
        if missing := [name for name in other.signals if name not in arm.signals]:
            unknown.append(f"What only {other.title} measured: {', '.join(missing)}.")
    return unknown


def _some(runs: Sequence[PostMortem], arm: Arm) -> str:
    if len(arm.runs) == 1:
        return "it is"
    return f"{len(runs)} of {len(arm.runs)} runs {'is' if len(runs) == 1 else 'are'}"


def _cause(facts: Comparison) -> list[str]:
    rows = facts.settings
    bare = [arm.title for arm in facts.arms if not all(r.run.config for r in arm.runs)]
    if bare:
        return [f"In which settings the arms differ: {' and '.join(bare)} recorded no config."]
    unknown = []
    if len(both := [row for row in rows if not row.one_sided]) > 1:
        unknown += [
            f"Which of the {len(both)} settings made the difference: they changed together."
        ]
    if only := [row.setting for row in rows if row.one_sided]:
        more = f" and {len(only) - NAMED} more" if len(only) > NAMED else ""
        text = f"{', '.join(only[:NAMED])}{more}"
        unknown += [f"Whether these settings were the same, which one arm did not record: {text}."]
    return unknown


def _chance(sizes: Sequence[int]) -> list[str]:
    if min(sizes) == 1:
        return [
            "How much of it is chance: with one run in an arm, another seed of the same settings "
            "may end otherwise."
        ]
    return [
        f"More than {sizes[0]} and {sizes[1]} runs show: intervals are those of counts, and no "
        "test of a difference was made.",
        "The course of a single run: where runs break at different steps, their mean falls more "
        "slowly than any of them; the band shows how far apart they are.",
    ]


def _unlike(arms: Sequence[Arm]) -> list[str]:
    unknown = []
    grades = [sorted({run.state.evidence for run in arm.runs}) for arm in arms]
    if grades[0] != grades[1]:
        rests = [" and ".join(_GRADES[g] for g in of) for of in grades]
        unknown.append(
            f"Whether the verdicts are equally strong: A is judged on {rests[0]}, B on {rests[1]}."
        )
    rules = [{run.run.correct_rule for run in arm.runs} for arm in arms]
    if rules[0] != rules[1]:
        unknown.append("Whether “correct” means the same: the arms were recorded with other rules.")
    lasts = [max((run.run.last_step or 0) for run in arm.runs) for arm in arms]
    if lasts[0] != lasts[1]:
        shorter = arms[lasts.index(min(lasts))]
        unknown.append(f"What {shorter.title} would have done after step {min(lasts)}.")
    return unknown
