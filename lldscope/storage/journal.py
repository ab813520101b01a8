"""Files of lines that say what happened in a run: events, alerts, and notes of people.

Each line says who wrote it and how many lines that writer had written by then: `"line": "a1-r0:7"`
is the seventh of attempt 1, rank 0. Who writes also says so elsewhere, in the commits of its
manifest, in its heartbeat, or in heartbeat/notes.json. So a reader notices lines, and whole files,
that are gone. Lines that were written by hand carry no number and are accepted.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import json_files
from .heartbeats import HEARTBEAT_DIR, NOTES_HEARTBEAT

PEOPLE = "people"  # who writes notes
Owner = tuple[str, str]  # a file, and who writes it

_LINE = re.compile(r"([\w-]{1,40}):(\d{1,12})")


def owner_name(attempt: int, rank: int) -> str:
    return f"a{attempt}-r{rank}"


def append(run: Path, file: str, value: Mapping[str, Any], owner: str, number: int) -> None:
    """Append the line with a number of its writer, which counts from 1. Raises OSError."""
    json_files.append_line(run / file, {**value, "line": f"{owner}:{number}"})


def append_note(run: Path, file: str, value: Mapping[str, Any]) -> None:
    """Append a line of people, who may write from several processes: two at the same moment may get
    one number, and a third goes on from there. Raises OSError."""
    lines, _ = json_files.read_lines(run / file, run)
    numbers = _numbers(lines).get(PEOPLE, set())
    reported = notes_written(run).get(file, 0)
    number = max([reported, *numbers]) + 1
    append(run, file, value, PEOPLE, number)
    state = {"time": json_files.now(), "lines": notes_written(run) | {file: number}}
    with contextlib.suppress(OSError):  # the note itself is written
        json_files.replace_file(run / HEARTBEAT_DIR / NOTES_HEARTBEAT, json_files.to_json(state))


def notes_written(run: Path) -> dict[str, int]:
    """File → how many lines people wrote into it, at least."""
    try:
        state = json_files.parse(json_files.read_bytes(run / HEARTBEAT_DIR / NOTES_HEARTBEAT, run))[
            "lines"
        ]
        return {file: n for file, n in state.items() if type(n) is int}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def read(
    run: Path, file: str, totals: Mapping[Owner, int], damaged: dict[str, str]
) -> list[dict[str, Any]]:
    """The lines of a file in their order, without their numbers; what is wrong is added to
    `damaged`. `totals` is how many lines each writer has written at least, as it was known before
    the file is read."""
    lines, bad = json_files.read_lines(run / file, run)
    damaged |= bad
    numbers = _numbers(lines)
    expected = {owner: n for (name, owner), n in totals.items() if name == file}
    missing = {}
    for owner in {*numbers, *expected}:
        present = numbers.get(owner, set())
        if gap := max(expected.get(owner, 0), *present, 0) - len(present):
            missing[owner] = gap
    gap = sum(missing.values()) - len(bad)  # a line that cannot be read is reported already
    if gap > 0 and file not in damaged:
        damaged[file] = f"{gap} of its lines are missing (written by {', '.join(sorted(missing))})"
    return [_without_number(line) for line in lines]


def _numbers(lines: list[Any]) -> dict[str, set[int]]:
    """Writer → the numbers of its lines."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for line in lines:
        state = line.get("line") if isinstance(line, dict) else None
        if isinstance(state, str) and (match := _LINE.fullmatch(state)):
            numbers[match[1]].add(int(match[2]))
    return numbers


def _without_number(line: Any) -> Any:
    if isinstance(line, dict) and isinstance(line.get("line"), str):
        return {key: value for key, value in line.items() if key != "line"}
    return line


def counts(value: Any) -> dict[str, int]:
    """File → number of lines, of what a manifest or a heartbeat says."""
    if not isinstance(value, dict):
        return {}
    return {file: n for file, n in value.items() if isinstance(file, str) and type(n) is int}


def merge_counts(*sources: Mapping[Owner, int]) -> dict[Owner, int]:
    """The largest number that any source knows of, by file and writer."""
    result: Counter[Owner] = Counter()
    for source in sources:
        result |= Counter(source)
    return dict(result)
