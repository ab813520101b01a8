"""Metrics as JSON or CSV: `trainer_state.json` of the Hugging Face Trainer, a JSON object a step as
verl's FileLogger, prime-rl, Tinker and most loops of one's own write them, and tables."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .reading import MAX_LINE, as_step, first_object, lines, number, objects, parsed
from .source import AttemptCounter, Findings, Scalars

STEPS = ("step", "_step", "global_step", "progress/batch", "iteration")
TIMES = ("time", "timestamp", "_timestamp")
_SUMMARY = "train_runtime"  # marks the entry that the Trainer adds at the end
_LONG = 200  # characters; texts beyond it are rollouts, not names


class TrainerState:
    name = "trainer-state"
    description = "trainer_state.json of TRL or another Hugging Face Trainer"

    def looks_like(self, path: Path, head: bytes) -> bool:
        return path.suffix == ".json" and (
            path.name == "trainer_state.json" or b'"log_history"' in head
        )

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        attempts_seen = AttemptCounter()
        for path in paths:
            try:
                with path.open("rb") as file:
                    text = file.read(MAX_LINE + 1)
                findings.advance(len(text))
                if len(text) > MAX_LINE:
                    findings.skip(f"files of trainer states of more than {MAX_LINE >> 20} MB")
                    continue
                entries = parsed(text)["log_history"]
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                findings.skip("files that are no trainer_state.json, or half of one")
                continue
            for entry in entries if isinstance(entries, list) else ():
                step = as_step(entry.get("step")) if isinstance(entry, dict) else None
                if step is None:
                    findings.skip("entries without a step")
                elif _SUMMARY not in entry and (
                    values := numbers(entry, findings, {"step", "epoch"})
                ):
                    yield Scalars(step, values, attempt=attempts_seen.of(step, values))


class MetricLines:
    """One object a line: a step, perhaps a time, and numbers, which may be nested or under `data`.

    verl's FileLogger (0.9.1, `utils/tracking.py`) writes `{"step": 3, "data": {…}}`; prime-rl's
    `metrics.jsonl` `{"step", "time", …}`; tinker-cookbook's `{"step", "progress/batch", …}`.
    """

    name = "metric-lines"
    description = "metrics, one JSON object a step (verl's file logger, prime-rl, Tinker, your own)"

    def looks_like(self, path: Path, head: bytes) -> bool:
        first = first_object(head)
        if first is None:
            return False
        # prime-rl's rows by time, those of its engines among them, have a step of null.
        by_time = first.get("step", 0) is None and time_of(first) is not None
        if step_of(first, None) is None and not by_time:
            return False
        texts = (v for v in first.values() if isinstance(v, str))
        return (
            not any(isinstance(v, list) for v in first.values())
            and all(len(text) < _LONG for text in texts)
            and not {"output", "completion", "response", "generation"} & first.keys()
        )

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        column = findings.request.columns.get("step")
        for path in paths:
            # One counter per file: trainer and orchestrator of a run write files of their own.
            attempts_seen = AttemptCounter()
            for entry in objects(path, findings):
                found = step_of(entry, column)
                if found is None:
                    findings.skip("lines without a step")
                    continue
                key, step = found
                data = entry["data"] if isinstance(entry.get("data"), dict) else entry
                if values := numbers(data, findings, {key, *TIMES}):
                    yield Scalars(step, values, time_of(entry), attempts_seen.of(step, values))


class MetricTable:
    name = "csv"
    description = "a CSV file with a column of steps"

    def looks_like(self, path: Path, head: bytes) -> bool:
        if path.suffix.lower() not in (".csv", ".tsv"):
            return False
        first = head.split(b"\n", 1)[0].decode("utf-8", "replace").strip()
        names = next(table([first], _delimiter(first), Findings()), [])
        return any(name.strip().lower() in STEPS for name in names)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        for path in paths:
            text = (line.decode("utf-8-sig", "replace") for line, _ in lines(path, findings))
            header = next(text, "")
            delimiter = _delimiter(header)
            names = [n.strip() for n in next(table([header], delimiter, findings), [])]
            column = findings.request.columns.get("step")
            is_step = [n == column if column else n.lower() in STEPS for n in names]
            at = is_step.index(True) if any(is_step) else None
            if at is None:
                findings.skip("tables without a column of steps")
                findings.note(
                    f"{path.name} has no column named {column or 'step'}. Say which one counts the "
                    "steps: --map step=NAME."
                )
                continue
            attempts_seen = AttemptCounter()
            for row in table(text, delimiter, findings):
                step = as_step(row[at]) if len(row) == len(names) else None
                if step is None:
                    findings.skip("rows without a step, or with too few or many columns")
                    continue
                cells = dict(zip(names, row, strict=True))
                values = {
                    name: value
                    for name, cell in cells.items()
                    if name != names[at] and (value := number(cell)) is not None
                }
                if values:
                    yield Scalars(step, values, time_of(cells), attempts_seen.of(step, values))


def table(lines: Iterable[str], delimiter: str, findings: Findings) -> Iterator[list[str]]:
    """The rows of CSV text; what is none is counted."""
    rows = csv.reader(lines, delimiter=delimiter)
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error:  # a field that does not end, for example
            findings.skip("lines that are no CSV")


def _delimiter(header: str) -> str:
    return max(",;\t", key=header.count)


def step_of(entry: Mapping[str, Any], column: str | None) -> tuple[str, int] | None:
    """The key that holds the step, and the step."""
    for key in STEPS if column is None else (column,):
        if key in entry and (step := as_step(entry[key])) is not None:
            return key, step
    return None


def time_of(entry: Mapping[str, Any]) -> float | None:
    """Unix time of an entry; None where it has none, or seconds since something else."""
    for key in TIMES:
        seconds = number(entry[key]) if key in entry else None
        if seconds is not None and 1e9 < seconds < 1e11:
            return seconds
    return None


def numbers(
    entry: Mapping[str, Any], findings: Findings, without: set[str], above: str = ""
) -> dict[str, float]:
    """The numbers of an entry, nested ones with their path as name; NaN and Inf may be strings."""
    if not above and (kinds := set(map(type, entry.values()))) <= {int, float}:  # most, and fast
        with suppress(OverflowError):
            floats = entry.values() if kinds == {float} else map(float, entry.values())
            values = dict(zip(entry, floats, strict=True))
            for name in without & values.keys():
                del values[name]
            return values
    values = {}
    for name, value in entry.items():
        if name in without or value is None or isinstance(value, bool):
            continue
        if isinstance(value, dict):
            values |= numbers(value, findings, set(), f"{above}{name}/")
        elif (parsed := number(value)) is not None:
            values[above + name] = parsed
        else:
            findings.skip("metrics whose value is no number")
    return values
