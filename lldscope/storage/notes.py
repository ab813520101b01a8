"""What people say of a run, kept in its notes.jsonl, one JSON object a line.

A line has `time` (Unix time) and `kind`. A line about an alarm also has `rule` and `step`, the
first step of the episode: an acknowledgement ends when the alarm fires anew. Its kind is
`acknowledge`; `snooze`, with `until` (Unix time); or `heard`, which takes back the earlier lines. A
line about the run has `text`. Its kind is `name` or `note` (the last one counts, an empty one
clears it), `tag` or `untag`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import LldscopeError, UsageError
from . import json_files
from .layout import NOTES_FILE

KINDS = ("acknowledge", "snooze", "heard")
LONGEST = {"name": 200, "note": 10_000, "tag": 60, "untag": 60}  # characters
MOST_TAGS = 50


def write_note(
    run: Path, kind: str, rule: str, step: int | None, until: float | None = None
) -> None:
    """Append a note. Raises LldscopeError if the run cannot be written."""
    _append(run, {"kind": kind, "rule": rule, "step": step, "until": until})


def write_about(run: Path, kind: str, text: str) -> None:
    """Append a note about the run itself. Raises UsageError for a text that is too long or an empty
    tag, and LldscopeError if the run cannot be written."""
    text = text.strip()
    if len(text) > LONGEST[kind]:
        raise UsageError(f"A {kind} has at most {LONGEST[kind]:,} characters, not {len(text):,}.")
    if not text and kind in ("tag", "untag"):
        raise UsageError("A tag has at least one character.")
    _append(run, {"kind": kind, "text": text})


def _append(run: Path, note: dict[str, Any]) -> None:
    try:
        json_files.append_line(run / NOTES_FILE, {"time": json_files.now(), **note})
    except OSError as error:
        why = f"{run / NOTES_FILE} cannot be written: {error.strerror}."
        raise LldscopeError(why) from None


def is_note(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if (kind := value.get("kind")) in LONGEST:
        text = value.get("text")
        return isinstance(text, str) and len(text) <= LONGEST[kind]
    return (
        kind in KINDS
        and isinstance(value.get("rule"), str)
        and (value.get("step") is None or type(value["step"]) is int)
        and (value.get("until") is None or json_files.is_time(value["until"]))
    )


def silenced(
    notes: Sequence[Mapping[str, Any]], firing: Mapping[str, int | None], now: float | None = None
) -> dict[str, float | None]:
    """The muted alarms among those that fire (rule → first step of the episode): rule → until when,
    in Unix time, or None for an acknowledged alarm."""
    now = json_files.now() if now is None else now
    last = {note["rule"]: note for note in notes if note["kind"] in KINDS}
    quiet = {}
    for rule, step in firing.items():
        note = last.get(rule)
        if note is None or note["kind"] == "heard" or note["step"] != step:
            continue
        until = note["until"] if note["kind"] == "snooze" else None
        if until is None or until > now:
            quiet[rule] = until
    return quiet


def about(notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The notes about the run itself: its `name`, its `note` and its `tags` in the order in which
    they came; each only if there is one."""
    last: dict[str, str] = {}
    tags: dict[str, None] = {}
    for note in notes:
        kind = note["kind"]
        if kind == "untag":
            tags.pop(note["text"], None)
        elif kind == "tag" and len(tags) < MOST_TAGS:
            tags[note["text"]] = None
        elif kind in ("name", "note"):
            last[kind] = note["text"]
    return {kind: text for kind, text in last.items() if text} | (
        {"tags": list(tags)} if tags else {}
    )
