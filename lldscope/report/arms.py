"""Two arms side by side, as data: `Comparison.to_dict()` is `lldscope compare --format json`.

An arm is a run, or several runs that differ in nothing but chance, such as seeds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from ..core.errors import UsageError
from ..core.numbers import number, percent
from ..core.palette import EVIDENCE
from ..core.version import __version__
from ..diagnosis.registry import Rule
from ..evaluation.scoring import wilson
from ..explore.comparison import means_at, row_at
from ..explore.settings import NOT_SET, flat
from ..runs import Run
from .analysis import REPORT_SCHEMA, post_mortem
from .facts import PostMortem, RunFacts
from .sentences import plural

LONGEST = 80  # characters of a setting's value that are shown

# What the comparison says of each run; the rest is in the report of the run itself.
_OF_A_RUN = (
    "run", "state", "trend", "phases", "events", "fall", "signals", "look_alikes", "alarms",
    "damaged", "dropped", "summary",
)


@dataclass(frozen=True)
class Spread:
    """A value over `runs` that have one: mean, lowest and highest."""

    mean: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None where no run has one."""
        numbers = [v for v in values if v is not None]
        if not numbers:
            return None
        return cls(sum(numbers) / len(numbers), min(numbers), max(numbers), len(numbers))


@dataclass(frozen=True)
class Arm:
    """An arm, with its reward at the last step that every run of both has."""

    letter: str
    name: str
    runs: list[PostMortem]
    reward_at_common: Spread | None = None

    @property
    def title(self) -> str:
        return f"{self.letter} ({self.name})"


@dataclass(frozen=True)
class Setting:
    """A setting, named with dots where it is nested, and its values as text: a list per arm."""

    setting: str
    values: list[list[str]]

    @property
    def one_sided(self) -> bool:
        """Whether an arm did not record it."""
        return [NOT_SET] in self.values

    def values_of_arms(self) -> list[str]:
        """The values of each arm; of long ones the beginning."""
        return [", ".join(v[:LONGEST] + "…" * (len(v) > LONGEST) for v in of) for of in self.values]


@dataclass(frozen=True)
class Comparison:
    """Two arms. `common_step` is the last step at which every run of both has a row; None if there
    is none. `varying` are settings that take the same values in both arms, such as seeds."""

    schema: int
    lldscope: str
    made: float
    arms: list[Arm]
    settings: list[Setting]
    varying: list[str]
    common_step: int | None
    summary: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = asdict(self)
        for arm, plain in zip(self.arms, data["arms"], strict=True):
            runs = (run.to_dict() for run in arm.runs)
            plain["runs"] = [{name: run[name] for name in _OF_A_RUN} for run in runs]
        return data


# -- sentences -------------------------------------------------------------------------------------

NAMED = 4  # settings that a sentence names
DECAY, COLLAPSE = "lld-decay", "lld-collapse"


def summary(facts: Comparison) -> list[str]:
    """How the arms differ, in at most five sentences."""
    fates = [f"{arm.title}: {_fate(arm)}." for arm in facts.arms]
    return [s for s in (*fates, _reward(facts), _alarm(facts), _differences(facts)) if s]


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
    ahead = [
        event.alarm_step - step for step, event in firings
        if step is not None and event is not None and event.alarm_step > step
    ]
    if len(arm.runs) == 1:
        before = f", {plural(ahead[0], 'step')} before the collapse" if ahead else ""
        return f"at step {steps[0]}{before}" if steps else "at no step"
    many = f"in {len(firings)} of {len(arm.runs)} runs"
    if not steps:
        return many
    left = f", median {number(median(ahead))} steps before the collapse" if ahead else ""
    return f"{many}, median step {number(median(steps), 6)} ({min(steps)}–{max(steps)}){left}"


def _differences(facts: Comparison) -> str:
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


LETTERS = "AB"

Arms = Sequence[Sequence[RunFacts]]


