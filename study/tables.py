"""Tables and sentences of docs/research/study.md, as Markdown, from the results alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import mean, median

import numpy as np

from lldscope.evaluation.scoring import wilson

from .arms import Arm, Kind
from .results import Result, Results

LLDS, GRPO = "grpo-llds-action", "grpo"
EM_STEPS = (0, 50, 100, 150)


def progress(results: Results) -> str:
    """How much of the plan there is, and who made it."""
    text = f"{len(results.runs)} of {len(results.plan)} runs so far."
    if len(results.runs) == len(results.plan):
        text = f"All {len(results.plan)} runs."
    if results.outdated:
        text += (
            f" {len(results.outdated)} more were made with other settings and are left out: "
            f"{', '.join(results.outdated)}."
        )
    if results.runs:
        times = [r.minutes for r in results.runs if r.minutes is not None]
        codes = sorted({r.line["code"] for r in results.runs})
        machines = sorted({r.line["processor"] for r in results.runs})
        text += (
            f" {sum(times) / 60:.1f} core hours for the {len(times)} of them whose time is known, "
            f"on {'; '.join(machines)}, by the code of {', '.join(codes)}."
        )
    return text


def outcomes(results: Results) -> str:
    """Per arm: collapses and rewards, and greedy exact match on facts that are not trained on."""
    head = (
        "arm", "runs", "collapsed (95 %)", "declined", "best reward", "final reward",
        *(f"EM, step {step}" for step in EM_STEPS), "EM, end", "EM ends above its start",
    )
    return table(head, _per_arm(results, _outcome_cells))


def _outcome_cells(runs: list[Result]) -> list[str]:
    k = sum(r.collapsed for r in runs)
    low, high = wilson(k, len(runs))
    scores = [r.em for r in runs if len(r.em) > 1]
    ends = [list(em.values())[-1] for em in scores]
    better = sum(end > em[0] for end, em in zip(ends, scores, strict=True) if 0 in em)
    return [
        f"{k} of {len(runs)} ({100 * low:.0f}–{100 * high:.0f} %)",
        str(sum(r.outcome == "declined" for r in runs)),
        mean_of(r.best for r in runs),
        mean_of(r.final for r in runs),
        *(mean_of(em.get(step) for em in scores) for step in EM_STEPS),
        mean_of(ends),
        f"{better} of {len(scores)}",
    ]


def alarms(results: Results) -> str:
    """Per arm: Δ, the decay alarm, and what it was worth."""
    head = (
        "arm", "runs", "mean Δ", "median Δ", "runs with a decay alarm", "its step",
        "runs whose reward fell", "alarm before the fall", "steps before it",
        "alarms without a fall",
    )
    return table(head, _per_arm(results, _alarm_cells))


def _alarm_cells(runs: list[Result]) -> list[str]:
    fell = [r for r in runs if r.fall is not None]
    stable = [r for r in runs if r.fall is None]
    return [
        mean_of((r.delta for r in runs), "+.2f"),
        mean_of((r.delta_median for r in runs), "+.2f"),
        f"{sum(r.decay is not None for r in runs)} of {len(runs)}",
        spread(r.decay for r in runs),
        f"{len(fell)} of {len(runs)}",
        f"{sum(r.lead is not None for r in fell)} of {len(fell)}" if fell else "–",
        spread(r.lead for r in fell),
        f"{sum(r.decay is not None for r in stable)} of {len(stable)}" if stable else "–",
    ]


# -- cells ----------------------------------------------------------------------------------------


def arms_of(results: Results, kinds: Sequence[Kind]) -> list[Arm]:
    """The arms of some kinds that have runs, in the order of the plan."""
    arms: Iterable[Arm] = dict.fromkeys(p.arm for p in results.plan)
    return [arm for arm in arms if arm.kind in kinds and results.of(arm.name)]


def _per_arm(results: Results, cells: Callable[[list[Result]], list[str]]) -> list[list[str]]:
    """A row for each arm of the comparison that has runs; sweep, levers and faults have tables of
    their own."""
    rows = []
    for arm in arms_of(results, ("main", "control", "variant")):
        runs = results.of(arm.name)
        n = so_far(len(runs), results.planned(arm.name))
        rows.append([f"`{arm.name}` {arm.words}", n, *cells(runs)])
    return rows


def so_far(n: int, planned: int) -> str:
    """A number of runs, and of how many if some are missing."""
    return str(n) if n == planned else f"{n} of {planned} so far"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    if not rows:
        return "No runs yet."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def mean_of(values: Iterable[float | None], form: str = ".2f") -> str:
    """The mean of what there is."""
    numbers = [v for v in values if v is not None and np.isfinite(v)]
    return format(mean(numbers), form) if numbers else "–"


def spread(values: Iterable[int | None]) -> str:
    """Median and range."""
    numbers = sorted(v for v in values if v is not None)
    if not numbers:
        return "–"
    if len(numbers) == 1:
        return str(numbers[0])
    return f"{median(numbers):g} ({numbers[0]}–{numbers[-1]})"


def or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
