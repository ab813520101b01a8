"""Sentences about two arms: how they differ, and what this comparison cannot tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ...core.numbers import number
from ...evaluation.scoring import wilson
from ..sentences import lead
from ..settings import NOT_SET, shown

Facts = Mapping[str, Any]
NAMED = 4  # settings that a sentence names
DECAY = "lld-decay"

_KINDS = {
    "collapsed": "collapsed",
    "decayed": "lost likelihood without a collapse",
    "healthy": "stayed well",
    "alarmed": "stayed well, with a warning",
    "failed": "had another critical alarm",
    "short": "had too few steps to judge",
    "empty": "had no step",
}
_GRADES = {"delta": "Δ", "level": "likelihood levels", "symptoms": "symptoms alone"}


def label(arm: Facts) -> str:
    """Letter and name of an arm."""
    return f"{arm['letter']} ({arm['name']})"


def summary(facts: Facts) -> list[str]:
    """How the arms differ, in at most four sentences."""
    a, b = facts["arms"]
    fates = f"{label(a)} {_fate(a)}; {label(b)} {_fate(b)}."
    return [told for told in (fates, _reward(facts), _alarm(facts), _settings(facts)) if told]


def _fate(arm: Facts) -> str:
    runs = arm["runs"]
    if len(runs) > 1:
        told = [f"{n} {_KINDS[kind]}" for kind in _KINDS if (n := arm["kinds"].get(kind))]
        dead = arm["kinds"].get("collapsed", 0)
        low, high = wilson(dead, len(runs))
        share = f" (collapsed: {dead / len(runs):.0%}, 95 %: {low:.0%} to {high:.0%})"
        return f"has {len(runs)} runs, of which {', '.join(told)}{share}"
    run = runs[0]
    from_step = "" if run["fall"] is None else f" from step {run['fall']} on"
    if run["kind"] == "collapsed":
        return f"lost likelihood{from_step} and collapsed at step {run['collapse']}"
    if run["kind"] == "decayed":
        return f"lost likelihood{from_step}, without a collapse"
    causes = [n for n, found in run["look_alikes"].items() if found["answer"] == "supported"]
    if run["kind"] == "failed" and causes:
        return f"went wrong by {' and '.join(causes)}"
    if run["kind"] in ("healthy", "alarmed") and run["state"]["evidence"] == "symptoms":
        return "shows nothing wrong in reward, entropy and gradients; likelihood was not recorded"
    return _KINDS[run["kind"]]


def spread(of: Facts | None) -> str:
    """A mean over runs with the lowest and the highest; the value itself where it is one run's."""
    if of is None:
        return "–"
    if of["runs"] == 1:
        return number(of["mean"])
    return f"{number(of['mean'])} ({number(of['low'])} to {number(of['high'])})"


def _reward(facts: Facts) -> str:
    a, b = facts["arms"]
    if facts["common_step"] is None or not (a["reward_at_common"] and b["reward_at_common"]):
        return ""
    several = any(len(arm["runs"]) > 1 for arm in (a, b))
    means = ", mean over the runs and their lowest and highest" if several else ""
    best = [
        [run["outline"]["reward"]["highest"] for run in arm["runs"] if "reward" in run["outline"]]
        for arm in (a, b)
    ]
    tops = [
        {"mean": sum(of) / len(of), "low": min(of), "high": max(of), "runs": len(of)} for of in best
    ]
    return (
        f"At step {facts['common_step']}, the last that every run has, the reward (ten-step "
        f"mean{means}) is {spread(a['reward_at_common'])} in A and "
        f"{spread(b['reward_at_common'])} in B; at its best it was {spread(tops[0])} and "
        f"{spread(tops[1])}."
    )


def _alarm(facts: Facts) -> str:
    a, b = (fired(arm, DECAY) for arm in facts["arms"])
    if a == b == "–":
        return "The decay alarm fired in neither."
    if "–" in (a, b):
        one, told, other = ("A", a, "B") if b == "–" else ("B", b, "A")
        return f"The decay alarm fired in {one} {told}; in {other} it never did."
    return f"The decay alarm fired in A {a}; in B {b}."


def fired(arm: Facts, rule: str) -> str:
    """When an alarm fired in an arm, and how long before the collapse; a dash if it never did."""
    runs = arm["runs"]
    alarms = [a for run in runs for a in run["alarms"] if a["rule"] == rule]
    steps = [a["step"] for a in alarms if a["step"] is not None]
    if len(runs) == 1:
        if not alarms:
            return "–"
        ahead = alarms[0]["steps_before_collapse"] and lead(alarms[0], "collapse")
        before = f", {ahead} before the collapse" if ahead else ""
        return f"at step {steps[0]}{before}" if steps else "at no step"
    if not alarms:
        return "–"
    told = f"in {len(alarms)} of {len(runs)} runs"
    if not steps:
        return told
    ahead = [x for a in alarms if (x := a["steps_before_collapse"])]
    left = f", median {number(median(ahead))} steps before the collapse" if ahead else ""
    return f"{told}, median step {number(median(steps), 6)} ({min(steps)}–{max(steps)}){left}"


