"""Rows of means with a step each, as nearly every loop writes them, whatever holds the rows.

Among them verl's FileLogger (0.9.1, `utils/tracking.py`: `{"step": 3, "data": {…}}`), prime-rl's
`{"step", "time", …}`, ROLL's `{"step", "metrics": {…}}`, tinker-cookbook's `{"progress/batch", …}`,
`trainer_state.json`, arrays of steps, tables, and W&B's histories (JSON lines of
`wandb://ENTITY/PROJECT/RUN`, Parquet of `Run.download_history_exports`, CSV of `scan_history`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from .mapping import meaning
from .reading import (
    as_step,
    choose_run,
    is_lost_to_rounding,
    natural_key,
    number,
    of_one_run,
    seconds_of,
)
from .rollouts import is_rollout
from .rows import Candidate, Row, first_rows, form, rows_of
from .source import NO_NUMBER, Findings, Scalars, in_attempts

PROGRESS = "global_step/max_steps"  # ms-swift's: "3/200"
# The trainer's own count of steps. Hugging Face's callbacks for W&B and Trackio let the logger
# count its calls and put the step among the values, as OpenRLHF does.
STEPS = (
    "step", "global_step", "progress/batch", "iteration", "train_step", "training_step",
    "train/global_step", "training/global_step", "trainer/global_step", "system/step", "step_idx",
    PROGRESS,
)
_EVALUATED = "eval/global_step"  # of a row of evaluations, and of no other
_LOGGERS = "_step"  # the logger's own count
COUNTERS = ("iter", "update", "episode", "epoch")  # where no row has a step
# Columns of a table that say which run a row is of.
_RUNS = ("run", "run_id", "run_name", "arm", "experiment", "variant", "method", "algorithm", "seed")
TIMES = ("time", "timestamp", "_timestamp", "ts")
SUMMARY = "train_runtime"  # marks the row that the Trainer adds at the end
_LONG = 200  # characters; rows with longer texts are rollouts or questions
_PART = re.compile(r"_\d+\.runhistory\.parquet$")  # one of several files of a run of W&B
_PEEK = 5  # rows that say whether a file has steps
_MOST_NAMES = 10_000  # of metrics in one item


class Metrics:
    name = "metrics"
    description = "metrics by step, in JSON, CSV or Parquet (also of TRL, verl and W&B)"

    def looks_like(self, file: Candidate) -> bool:
        rows = file.rows
        if not rows or is_rollout(rows[0], file.columns):
            return False
        texts = [any(isinstance(v, str) and len(v) >= _LONG for v in r.values()) for r in rows]
        if 2 * sum(texts) > len(texts):  # a note on the run, in its first row, is one
            return False
        column = file.columns.get("step")
        if any(StepReader(column).of(row) is not None for row in rows):
            return True
        # prime-rl's rows by time, those of its engines among them, have a step of null.
        by_time = any("step" in r and r["step"] is None and time_of(r) is not None for r in rows)
        named = len(rows) > 1 and any(map(meaning, inner(rows[0])))  # alone it is a configuration
        return column is None and (by_time or named)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        parts = [path for path in paths if _PART.search(path.name)]
        others = [path for path in paths if path not in parts]
        exports = of_one_run(parts, findings, lambda path: _PART.sub("", path.name))
        _refuse_several_runs(others)
        for path in [*sorted(others, key=natural_key), *exports]:
            # Each on its own: trainer and orchestrator of a run write files of their own.
            yield from in_attempts(_means(path, findings), findings, path)


def _means(path: Path, findings: Findings) -> Iterator[Scalars]:
    for row, key, step in _with_steps(_rows_of_one_run(path, findings), path, findings):
        if planned := as_step(str(row.get(PROGRESS)).partition("/")[2]):
            findings.planned_steps = planned
        if values := numbers(inner(row), findings, {key, "epoch", *TIMES}):
            yield Scalars(step, values, time_of(row))


def _rows_of_one_run(path: Path, findings: Findings) -> Iterator[Row]:
    """The rows of a file; of a table of several runs those of the requested one. Runs that a column
    tells apart begin at the same step; one that resumes goes on from a later step. Raises
    UsageError like `choose_run`."""
    rows = rows_of(path, findings)
    if form(path) != "csv":
        return rows
    columns = [name for name in next(iter(first_rows(path)), {}) if name.lower() in _RUNS]
    if not columns:
        return rows

    def run_of(row: Row) -> str:
        return " ".join(str(row[n]) for n in columns if n in row)

    begins: dict[str, int] = {}
    steps = StepReader(findings.request.columns.get("step"))
    for row in rows_of(path, Findings()):
        if pair := steps.of(row):
            begins.setdefault(run_of(row), pair[1])
    if len(set(begins.values())) == len(begins):
        return rows
    run = choose_run(findings.request.run, {name: name for name in begins}, path)
    return (row for row in rows if run_of(row) == run)


def _refuse_several_runs(paths: Sequence[Path]) -> None:
    """Raises UsageError if files of one name in several folders have different rewards at the same
    steps: they are different seeds, and would be averaged. Checkpoints repeat earlier values."""
    rewards: dict[str, dict[Path, dict[int, float]]] = {}  # name → folder → step → reward
    for path in paths:
        steps = StepReader()
        for row in first_rows(path):
            pair, values = steps.of(row), numbers(inner(row), Findings())
            name = next((n for n in values if (m := meaning(n)) and m.signal == "reward"), None)
            if pair and name is not None:
                of_path = rewards.setdefault(path.name, {}).setdefault(path.parent, {})
                of_path[pair[1]] = values[name]
    for name, by_folder in rewards.items():
        for one, other in pairwise(by_folder):
            first, second = by_folder[one], by_folder[other]
            if any(first[step] != second[step] for step in first.keys() & second.keys()):
                raise UsageError(
                    f"{one / name} and {other / name} have other rewards at the same steps: they "
                    "are of several runs. Name the folder of one."
                )


class StepReader:
    """Reads the step of each row, in order: under the given name, the trainer's own count, or the
    logger's. After the first row with the trainer's count, a row without it belongs to the previous
    step."""

    def __init__(self, column: str | None = None) -> None:
        self._names = (*STEPS, _EVALUATED) if column is None else (column,)
        self._trainers: int | None = None  # as last seen

    def of(self, row: Mapping[str, Any]) -> tuple[str, int] | None:
        """The name of the step's field, and the step; None if there is none."""
        for name in self._names:
            if name in row and (step := as_step(row[name])) is not None:
                if name != _EVALUATED:
                    self._trainers = step
                return name, step
        if _LOGGERS not in row:
            return None
        step = as_step(row[_LOGGERS]) if self._trainers is None else self._trainers
        return None if step is None else (_LOGGERS, step)


