"""Two arms side by side, as plain data that goes into JSON. An arm is a run, or several runs that
differ in nothing but chance, such as seeds; their signals are averaged, with the spread.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...alarms.registry import Rule
from ...core.errors import UsageError
from ...core.version import __version__
from ...runs import Run
from ...signals.evidence import SMOOTH
from ..facts import WITNESSES, post_mortem
from ..series import averaged, carried
from ..settings import differences, varying
from .sentences import limits, summary

ARMS_SCHEMA = 1
LETTERS = "AB"
_OF_A_RUN = (
    "run", "state", "kind", "phases", "boundaries", "fall", "collapse", "reward_crash", "outline",
    "links", "look_alikes", "alarms", "damaged", "dropped", "summary",
)  # fmt: skip

Arms = Mapping[str, Sequence[Run]]  # name → its runs


def arms_of(named: Sequence[Sequence[Run]]) -> dict[str, list[Run]]:
    """Two arms, by what the reader named: two runs or folders of runs, each an arm; or more, whose
    runs were recorded with one `group` each, of which there must be two.

    `named` are the runs of each place that was named. Raises UsageError with the way out.
    """
    if len(named) == 2:
        if {run.place for run in named[0]} & {run.place for run in named[1]}:
            raise UsageError("A run is on both sides; name two different ones.")
        return dict(zip(_names(named), map(list, named), strict=True))
    groups: dict[str, list[Run]] = {}
    for run in (run for of in named for run in of):
        group = run.info.get("group")
        if not group:
            raise UsageError(
                f"A report puts two arms side by side, and {run.name} was recorded without a "
                "group. Name two runs, or two folders with the runs of an arm each."
            )
        groups.setdefault(str(group), []).append(run)
    if len(groups) != 2:
        found = f"{len(groups)} groups" if len(groups) > 1 else "one group"
        raise UsageError(f"A report puts two arms side by side; these runs are of {found}.")
    return groups


def _names(named: Sequence[Sequence[Run]]) -> list[str]:
    """Names of runs, and of the folders that hold several; places where these are the same."""
    places = [of[0].place if len(of) == 1 else of[0].place.rsplit("/", 1)[0] for of in named]
    names = [
        of[0].name if len(of) == 1 else place.rsplit("/", 1)[-1]
        for of, place in zip(named, places, strict=True)
    ]
    return names if names[0] != names[1] else places


def compare_arms(
    arms: Arms, matched: Mapping[str, Any], arl: float | None = None,
    rules: Sequence[Rule] | None = None,
    each: Callable[[Sequence[Run]], Iterable[Run]] = iter,
) -> dict[str, Any]:  # fmt: skip
    """What happened in two arms, side by side; `matched` is what `comparison.compare` says of all
    their runs in order, and `each` goes through the runs of an arm. What was not measured is None.
    """
    facts: dict[str, Any] = {
        "schema": ARMS_SCHEMA,
        "lldscope": __version__,
        "made": time.time(),
        "arms": [
            _arm(letter, name, runs, arl, rules, each)
            for letter, (name, runs) in zip(LETTERS, arms.items(), strict=True)
        ],
    }
    common = _common(facts)
    for arm, runs in zip(facts["arms"], arms.values(), strict=True):
        arm["reward_at_common"] = _rewards(runs, common, arl, rules)
    told = [[run["run"] for run in arm["runs"]] for arm in facts["arms"]]
    facts["settings"] = differences(told)
    facts["varying"] = varying(told)
    facts["matched"] = _folded(matched, [len(runs) for runs in arms.values()])
    facts["common_step"] = common
    facts["summary"] = summary(facts)
    facts["limits"] = limits(facts)
    return facts


def _arm(
    letter: str, name: str, runs: Sequence[Run], arl: float | None, rules: Sequence[Rule] | None,
    each: Callable[[Sequence[Run]], Iterable[Run]],
) -> dict[str, Any]:  # fmt: skip
    found, curves, steps = [], [], []
    whole: dict[str, Any] = {}
    for run in each(runs):
        whole = post_mortem(run, arl, rules)
        found.append({key: whole[key] for key in _OF_A_RUN})
        evidence = run.assess(arl, rules).evidence
        curves.append({name: (evidence.step, evidence.column(name)) for name in WITNESSES})
        steps.append(evidence.step)
    if len(runs) == 1:
        signals = whole["signals"]
    else:
        means = {name: averaged([of[name] for of in curves], name) for name in WITNESSES}
        signals = {name: s for name, s in means.items() if s}
    return {
        "letter": letter,
        "name": name,
        "runs": found,
        "kinds": dict(Counter(run["kind"] for run in found)),
        "carried": carried(steps),
        "signals": signals,
    }


def _folded(matched: Mapping[str, Any], sizes: Sequence[int]) -> dict[str, Any]:
    """Matched points by arm: of each value the mean over the runs that have it, the lowest, the
    highest and their number; None where no run has one."""
    ends = np.cumsum(sizes)
    told = []
    for of in matched["signals"]:
        rows = []
        for values in of["values"]:
            sides = [values[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            rows.append([_spread([v for v in side if v is not None]) for side in sides])
        told.append({"signal": of["signal"], "unit": of["unit"], "values": rows})
    return {key: matched[key] for key in ("align", "every", "points")} | {"signals": told}


def _spread(values: Sequence[float]) -> dict[str, Any] | None:
    if not values:
        return None
    mean = sum(values) / len(values)
    return {"mean": mean, "low": min(values), "high": max(values), "runs": len(values)}


def _rewards(
    runs: Sequence[Run], step: int | None, arl: float | None, rules: Sequence[Rule] | None
) -> dict[str, Any] | None:
    """Trailing means of the reward at a step, over the runs."""
    found = []
    if step is None:
        return None
    for run in runs:
        e = run.assess(arl, rules).evidence
        reward = e.column("reward")
        known = reward[(e.step <= step) & np.isfinite(reward)][-SMOOTH:]
        found += [float(known.mean())] if len(known) else []
    return _spread(found)


def _common(facts: Mapping[str, Any]) -> int | None:
    """The last step at which every run of both arms has a row."""
    lasts = [run["run"]["last_step"] for arm in facts["arms"] for run in arm["runs"]]
    firsts = [run["run"]["first_step"] for arm in facts["arms"] for run in arm["runs"]]
    if None in lasts or max(firsts) > min(lasts):
        return None
    return int(min(lasts))
