"""What the stores of metric loggers have in common: rows of named values, and several runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .reading import in_order
from .source import Attempts, Findings, Scalars

# The trainer's own count of steps, where it logs one: Hugging Face's callbacks for W&B and Trackio
# let the logger count its calls and put the step among the values.
STEPS = ("train/global_step", "training/global_step", "global_step", "trainer/global_step")
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NO_NUMBER = "values that are no number (texts, tables, histograms)"
_MOST_STEP = 2**31 - 1
_SHOWN = 20


class Starts:
    """Counts the starts of a run that logs value by value: one whose step goes back tells of one.
    Each name is looked at by itself, because some stores hold all steps of one and then all of the
    next."""

    def __init__(self) -> None:
        self.attempt = 1
        self._last: dict[str, int] = {}

    def of(self, name: str, step: int) -> int:
        if step < self._last.get(name, step):
            self.attempt += 1
            self._last = {}
        self._last[name] = step
        return self.attempt


def joined(points: Iterable[tuple[str, float, int, float | None]]) -> Iterable[Scalars]:
    """Points (name, value, step, Unix time) in the order of writing; neighbours of one step are
    one answer."""
    starts, now = Starts(), None
    for name, value, step, time in points:
        attempt = starts.of(name, step)
        if now is None or (now.step, now.attempt) != (step, attempt):
            if now is not None:
                yield now
            now = Scalars(step, {}, time, attempt)
        now.values[name] = value
    if now is not None:
        yield now


def record(
    row: Mapping[str, Any], step: Any, time: float | None, attempts: Attempts, found: Findings
) -> Scalars | None:
    """One call of a logger: the numbers of a row. `step` is the logger's own, for rows without the
    trainer's. None, and counted, if there is no step."""
    values = {n: v for n, v in numbers(row, found).items() if not n.startswith("_")}
    own = next((values[name] for name in STEPS if name in values), None)
    whole = whole_step(step if own is None else own)
    if whole is None:
        found.skip("rows without a step")
        return None
    return Scalars(whole, values, time, attempts.of(whole))


def numbers(row: Mapping[str, Any], found: Findings, prefix: str = "") -> dict[str, float]:
    """The numbers of a row, those of nested rows under names joined by dots; NULL is left out."""
    taken: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, str):
            value = _NUMBERS.get(value, value)
        if isinstance(value, int | float):  # True is 1
            taken[prefix + name] = float(value) if abs(value) < 1e308 else _huge(value)
        elif isinstance(value, Mapping) and "_type" not in value:
            taken |= numbers(value, found, f"{prefix}{name}.")
        elif value is not None and not name.startswith("_"):
            found.skip(_NO_NUMBER)
    return taken


def _huge(value: float) -> float:
    return math.copysign(math.inf, value) if isinstance(value, int) else value


def whole_step(value: Any) -> int | None:
    """A step as loggers give it; None if it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() and 0 <= number <= _MOST_STEP else None


def chosen(wanted: str | None, runs: Mapping[str, str], where: Path) -> str | None:
    """The id of the run that is meant, of `runs` (id → name); None where there is no run.

    Raises UsageError with the names if nobody said which of several, or one that is not there.
    """
    if wanted is None and len(runs) <= 1:
        return next(iter(runs), None)
    meant = [i for i, name in runs.items() if wanted in (i, name)]
    if len(meant) == 1:
        return meant[0]
    names = list(runs.values())
    listed = ", ".join(n if names.count(n) == 1 else f"{n} ({i})" for i, n in runs.items())
    if len(runs) > _SHOWN:
        listed = ", ".join(listed.split(", ")[:_SHOWN]) + ", …"
    if wanted is None:
        raise UsageError(f"{where} holds {len(runs)} runs; say which with --run: {listed}.")
    many = "more than one run" if meant else "no run"
    raise UsageError(f"{where} holds {many} called {wanted}. It holds: {listed}.")


def of_one_run(paths: Sequence[Path], found: Findings, run_of: Callable[[Path], str]) -> list[Path]:
    """Those of the paths that belong to the run that is meant; `run_of` names a path's run.

    Raises UsageError as `chosen` does.
    """
    runs = {run: Path(run).name for run in map(run_of, paths)}
    where = Path(os.path.commonpath(paths)) if paths else Path()
    run = chosen(found.asked.run if len(runs) > 1 else None, runs, where)
    return sorted((path for path in paths if run_of(path) == run), key=in_order)
