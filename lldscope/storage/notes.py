"""What people say of a run, kept with it: notes.jsonl, one JSON object a line.

A line has `time` (Unix time), `kind`, `rule`, and `step`: where the episode of the alarm began that
is meant, so that the alarm is heard again when it fires anew. Kinds: `acknowledge`; `snooze`, with
`until` (Unix time); `heard`, which takes back what came before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import LldscopeError
from . import journal, json_files
from .layout import NOTES_FILE

KINDS = ("acknowledge", "snooze", "heard")


def write_note(
    run: Path, kind: str, rule: str, step: int | None, until: float | None = None
) -> None:
    """Append a note. Raises LldscopeError if the run cannot be written."""
    note = {"time": time.time(), "kind": kind, "rule": rule, "step": step, "until": until}
    try:
        journal.append_note(run, NOTES_FILE, note)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise LldscopeError(f"{run / NOTES_FILE} cannot be written: {why}.") from None


def is_note(value: Any) -> bool:
    """Whether a line of notes.jsonl is valid."""
    return (
        isinstance(value, dict)
        and value.get("kind") in KINDS
        and isinstance(value.get("rule"), str)
        and (value.get("step") is None or type(value["step"]) is int)
        and (value.get("until") is None or json_files.is_time(value["until"]))
    )


def silenced(
    notes: Sequence[Mapping[str, Any]], firing: Mapping[str, int | None], now: float | None = None
) -> dict[str, float | None]:
    """Of the alarms that fire (rule → step at which the episode began) those that are not to be
    heard: until when, Unix time, or None where they were acknowledged."""
    now = time.time() if now is None else now
    last = {note["rule"]: note for note in notes}
    quiet = {}
    for rule, step in firing.items():
        note = last.get(rule)
        if note is None or note["kind"] == "heard" or note["step"] != step:
            continue
        until = note["until"] if note["kind"] == "snooze" else None
        if until is None or until > now:
            quiet[rule] = until
    return quiet
