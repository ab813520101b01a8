"""From the runs of two arms to their comparison."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.version import __version__
from ...diagnosis.assess import Assessment
from ...diagnosis.registry import Rule
from ...explore.comparison import means_at, row_at
from ...explore.settings import NOT_SET, flat
from ...runs import Run
from ..analysis import REPORTED, post_mortem
from ..facts import PostMortem, RunFacts
from ..series import AveragedSeries, Series, averaged, steps_with_rows
from .facts import Arm, Comparison, Setting, Spread
from .sentences import limits, summary

ARMS_SCHEMA = 1
LETTERS = "AB"

Runs = Mapping[str, Sequence[Run]]  # arm → its runs
Arms = Sequence[Sequence[RunFacts]]


def arms_of(run_groups: Sequence[Sequence[Run]]) -> dict[str, list[Run]]:
    """Two arms, by what the reader named: two runs or folders of runs, each an arm; or more, whose
    runs were recorded with one `group` each, of which there must be two.

    `run_groups` are the runs of each place that was named. Raises UsageError with the way out.
    """
    if len(run_groups) == 2:
        if {run.place for run in run_groups[0]} & {run.place for run in run_groups[1]}:
            raise UsageError("A run is on both sides; name two different ones.")
        return dict(zip(_names(run_groups), map(list, run_groups), strict=True))
    groups: dict[str, list[Run]] = {}
    for run in (run for of in run_groups for run in of):
        group = run.info.get("group")
        if not group:
            raise UsageError(
                f"A report puts two arms side by side, and {run.name} was recorded without a "
                "group. Name two runs, or two folders with the runs of an arm each."
            )
        groups.setdefault(str(group), []).append(run)
    if len(groups) != 2:
        number = f"{len(groups)} groups" if len(groups) > 1 else "one group"
        raise UsageError(f"A report puts two arms side by side; these runs are of {number}.")
    return groups


def _names(run_groups: Sequence[Sequence[Run]]) -> list[str]:
    """Names of runs, and of the folders that hold several; places where these are the same."""
    places = [of[0].place if len(of) == 1 else of[0].place.rsplit("/", 1)[0] for of in run_groups]
    names = [
        of[0].name if len(of) == 1 else place.rsplit("/", 1)[-1]
        for of, place in zip(run_groups, places, strict=True)
    ]
    return names if names[0] != names[1] else places


def compare_arms(
    arms: Runs, matched: Mapping[str, Any], arl: float | None = None,
    rules: Sequence[Rule] | None = None,
    each: Callable[[Sequence[Run]], Iterable[Run]] = iter,
) -> Comparison:
    """What happened in two arms, side by side.

    `matched` is what `comparison.compare` says of all their runs in order, and `each` iterates over
    the runs of an arm, for example with a progress bar.
    """
    reports = [[post_mortem(run, arl, rules) for run in each(runs)] for runs in arms.values()]
    common = _common([run for of in reports for run in of])
    compared = [
        _arm(letter, name, of, [run.assess(arl, rules) for run in arms[name]], common)
        for letter, name, of in zip(LETTERS, arms, reports, strict=True)
    ]
    runs_of = [[run.run for run in arm.runs] for arm in compared]
    facts = Comparison(
        schema=ARMS_SCHEMA,
        lldscope=__version__,
        made=time.time(),
        arms=compared,
        settings=differences(runs_of),
        varying=varying(runs_of),
        matched=_matched(matched, [len(arm.runs) for arm in compared]),
        common_step=common,
    )
    return replace(facts, summary=summary(facts), limits=limits(facts))


def _arm(
    letter: str, name: str, runs: list[PostMortem], assessments: Sequence[Assessment],
    common: int | None,
) -> Arm:
    evidence = [assessment.evidence for assessment in assessments]
    signals: Mapping[str, Series] | Mapping[str, AveragedSeries] = runs[0].signals
    if len(runs) > 1:
        curves = {name: [(e.step, e.column(name)) for e in evidence] for name in REPORTED}
        signals = {name: s for name, of in curves.items() if (s := averaged(of, name))}
    reward = None
    if common is not None:
        rows = [row_at(e.step.astype(float), common) for e in evidence]
        means = (means_at(a, "reward", [row]) for a, row in zip(assessments, rows, strict=True))
        reward = Spread.of(mean for (mean,) in means)
    kinds = dict(Counter(run.kind for run in runs))
    carried = steps_with_rows([e.step for e in evidence])
    return Arm(letter, name, runs, kinds, carried, signals, reward)


def _matched(matched: Mapping[str, Any], sizes: Sequence[int]) -> dict[str, Any]:
    """Values at matched points by arm; `sizes` are the numbers of runs of the arms."""
    ends = np.cumsum(sizes)
    signals = [
        {"signal": of["signal"], "unit": of["unit"], "values": [
            [Spread.of(point[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
            for point in of["values"]
        ]}
        for of in matched["signals"]
    ]
    return {**{name: matched[name] for name in ("align", "every", "points")}, "signals": signals}


def _common(runs: Sequence[PostMortem]) -> int | None:
    firsts = [run.run.first_step for run in runs if run.run.first_step is not None]
    lasts = [run.run.last_step for run in runs if run.run.last_step is not None]
    if len(lasts) < len(runs) or max(firsts) > min(lasts):
        return None
    return min(lasts)


# -- settings -------------------------------------------------------------------------------------


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