def arms_of(run_groups: Sequence[Sequence[Run]]) -> dict[str, list[Run]]:
    """Two arms by name, from the runs of each place that was named: a run, or a folder of runs that
    differ in nothing but chance. Raises UsageError with the way out."""
    if len(run_groups) != 2:
        raise UsageError(
            "A report puts two arms side by side: name two runs, or two folders with the runs of "
            "an arm each."
        )
    if {run.place for run in run_groups[0]} & {run.place for run in run_groups[1]}:
        raise UsageError("A run is on both sides; name two different ones.")
    places = [of[0].place if len(of) == 1 else of[0].place.rsplit("/", 1)[0] for of in run_groups]
    names = [
        of[0].name if len(of) == 1 else place.rsplit("/", 1)[-1]
        for of, place in zip(run_groups, places, strict=True)
    ]
    names = names if names[0] != names[1] else places  # places where names are the same
    return dict(zip(names, map(list, run_groups), strict=True))


def compare_arms(
    arms: Mapping[str, Sequence[Run]], arl: float | None = None,
    rules: Sequence[Rule] | None = None,
    each: Callable[[Sequence[Run]], Iterable[Run]] = iter,
) -> Comparison:
    """What happened in two arms, name → runs, side by side. `each` iterates over the runs of an
    arm, for example with a progress bar."""
    reports = [[post_mortem(run, arl, rules) for run in each(runs)] for runs in arms.values()]
    common = _common([run for of in reports for run in of])
    sides = [
        Arm(letter, name, of, _reward_at(arms[name], common, arl, rules))
        for letter, name, of in zip(LETTERS, arms, reports, strict=True)
    ]
    runs_of = [[run.run for run in arm.runs] for arm in sides]
    facts = Comparison(
        REPORT_SCHEMA, __version__, time.time(), sides, differences(runs_of), varying(runs_of),
        common,
    )
    return replace(facts, summary=summary(facts), limits=limits(facts))


def _reward_at(
    runs: Sequence[Run], step: int | None, arl: float | None, rules: Sequence[Rule] | None
) -> Spread | None:
    """The trailing mean of the reward at a step, over the runs."""
    if step is None:
        return None
    means = []
    for run in runs:
        assessment = run.assess(arl, rules)
        row = row_at(assessment.evidence.step.astype(float), step)
        means += means_at(assessment, "reward", [row])
    return Spread.of(means)


def _common(runs: Sequence[PostMortem]) -> int | None:
    firsts = [run.run.first_step for run in runs if run.run.first_step is not None]
    lasts = [run.run.last_step for run in runs if run.run.last_step is not None]
    if len(lasts) < len(runs) or max(firsts) > min(lasts):
        return None
    return min(lasts)


def differences(arms: Arms) -> list[Setting]:
    """Settings whose values are not the same in all arms.

    Left out are those that only repeat the name of the run, and those that take the same values in
    every arm, such as seeds.
    """
    return [s for s in _settings(arms) if any(of != s.values[0] for of in s.values)]


def varying(arms: Arms) -> list[str]:
    """Settings that differ within an arm, but take the same values in every arm."""
    return [
        s.setting for s in _settings(arms)
        if len(s.values[0]) > 1 and all(of == s.values[0] for of in s.values)
    ]


def _settings(arms: Arms) -> list[Setting]:
    flat = [[dict(_of_run(run)) for run in runs] for runs in arms]
    names = dict.fromkeys(name for runs in flat for run in runs for name in run)
    return [
        Setting(name, [sorted({run.get(name, NOT_SET) for run in runs}) for runs in flat])
        for name in names
    ]


def _of_run(run: RunFacts) -> Iterator[tuple[str, str]]:
    for value, name in ((run.trainer, "recorded by"), (run.correct_rule, "counts as correct")):
        if value:
            yield name, value
    for name, setting in flat(run.config).items():
        if not (name.endswith("name") and setting == run.name):
            yield name, setting
