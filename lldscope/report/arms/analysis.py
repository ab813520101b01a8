"""From the runs of two arms to their comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...core.errors import UsageError
from ...core.version import __version__
from ...diagnosis.registry import Rule
from ...explore.comparison import means_at, row_at
from ...explore.settings import NOT_SET, flat
from ...runs import Run
from ..analysis import REPORT_SCHEMA, post_mortem
from ..facts import PostMortem, RunFacts
from .facts import Arm, Comparison, Setting, Spread
from .sentences import limits, summary

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
