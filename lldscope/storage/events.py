"""Reads events, alerts and notes of a run: the valid lines, and what is wrong with the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import json_files
from .layout import ALERTS_FILE, EVENTS_FILE, NOTES_FILE
from .notes import is_note

MOST = 2**31  # steps and attempts are below

_LINE_NUMBER = re.compile(r"[\w-]+:\d+")  # `line`, as in locations of earlier versions


def read_journals(run: Path, damaged: dict[str, str]) -> dict[str, list[Any]]:
    """File → its valid lines; what is wrong with the others is added to `damaged`."""
    result = {}
    for file, (valid, what) in _FILES.items():
        lines, bad = json_files.read_lines(run / file, run)
        damaged |= bad
        result[file] = [line for line in lines if valid(line)]
        if invalid := len(lines) - len(result[file]):
            damaged[file] = f"{invalid} lines are no {what}"
        for line in result[file]:
            if isinstance(line.get("line"), str) and _LINE_NUMBER.fullmatch(line["line"]):
                del line["line"]
    return result


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def is_event(value: Any) -> bool:
    """Whether a line of events.jsonl is valid: an object with a kind. A step or an attempt in it
    must be a 32-bit count."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("kind"), str)
        and all(n is None or is_count(n) for n in (value.get("step"), value.get("attempt")))
    )


def last_checkpoint(events: Sequence[Mapping[str, Any]], until: int | None = None) -> Any:
    """The trainer's number of the last checkpoint that was not trained beyond step `until`; None if
    there is none. TRL and verl number checkpoints by optimizer steps."""
    saves = [e for e in events if e.get("kind") == "checkpoint" and e.get("step") is not None]
    sound = [e for e in saves if until is None or e["step"] <= until]
    last = max(sound, key=lambda e: e["step"], default={})
    numbers = (last.get(key) for key in ("global_step", "resume_from"))
    return next((n for n in numbers if is_count(n)), last.get("step"))


_FILES: dict[str, tuple[Callable[[Any], bool], str]] = {
    EVENTS_FILE: (is_event, "events"),
    ALERTS_FILE: (lambda value: isinstance(value, dict), "alerts"),
    NOTES_FILE: (is_note, "notes"),
}
