"""What the stores of metric loggers have in common: rows of named values, and several runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from .reading import as_step, natural_key
from .source import AttemptCounter, Findings, Scalars

# The trainer's own count of steps, where it logs one: Hugging Face's callbacks for W&B and Trackio
# let the logger count its calls and put the step among the values, as OpenRLHF does.
_EVALUATED = "eval/global_step"  # of a row of evaluations, and of no other
STEPS = (
    "train/global_step", "training/global_step", "global_step", "trainer/global_step", _EVALUATED,
)
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SHOWN = 20
_MOST_NAMES = 10_000  # of metrics in one item


Point = tuple[str, float, int, float | None]  # name, value, step, Unix time


def group_points(points: Iterable[Point]) -> Iterator[Scalars]:
    """The means at points in the order of writing; neighbours of one step are one item."""
    attempts_seen, now = AttemptCounter(), None
    for name, value, step, time in points:
        attempt = attempts_seen.of(step, (name,))
        full = now is not None and len(now.values) >= _MOST_NAMES
        if now is None or full or (now.step, now.attempt) != (step, attempt):
            if now is not None:
                yield now
            now = Scalars(step, {}, time, attempt)
        now.values[name] = value
    if now is not None:
        yield now


class LoggerCalls:
    """The calls of a logger, in the order in which it was called."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._attempts = AttemptCounter()
        self._trainer_step: int | None = None  # as last seen

    def record(self, row: Mapping[str, Any], step: Any, time: float | None) -> Scalars | None:
        """The numbers of one call, a row. `step` is the logger's own, for logs in which the trainer
        has not logged its step so far; afterwards rows without it belong to its last step. None
        for a row without a number, and, counted, if there is no step."""
        values = {n: v for n, v in numbers(row, self._findings).items() if not n.startswith("_")}
        if not values:
            return None
        name = next((name for name in STEPS if name in values), None)
        trainer_step = self._trainer_step if name is None else values[name]
        count = as_step(step if trainer_step is None else trainer_step)
        if count is None:
            self._findings.skip("rows without a step")
            return None
        if name not in (None, _EVALUATED):
            self._trainer_step = count
        return Scalars(count, values, time, self._attempts.of(count, values))


def numbers(row: Mapping[str, Any], findings: Findings, prefix: str = "") -> dict[str, float]:
    """The numbers of a row, those of nested rows under names joined by dots; NULL is left out."""
    result: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, str):
            value = _NUMBERS.get(value, value)
        if isinstance(value, int | float):  # True is 1
            is_huge = isinstance(value, int) and abs(value) >= 1e308
            result[prefix + name] = math.copysign(math.inf, value) if is_huge else float(value)
        elif isinstance(value, Mapping) and "_type" not in value:
            result |= numbers(value, findings, f"{prefix}{name}.")
        elif value is not None and not name.startswith("_"):
            findings.skip("values that are no number (texts, tables, histograms)")
    return result


def choose_run(query: str | None, runs: Mapping[str, str], where: Path) -> str | None:
    """The id of the run that is meant, of `runs` (id → name); None where there is no run.

    Raises UsageError with the sorted names if there are several and none was requested, or if the
    requested one is not there.
    """
    if query is None and len(runs) <= 1:
        return next(iter(runs), None)
    matches = [i for i, name in runs.items() if query in (i, name)]
    if len(matches) == 1:
        return matches[0]
    names = list(runs.values())
    ordered = sorted(((name, run) for run, name in runs.items()), key=str)  # ids may be anything
    listed = ", ".join(n if names.count(n) == 1 else f"{n} ({i})" for n, i in ordered)
    if len(runs) > _SHOWN:
        listed = ", ".join(listed.split(", ")[:_SHOWN]) + ", …"
    if query is None:
        raise UsageError(f"{where} holds {len(runs)} runs; say which with --run: {listed}.")
    many = "more than one run" if matches else "no run"
    raise UsageError(f"{where} holds {many} called {query}. It holds: {listed}.")


def of_one_run(
    paths: Sequence[Path], findings: Findings, run_of: Callable[[Path], str]
) -> list[Path]:
    """Those of the paths that belong to the run that is meant; `run_of` names a path's run.

    Raises UsageError as `choose_run` does.
    """
    runs = {run: Path(run).name for run in map(run_of, paths)}
    where = Path(os.path.commonpath([path.absolute() for path in paths])) if paths else Path()
    run = choose_run(findings.request.run if len(runs) > 1 else None, runs, where)
    return sorted((path for path in paths if run_of(path) == run), key=natural_key)