def _settings(facts: Facts) -> str:
    if not any(run["run"]["config"] for arm in facts["arms"] for run in arm["runs"]):
        return ""
    rows = [row for row in facts["settings"] if not one_sided(row)]
    if not rows:
        return "No setting that both recorded differs."
    named = "; ".join(
        f"{row['setting']} {values(row, 0)} in A, {values(row, 1)} in B" for row in rows[:NAMED]
    )
    more = f"; and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    many = "One setting differs" if len(rows) == 1 else f"{len(rows)} settings differ"
    return f"{many}: {named}{more}."


def one_sided(row: Facts) -> bool:
    """Whether an arm did not record the setting."""
    return [NOT_SET] in row["values"]


def values(row: Facts, arm: int) -> str:
    """The values of a setting in an arm, shortened."""
    return ", ".join(shown(row)[arm])


# -- what this cannot tell -------------------------------------------------------------------------


def limits(facts: Facts) -> list[str]:
    """What the comparison cannot tell, and why."""
    arms = facts["arms"]
    sizes = [len(arm["runs"]) for arm in arms]
    told = [*_cause(facts), *_chance(sizes), *_unlike(arms)]
    for arm in arms:
        live = [run for run in arm["runs"] if run["state"]["life"] == "live"]
        if live:
            told.append(f"How {label(arm)} ends: {_some(live, arm)} still going.")
        broken = sum(len(run["damaged"]) for run in arm["runs"])
        if broken:
            told.append(f"What stood in {broken} damaged parts of {label(arm)}; they are left out.")
        lost = sum(sum(run["dropped"].values()) for run in arm["runs"])
        if lost:
            told.append(f"What the recorder of {label(arm)} had to drop: {lost:,} rows.")
    for arm, other in (arms, arms[::-1]):
        if missing := [name for name in other["signals"] if name not in arm["signals"]]:
            told.append(f"What only {label(other)} measured: {', '.join(missing)}.")
    return told


def _some(runs: Sequence[Any], arm: Facts) -> str:
    if len(arm["runs"]) == 1:
        return "it is"
    return f"{len(runs)} of {len(arm['runs'])} runs {'is' if len(runs) == 1 else 'are'}"


def _cause(facts: Facts) -> list[str]:
    rows = facts["settings"]
    bare = [label(arm) for arm in facts["arms"] if not all(r["run"]["config"] for r in arm["runs"])]
    if bare:
        return [f"In which settings the arms differ: {' and '.join(bare)} recorded no config."]
    told = []
    if len(both := [row for row in rows if not one_sided(row)]) > 1:
        told += [f"Which of the {len(both)} settings made the difference: they changed together."]
    if only := [row["setting"] for row in rows if one_sided(row)]:
        more = f" and {len(only) - NAMED} more" if len(only) > NAMED else ""
        named = f"{', '.join(only[:NAMED])}{more}"
        told += [f"Whether these settings were the same, which one arm did not record: {named}."]
    return told


def _chance(sizes: Sequence[int]) -> list[str]:
    if min(sizes) == 1:
        return [
            "How much of it is chance: with one run on a side, another seed of the same settings "
            "may end otherwise."
        ]
    return [
        f"More than {sizes[0]} and {sizes[1]} runs show: intervals are those of counts, and no "
        "test of a difference was made.",
        "The course of a single run: where runs break at different steps, their mean falls more "
        "slowly than any of them; the band shows how far they lie apart.",
    ]


def _unlike(arms: Sequence[Facts]) -> list[str]:
    told = []
    grades = [sorted({run["state"]["evidence"] for run in arm["runs"]}) for arm in arms]
    if grades[0] != grades[1]:
        rests = [" and ".join(_GRADES[g] for g in of) for of in grades]
        told.append(
            f"Whether verdicts weigh the same: those of A rest on {rests[0]}, those of B on "
            f"{rests[1]}."
        )
    rules = [{run["run"]["correct_rule"] for run in arm["runs"]} for arm in arms]
    if rules[0] != rules[1]:
        told.append("Whether “correct” means the same: the arms were recorded with other rules.")
    lasts = [max((run["run"]["last_step"] or 0) for run in arm["runs"]) for arm in arms]
    if lasts[0] != lasts[1]:
        shorter = arms[lasts.index(min(lasts))]
        told.append(f"What {label(shorter)} would have done after step {min(lasts)}.")
    return told
