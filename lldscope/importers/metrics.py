"""Metrics as JSON or CSV: an array of steps, as in `trainer_state.json`, a JSON object a step as
verl's FileLogger, prime-rl, Tinker and most loops of one's own write them, and tables."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .mapping import meaning
from .reading import as_step, first_object, lines, number, objects, open_file, parse_json
from .source import AttemptCounter, Findings, Scalars

STEPS = (
    "step", "_step", "global_step", "progress/batch", "iteration", "train_step", "training_step",
    "training/global_step", "system/step", "step_idx",
)
COUNTERS = ("iter", "update", "episode", "epoch")  # of an array, where no object has a step
MAX_DOCUMENT = 64 << 20  # bytes
MAX_CONTAINERS = 1_000_000  # lists and objects in it
_KEY = re.compile(rb'"([^"\\]{1,80})"\s*:')
_ROLLOUT = re.compile(rb'"(prompt|completion|response|messages)"\s*:')
TIMES = ("time", "timestamp", "_timestamp")
_SUMMARY = "train_runtime"  # marks the entry that the Trainer adds at the end
_LONG = 200  # characters; texts beyond it are rollouts, not names


class MetricDocument:
    """One JSON value: an array of objects, a step each, or an object that holds one, such as
    `log_history` of the Hugging Face Trainer."""

    name = "metric-document"
    description = (
        'a JSON array of steps, trainer_state.json of TRL, or another {"log_history": […]}'
    )

    def looks_like(self, path: Path, head: bytes) -> bool:
        start = head.lstrip()
        if path.name == "trainer_state.json" or (start[:1] == b"{" and b'"log_history"' in head):
            return first_object(head) is None or path.suffix == ".json"
        if start[:1] != b"[" or start[1:].lstrip()[:1] != b"{" or _ROLLOUT.search(head):
            return False
        keys = [key.decode() for key in _KEY.findall(head)]
        return bool(set(keys) & {*STEPS, *COUNTERS}) or any(map(meaning, keys))

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        attempts_seen = AttemptCounter()
        for path in paths:
            document = whole(path, findings)
            if isinstance(document, dict):
                max_steps = document.get("max_steps")
                findings.planned_steps = max_steps if isinstance(max_steps, int) else None
                document = document.get("log_history")
            if not isinstance(document, list):
                findings.skip("files that are no JSON array of steps, or half of one")
                continue
            yield from self._steps([e for e in document if isinstance(e, dict)], findings,
                                   attempts_seen)

    def _steps(
        self, entries: list[dict[str, Any]], findings: Findings, attempts_seen: AttemptCounter
    ) -> Iterator[Scalars]:
        column = findings.request.columns.get("step")
        key_steps = [step_of(entry, column) for entry in entries]
        if not any(key_steps) and entries:
            name = next((n for n in COUNTERS if all(n in e for e in entries)), None)
            if name is None:
                findings.note("The array holds no step: its objects are counted from 1.")
            key_steps = [step_of({name: e[name]} if name else {"": i + 1}, name or "")
                     for i, e in enumerate(entries)]
        for entry, key_step in zip(entries, key_steps, strict=True):
            if key_step is None:
                findings.skip("entries without a step")
            elif _SUMMARY not in entry:
                key, step = key_step
                data = _data(entry)
                if values := numbers(data, findings, {key, "epoch", *TIMES}):
                    yield Scalars(step, values, time_of(entry), attempts_seen.of(step, values))


def whole(path: Path, findings: Findings) -> Any:
    """The value of a JSON file; None, counted, where it is none."""
    try:
        with open_file(path) as file:
            text = file.read(MAX_DOCUMENT + 1)
        findings.advance(len(text))
        if len(text) > MAX_DOCUMENT or text.count(b"[") + text.count(b"{") > MAX_CONTAINERS:
            findings.skip(
                f"JSON documents of more than {MAX_DOCUMENT >> 20} MB or {MAX_CONTAINERS:,} objects"
            )
            return None
        return parse_json(text)
    except (OSError, EOFError, ValueError, RecursionError):
        findings.skip("JSON documents that are damaged or half written")
        return None


class MetricLines:
    """One object a line: a step, perhaps a time, and numbers, which may be nested or under `data`.

    verl's FileLogger (0.9.1, `utils/tracking.py`) writes `{"step": 3, "data": {…}}`; prime-rl's
    `metrics.jsonl` `{"step", "time", …}`, ROLL's `{"step", "metrics": {…}}`; tinker-cookbook's
    `{"step", "progress/batch", …}`.
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
                key_step = step_of(entry, column)
                if key_step is None:
                    findings.skip("lines without a step")
                    continue
                key, step = key_step
                data = _data(entry)
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


def _data(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the numbers of an entry are: in it, or in an object of it (verl's `data`)."""
    inside = (entry.get(name) for name in ("data", "metrics"))
    return next((value for value in inside if isinstance(value, dict)), entry)


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
        elif (result := number(value)) is not None:
            values[above + name] = result
        else:
            findings.skip("metrics whose value is no number")
    return values