def _with_steps(
    rows: Iterator[dict[str, Any]], path: Path, findings: Findings
) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Each row with the name of its step's field, and its step. If the first rows have none, a
    counter that all of them have is used, or rows are counted."""
    column, first = findings.request.columns.get("step"), list(islice(rows, _PEEK))
    if column is None and not any(StepReader().of(row) or "step" in row for row in first):
        have = (n for n in COUNTERS if all(as_step(row.get(n)) is not None for row in first))
        column = next(have, "")
    if column == "":
        findings.note(f"{path.name} has no step: its rows are counted from 1.")
    steps = StepReader(column)
    for count, row in enumerate(chain(first, rows), start=1):
        pair = ("", count) if column == "" else steps.of(row)
        if SUMMARY in row:
            continue
        if pair is None:
            findings.skip("rows without a step")
        else:
            yield row, *pair


def inner(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object that holds a row's numbers: the row, or an object in it (verl's `data`)."""
    inside = (row.get(name) for name in ("data", "metrics"))
    return next((value for value in inside if isinstance(value, dict)), row)


def time_of(row: Mapping[str, Any]) -> float | None:
    """Unix time of a row; None if it is missing or relative."""
    return next((t for n in TIMES if n in row and (t := seconds_of(row[n])) is not None), None)


def numbers(
    row: Mapping[str, Any], findings: Findings, without: Collection[str] = (), above: str = ""
) -> dict[str, float]:
    """The numbers of a row; nested names are joined as paths; NaN and Inf may be strings. Names
    that begin with _ belong to the logger."""
    values: dict[str, float] = {}
    for name, value in row.items():
        if name in without or name[:1] == "_":
            continue
        if isinstance(value, float):  # most
            values[above + name] = value
        elif isinstance(value, dict) and "_type" not in value:
            values |= numbers(value, findings, (), f"{above}{name}/")
        elif (result := number(value)) is not None:
            if not (isinstance(value, str) and is_lost_to_rounding(name, value, findings)):
                values[above + name] = result
        elif value is not None and not isinstance(value, bool):
            findings.skip(NO_NUMBER)
    return values


Call = tuple[Mapping[str, Any], Any, float | None]  # of a logger: its row, own step, Unix time


def logger_calls(calls: Iterable[Call], findings: Findings) -> Iterator[Scalars]:
    """The numbers of a logger's calls, in order. Calls without a number are left out, and calls
    without a step are counted."""
    steps = StepReader()
    for row, step, time in calls:
        if values := numbers(row, findings):
            if pair := steps.of({_LOGGERS: step, **row}):
                yield Scalars(pair[1], values, time)
            else:
                findings.skip("rows without a step")


Point = tuple[str, float, int, float | None]  # name, value, step, Unix time


def group_points(points: Iterable[Point]) -> Iterator[Scalars]:
    """Means from single points in writing order; consecutive points of one step form one item."""
    now = None
    for name, value, step, time in points:
        if now is None or now.step != step or name in now.values or len(now.values) >= _MOST_NAMES:
            if now is not None:
                yield now
            now = Scalars(step, {}, time)
        now.values[name] = value
    if now is not None:
        yield now
